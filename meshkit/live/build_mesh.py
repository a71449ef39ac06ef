"""build_mesh: from the sizes a trainer names to a live mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.arrays import Ints
from ..core.call import drop_none, public
from ..core.errors import CALL, Change, MeshkitError, SpecError
from ..core.grid.sizes import infer_sizes
from ..core.grid.factor import merge_sizes, ordered_sizes
from ..core.grid.group_plan import GroupPlan
from ..core.grid.hybrid import check_no_plain_sizes, hybrid_layout
from ..core.grid.layout import Layout
from ..core.grid.rank_order import RankOrder
from ..core.topology.crossing_policy import check_policies
from ..core.topology.topology import Topology
from ..launch.default_group import Job, current_job
from ..launch.device.device import check_backend
from ..launch.job import current_world, init_job
from ..launch.launchers.world import World
from ..launch.timeouts import Time, parse_timeout
from .groups.create import check_orders
from .groups.options import GroupOptions, GroupTimeouts, check_in_world
from .groups.registry import GroupRegistry
from .mesh import Mesh
from .setup.hosts import check_place, placed_live
from .setup.proposal import announce_refusal

TIMES = ("timeout", "arrival_timeout", "backend")  # of init, where build_mesh calls it


@public("init")
def build_mesh(
    sizes: Mapping[str, int] | None = None,
    /,
    *,
    order: str | Iterable[str] | None = None,
    groups: str | Sequence[str | Iterable[str]] | None = None,
    ranks: Sequence[int] | Ints | None = None,
    within: Mapping[str, int] | None = None,
    across: Mapping[str, int] | None = None,
    place: Topology | bool = False,
    crossing: Mapping[str, str] | None = None,
    timeout: Time | Mapping[str, Time] | None = None,
    arrival_timeout: Time | None = None,
    backend: str | None = None,
    **axes: int,
) -> Mesh:
    """Factor the world into named axes and create their process groups.

    Collective: every rank calls it with equal arguments, which all ranks compare before a group is
    made. The request is checked whole before the job is joined; where there is no default group
    yet, :func:`meshkit.init` makes it. On failure the groups made so far are destroyed, but for
    the default group, which ``shutdown`` destroys. Ten store operations a rank, and two
    more where someone else made the default group. Rank 0 needs one more where it looks which axes
    cross nodes; where ranks came from several hosts three, or in a file one for each rank.

    Args:
        sizes: axis name to size, as from a config; the same as ``**axes``.
        order: axis names from the outside in; None is the standard order ``pp dp ep cp sp tp``.
        groups: groups over several axes that the trainer needs beyond the usual ones:
            ``["dp tp"]``. The usual ones are every axis, the whole mesh, and those of dp, cp and
            sp that are present together.
        ranks: the world's ranks that form the mesh, by grid position; None means all in order.
            Ranks outside take part in the call and get a mesh of which they are no part.
        within: instead of axes: axis to its size on one node, as in :func:`factor_world`.
        across: axis to its size over nodes; an axis may have both.
        place: True puts the ranks so that the axes that talk most, the innermost, sit on the
            nearest wires, by the hosts from which ranks checked in: seven store operations more.
            A :class:`Topology` says itself where ranks sit. See :func:`meshkit.placed`.
        crossing: what to do where groups of an axis cross nodes, those of ``place`` or the hosts
            from which ranks checked in: ``{"tp": "error", "sp": "warn", "dp": "allow"}``. Axes left
            out may cross, but tp is warned of, and so are axes ``within`` nodes only.
            ``"error"`` costs each rank one store operation more.
        timeout: how long a collective may take, in seconds or as a timedelta; None is that of
            ``init``. It sets ``arrival_timeout`` too. ``{"tp": 30, "dp sp": 600}`` says it for the
            groups over these axes; all others keep that of ``init``.
        arrival_timeout: how long ranks wait for each other here, and in ``init`` where it is still
            to come; None is that of ``init``.
        backend: what the groups run on; None is the backend of the default group.
        **axes: axis name to size; one may be -1. ``dp`` is inferred where it is left out, unless
            ``order`` leaves it out too.

    Returns:
        A :class:`Mesh`. Close it, or use it in ``with``.

    Raises:
        SpecError: where names, sizes, order, ranks or times cannot be. The other ranks are told.
            Where an axis crosses nodes that must not: the same on every rank, no group is made.
        DisagreementError: where ranks ask for different things, or one of them was refused; the
            same on every rank, with who asked for what.
        SpecError: if an axis has no standard position and ``order`` is not given.
        UnknownAxisError: for an axis in ``groups`` or ``crossing`` that the mesh does not have.
        LaunchError: where the launcher's variables, the device or the backend are not right.
        RankTimeoutError: where ranks did not arrive in time, with their coordinates.

    Warns:
        RuntimeWarning: on rank 0, where tp crosses nodes, or another axis that was to be warned of.
    """
    options = drop_none(
        order=order,
        groups=groups,
        ranks=ranks,
        within=within,
        across=across,
        place=place or None,
        crossing=crossing,
        timeout=timeout,
        arrival_timeout=arrival_timeout,
        backend=backend,
    )
    world = current_world()
    try:
        asked = merge_sizes(sizes, axes)
        if within is None and across is None:
            layout = _layout(ordered_sizes(asked, order), ranks, world)
        else:
            layout = _hybrid(asked, ranks, within, across, order, world)
        plan = GroupPlan.of(layout, () if groups is None else groups)
        times = _checked(plan, options)
        policies = check_policies(layout, crossing, within=_inside(within, across))
        check_place(place, world)
    except MeshkitError as error:
        announce_refusal(world, error)
        raise
    each = isinstance(timeout, Mapping)  # by axis: not a matter of init
    said = {n: options[n] for n in options if n in TIMES and not (each and n == "timeout")}
    job = current_job() or init_job(said)
    own = times.get("backend")
    limits = GroupTimeouts.of(plan, timeout, job.timeout)
    wait = times.get("arrival_timeout", job.arrival_timeout)
    record = replace(job, timeout=limits.usual, arrival_timeout=wait)
    terms, shared = GroupOptions(own, limits, job.default, policies, place), GroupRegistry()
    plan = plan if place is False else _placed(plan, record, terms, shared)
    return Mesh(plan, record, terms, shared)


def _placed(plan: GroupPlan, record: Job, terms: GroupOptions, shared: GroupRegistry) -> GroupPlan:
    """The plan with its ranks on the nearest wires. Collective, but for a given topology."""
    try:
        layout = placed_live(plan, record, terms, shared)
        moved = GroupPlan.of(layout, plan.requested)
        check_orders(moved)
    except SpecError as error:
        announce_refusal(record.world, error)
        raise
    return moved


def _inside(within: Mapping[str, int] | None, across: Mapping[str, int] | None) -> list[str]:
    """The axes that were said to be on one node."""
    return [axis for axis in within or {} if axis not in (across or {})]


def _checked(plan: GroupPlan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Times and backend, as ``init`` takes them; the last of what can be refused."""
    check_orders(plan)
    limits = GroupTimeouts.of(plan, options.get("timeout"), None)
    wait = parse_timeout("arrival_timeout", options.get("arrival_timeout")) or limits.usual
    backend = options.get("backend")
    return drop_none(
        arrival_timeout=wait, backend=None if backend is None else check_backend(backend)
    )


def _layout(nested: Mapping[str, int], ranks: Sequence[int] | Ints | None, world: World) -> Layout:
    """The layout on this world, or on the given ranks of it."""
    if ranks is None:
        return Layout(ranks=None, **infer_sizes(nested, world.world_size, world.size_evidence))
    seats = RankOrder.of(ranks, None)
    check_in_world(int(seats.array().max()), world)
    sizes = infer_sizes(nested, len(seats), f"ranks has {len(seats)}", owner="ranks=", can_start=False)
    return Layout(ranks=seats.ranks, **sizes)


def _hybrid(
    sizes: Mapping[str, object],
    ranks: object,
    within: Mapping[str, int] | None,
    across: Mapping[str, int] | None,
    order: str | Iterable[str] | None,
    world: World,
) -> Layout:
    """The layout of sizes within and across nodes, on the whole world."""
    check_no_plain_sizes(sizes, across)
    if ranks is not None:
        fix = (Change(ranks=None), ", or axes by size beside ranks.")
        raise SpecError(f"{CALL} gives ranks beside within and across.", fix=fix)
    return hybrid_layout(world.world_size, within, across, order)
