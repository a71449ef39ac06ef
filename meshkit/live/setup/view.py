"""Propose a view of a mesh: the same ranks, other axes, and the timeouts of the mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from ...core.call import Call
from ...core.grid.foreign_names import check_view_names
from ...core.grid.group_plan import Axes, GroupPlan, plan_view
from ...core.grid.sizes import merge_sizes
from ...launch.current_job import Job
from ...launch.store.deadline import Time, parse_timeout
from ..group_registry import MeshGroups
from ..groups import GroupOptions, GroupTimeouts, check_orders
from .proposal import MeshProposal, announcing_failure


def propose_view(
    mesh: MeshGroups,
    job: Job,
    options: GroupOptions,
    sizes: Mapping[str, int] | None,
    axes: Mapping[str, int],
    order: str | Iterable[str] | None,
    groups: str | Sequence[str | Iterable[str]] | None,
    timeout: Time | Mapping[str, Time] | None,
    arrival_timeout: Time | None,
) -> MeshProposal:
    """Return the proposal of a view. Local. See :meth:`meshkit.Mesh.view`."""
    given = {"order": order, "groups": groups, "timeout": timeout}
    keywords = {**axes, **given, "arrival_timeout": arrival_timeout}
    call = Call("mesh.view", () if sizes is None else (sizes,), keywords, ("sizes",))
    with announcing_failure(job.world, call):
        mesh.check_open()
        check_view_names(axes)
        plan = plan_view(mesh.plan.layout, merge_sizes(sizes, axes), order, groups)
        check_orders(plan)
        timeouts = GroupTimeouts.of(plan, timeout, options.timeouts.default)
        wait = parse_timeout("arrival_timeout", arrival_timeout)
        if timeout is None or isinstance(timeout, Mapping):
            inherited = _inherit_timeouts(plan, options.timeouts, mesh.plan)
            timeouts = timeouts._replace(by_key={**inherited, **timeouts.by_key})
        else:  # one timeout for all groups sets the arrival timeout too
            wait = wait or timeouts.default
    job = replace(job, arrival_timeout=wait or job.arrival_timeout)
    options = options._replace(timeouts=timeouts, crossing={}, place=False)
    return MeshProposal(plan, job, options, mesh.registry, call)


def _inherit_timeouts(
    plan: GroupPlan, timeouts: GroupTimeouts, mesh_plan: GroupPlan
) -> dict[Axes, timedelta]:
    """Return the mesh's timeouts of groups that the view has too, by the keys of the view."""
    by_members = {  # no axes would mean the whole mesh
        mesh_plan.layout.strides(*key) if key else (): timeout
        for key, timeout in timeouts.by_key.items()
    }
    members = {plan.group_key(axes): plan.layout.strides(*axes) for axes in plan.axis_sets}
    return {key: by_members[strides] for key, strides in members.items() if strides in by_members}
