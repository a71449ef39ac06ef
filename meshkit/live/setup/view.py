"""What a view of a mesh is made of: the same ranks, other axes, and times that it inherits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from ...core.grid.sizes import check_sizes, infer_sizes
from ...core.grid.group_plan import Axes, GroupPlan
from ...core.grid.layout import Layout
from ...core.grid.order import view_sizes
from ...launch.default_group import Job
from ...launch.timeouts import Time, parse_timeout
from ..groups.create import check_orders
from ..groups.options import GroupOptions, GroupTimeouts


def view_plan(
    layout: Layout,
    sizes: Mapping[str, object],
    order: str | Iterable[str] | None,
    groups: str | Sequence[str | Iterable[str]] | None,
) -> GroupPlan:
    """The plan of a view. Local.

    Args:
        layout: that of the mesh.
        sizes: those of the view, from the outside in; one may be -1.
        order: as in :func:`view_sizes`.
        groups: as in :meth:`GroupPlan.of`.

    Raises:
        SpecError: where sizes, order or groups cannot be.
        UnknownAxisError: for an axis in ``groups`` that the view does not have.
    """
    nested = view_sizes(check_sizes(sizes), order)
    has = f"{layout!r} has {layout.num_ranks} ranks"
    filled = infer_sizes(nested, layout.num_ranks, has, owner="the mesh", can_start=False)
    plan = GroupPlan.of(Layout(ranks=layout.ranks, **filled), groups or ())
    check_orders(plan)
    return plan


def view_terms(
    plan: GroupPlan,
    timeout: Time | Mapping[str, Time] | None,
    arrival_timeout: Time | None,
    record: Job,
    terms: GroupOptions,
    whole: GroupPlan,
) -> tuple[Job, GroupOptions]:
    """The terms of a view: those of its mesh, group by group, but for times that are given.

    Args:
        plan: that of the view.
        timeout: as in ``build_mesh``.
        arrival_timeout: as in ``build_mesh``.
        record: what is known of the default group, with the times of the mesh.
        terms: those of the mesh.
        whole: the plan of the mesh.

    Raises:
        SpecError: for a time that cannot be, or a group that the view does not have.
        UnknownAxisError: for an axis that it does not have.
    """
    limits = GroupTimeouts.of(plan, timeout, terms.limits.usual)
    wait = parse_timeout("arrival_timeout", arrival_timeout)
    if timeout is None or isinstance(timeout, Mapping):
        limits = GroupTimeouts(limits.usual, {**_inherited(plan, terms, whole), **limits.by_key})
    else:  # one time for all, the wait included
        wait = wait or limits.usual
    times = replace(record, timeout=limits.usual, arrival_timeout=wait or record.arrival_timeout)
    return times, replace(terms, limits=limits, crossing={}, place=False)


def _inherited(plan: GroupPlan, terms: GroupOptions, whole: GroupPlan) -> dict[Axes, timedelta]:
    """The times that the mesh has for groups that the view has too, by the keys of the view."""
    times = {
        whole.layout.strides(*key) if key else (): time  # no axes would mean the whole mesh
        for key, time in terms.limits.by_key.items()
    }
    keys = {plan.group_key(axes): plan.layout.strides(*axes) for axes in plan.axis_sets}
    return {key: times[steps] for key, steps in keys.items() if steps in times}
