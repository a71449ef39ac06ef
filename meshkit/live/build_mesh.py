"""build_mesh: create a live mesh from the sizes that a caller names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.arrays import Ints
from ..core.call import Call, public
from ..core.grid.group_plan import GroupPlan, plan_groups
from ..core.grid.sizes import merge_sizes
from ..core.topology.topology import Topology
from ..launch.current_job import current_job
from ..launch.device.device import check_backend
from ..launch.job import identify, join
from ..launch.store.deadline import Time, parse_timeout
from .groups.create import GroupOptions, GroupTimeouts, check_orders
from .groups.mesh_groups import GroupRegistry
from .mesh import Mesh
from .setup.proposal import MeshProposal, announcing_failure, open_groups


@public("build_mesh")
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

    Collective: every rank calls it with equal arguments. All ranks compare them before a group is
    created. The request is validated before the job is joined. If there is no default group,
    :func:`meshkit.init` creates it. On failure, the groups created so far are destroyed, except the
    default group, which ``shutdown`` destroys.

    Cost: 7 store operations per rank; 2 more if someone else created the default group. Rank 0
    needs one more if it checks which axes cross nodes. It needs 3 more if there are several hosts,
    and one per rank in a file.

    Args:
        sizes: axis name to size, for example from a config; the same as ``**axes``.
        order: axis names from the outside in; None is the standard order ``pp dp ep cp sp tp``.
        groups: groups over several axes beyond the default ones: ``["dp tp"]``. The default ones
            are every axis, the whole mesh, and those of dp, cp and sp that are present together.
        ranks: the ranks of the mesh by grid position; None means the whole world in order. Other
            ranks call the function too and get a mesh of which they are not a part.
        within: axis to its size on one node, instead of axes; see :func:`factor_world`.
        across: axis to its size over nodes; an axis may have both.
        place: True places ranks by their hosts, so that the innermost axes, which communicate
            most, are on the nearest links; 6 store operations more. A :class:`Topology` names the
            hosts instead. See :func:`meshkit.placed`.
        crossing: the policy if groups of an axis cross nodes, by the hosts of the ranks or by
            ``place``: ``{"tp": "error", "sp": "warn", "dp": "allow"}``. All other axes may cross;
            tp and axes that are only in ``within`` warn by default. ``"error"`` costs each rank
            one store operation more.
        timeout: how long a collective may take, in seconds or as a timedelta; None is that of
            ``init``. It sets ``arrival_timeout`` too. ``{"tp": 30, "dp sp": 600}`` sets it for the
            groups over these axes; all others keep that of ``init``.
        arrival_timeout: how long ranks wait for each other here, and in ``init`` if this call joins
            the job; None is that of ``init``.
        backend: the backend of the groups; None is that of the default group.
        **axes: axis name to size; one may be -1. ``dp`` is inferred if it is left out, unless
            ``order`` leaves it out too.

    Returns:
        A :class:`Mesh`. Close it, or use it in ``with``.

    Raises:
        SpecError: if names, sizes, order, ranks or timeouts are invalid, on the rank that requests
            them; the other ranks quote the error. Also if an axis crosses nodes against its policy;
            then the same on every rank, and no group is created.
        SpecError: if an axis has no standard position and ``order`` is not given.
        DisagreementError: if ranks request different meshes, or the request of one is invalid; the
            same on every rank, with the request of each.
        UnknownAxisError: if ``groups`` or ``crossing`` names an axis that the mesh does not have.
        LaunchError: if the launcher's variables, the device or the backend are invalid.
        RankTimeoutError: if ranks did not arrive in time, with their coordinates.

    Warns:
        RuntimeWarning: on rank 0, if tp or another axis with the policy ``"warn"`` crosses nodes.

    Example:
        ``with meshkit.build_mesh(dp=-1, tp=8) as mesh: train(mesh)``
    """
    options: dict[str, object] = {
        "order": order,
        "groups": groups,
        "ranks": ranks,
        "within": within,
        "across": across,
        "place": place or None,
        "crossing": crossing,
        "timeout": timeout,
        "arrival_timeout": arrival_timeout,
        "backend": backend,
    }
    call = Call("build_mesh", () if sizes is None else (sizes,), {**axes, **options}, ("sizes",))
    job = current_job()
    world = identify() if job is None else job.world
    with announcing_failure(world, call):
        plan = plan_groups(
            axes if sizes is None else merge_sizes(sizes, axes),
            world.world_size,
            world.size_evidence,
            order=order,
            groups=groups,
            ranks=ranks,
            within=within,
            across=across,
        )
        check_orders(plan)
        timeouts = GroupTimeouts.of(plan, timeout)
        wait = parse_timeout("arrival_timeout", arrival_timeout) or timeouts.default
        backend = None if backend is None else check_backend(backend)
        on_one_node = [axis for axis in within or () if axis not in (across or ())]
        policies: dict[str, str] = {}
        if crossing is not None or on_one_node or plan.keys.get(("tp",)):  # the axes that may warn
            from ..core.topology.crossing_policy import check_policies

            policies = check_policies(plan.layout, crossing, within=on_one_node)
        if place is not False:
            from .setup.hosts import check_place

            check_place(place, world)
    job = job or join(world, backend, None, timeouts.default, wait)
    timeouts = replace(timeouts, default=timeouts.default or job.timeout)
    group_options = GroupOptions(backend, timeouts, job.default_timeout, policies, place)
    job = replace(job, arrival_timeout=wait or job.arrival_timeout)
    proposal = MeshProposal(plan, job, group_options, GroupRegistry(call), call)
    if place is not False:
        proposal = _place(proposal)
    return Mesh(proposal, open_groups(proposal))


def _place(proposal: MeshProposal) -> MeshProposal:
    """Return the proposal with its ranks on the nearest links.

    Collective over the world if the nodes must be found.
    """
    from ..core.topology.placement import placed
    from .setup.hosts import find_topology

    place, job = proposal.options.place, proposal.job
    topology = find_topology(place, proposal.before_creation(), job)
    with announcing_failure(job.world, proposal.built_by):
        layout = placed(proposal.plan.layout, topology).layout
        plan = GroupPlan.of(layout, proposal.plan.requested)
        check_orders(plan)
    return replace(proposal, plan=plan)
