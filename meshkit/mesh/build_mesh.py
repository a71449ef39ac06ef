"""Build a mesh: factor the ranks of a job into named axes, and create the groups of the axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..call import Call, drop_none, quotes_call
from ..errors import RankTimeoutError
from ..groups.open_mesh import (
    MeshProposal,
    announcing_failure,
    check_share,
    open_groups,
    place_ranks,
)
from ..groups.registry import GroupRegistry
from ..groups.requests import GroupOptions
from ..launch.job import current_job
from ..launch.join import join, world_to_join
from ..launch.times import Time, parse_timeout
from ..layout.group_plan import plan_groups
from ..layout.sizes import STANDARD_AXES, read_sizes
from ..layout.topology import Topology
from ..recover.admission import open_mesh_of_job
from ..synonyms import device_mesh_error
from ..text import Ints
from .mesh import Mesh


@quotes_call("build_mesh")
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
    backend: str | Mapping[str, object] | None = None,
    share: bool = True,
    **axes: int,
) -> Mesh:
    """Factor the world into named axes and create their process groups.

    Collective: every rank calls it with equal arguments. All ranks compare them before a group is
    created. The request is validated before the job is joined. If there is no default group,
    :func:`meshkit.init` creates it. On failure, the groups created so far are destroyed, except the
    default group, which ``shutdown`` destroys.

    Cost: 8 store operations per rank; 10 if someone else created the default group. To
    check which axes cross nodes, rank 0 reads once what all ranks have left: 2 operations, and in a
    FileStore one for each rank.

    Args:
        sizes: axis name to size, for example from a config. Any name is allowed. Axes nest as
            written, the outermost first, with standard axes among them in the standard order. If
            all names are standard, the mapping is the same as ``**axes``.
        order: axis names from the outside in: ``"tp dp"``, ``"tp,dp"``, ``("tp", "dp")``, or in
            Megatron's spelling, the fastest-varying axis first, ``"dp-tp"``. None is the standard
            order ``pp dp ep cp sp tp``.
        groups: groups over more sets of axes: ``["dp tp"]``. Always made: each axis, the whole
            mesh, and the gradient groups, with and without ep (see :meth:`Mesh.gradient_group`).
            Axes with names of other libraries count by role.
        ranks: the ranks of the mesh by grid position; None means the whole world in order. Other
            ranks call the function too, and get a mesh with ``mesh.inside`` False.
        within: axis to its size on one node, instead of axes; see :func:`factor_world`.
        across: axis to its size over nodes. An axis may be in ``within`` and in ``across``.
        place: True places ranks by their hosts, so that the innermost axes, which communicate
            most, are on the nearest links; 6 store operations more. A :class:`Topology` names the
            hosts instead. See :func:`meshkit.placed`.
        crossing: the policy of each axis whose groups cross nodes, by the hosts of the ranks or by
            ``place``: ``{"tp": "error", "sp": "warn", "dp": "allow"}``. Default: ``"warn"`` for tp
            and for axes only in ``within``, ``"allow"`` for others. ``"error"`` costs each rank one
            store operation more.
        timeout: how long a collective may take, in seconds or as a timedelta; None is the timeout
            of ``init``. A single value also sets ``arrival_timeout``. ``{"tp": 30, "dp sp": 600}``
            sets the timeout of the groups over these axes; other groups keep that of ``init``.
        arrival_timeout: how long ranks wait for each other here, and in ``init`` if this call joins
            the job. None is ``timeout`` if that is one number or timedelta, else that of ``init``.
        backend: the backend of the groups; None is that of the default group. A mapping gives
            groups over some axes a backend, torch's options of one, or a tuple of both:
            ``{"pp": "nccl-lazy", "tp": dist.ProcessGroupNCCL.Options()}``. Each group gets a copy
            of the options. The timeout in them counts if it was set and ``timeout`` names none.
        share: False gives the mesh groups of its own, the one over all ranks included, for a second
            model in this process. No communicator is then used by both, and DTensor tells their
            DeviceMeshes apart. Views of this mesh share its groups.
        **axes: axis name to size; one may be -1. ``dp`` is inferred if it is left out, unless
            ``order`` leaves it out too. A name that is not standard needs ``order``.

    Returns:
        A :class:`Mesh`. Close it, or use it in ``with``.

    Raises:
        SpecError: if names, sizes, order, ranks or timeouts are invalid, or an axis has no
            position. Only the requesting rank raises it; the others quote it.
        SpecError: if an axis crosses nodes against its policy. Every rank raises it, and no group
            exists.
        DisagreementError: if ranks request different meshes. Every rank raises it, with the request
            of each. If one request is invalid, the other ranks raise it with that error.
        UnknownAxisError: if ``groups``, ``timeout``, ``backend`` or ``crossing`` names an axis that
            the mesh does not have.
        LaunchError: if the launcher's variables, the device or the backend are invalid.
        RankTimeoutError: if ranks did not arrive in time, with their coordinates.

    Warns:
        RuntimeWarning: on rank 0, if tp or another axis with the policy ``"warn"`` crosses nodes.

    Example:
        ``with meshkit.build_mesh(dp=-1, tp=8) as mesh: train(mesh)``
    """
    __tracebackhide__ = True
    given: dict[str, object] = {
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
        "share": None if share is True else share,
    }
    if sizes is not None or not axes.keys() <= STANDARD_AXES:
        error = device_mesh_error((sizes,), {**axes, **drop_none(**given)})
        if error is not None:
            raise error
    call = Call("build_mesh", () if sizes is None else (sizes,), {**axes, **given}, ("sizes",))
    world = world_to_join()
    with announcing_failure(world, call):
        merged, nesting = read_sizes(sizes, axes, order)
        plan = plan_groups(
            merged,
            world.world_size,
            world.size_evidence,
            order=nesting,
            groups=groups,
            ranks=ranks,
            within=within,
            across=across,
        )
        options = GroupOptions.of(
            plan,
            world,
            timeout=timeout,
            backend=backend,
            crossing=crossing,
            on_one_node=[axis for axis in within or () if axis not in (across or ())],
            place=place,
        )
        wait = parse_timeout("arrival_timeout", arrival_timeout) or options.timeouts.default
        check_share(share)
    try:
        job = current_job() or join(world, options.backend, None, options.timeouts.default, wait)
        job = replace(job, arrival_timeout=wait or job.arrival_timeout)
        registry = GroupRegistry(call, is_private=not share)
        default = options.timeouts.default or job.timeout
        options = options._replace(timeouts=options.timeouts._replace(default=default))
        proposal = MeshProposal(plan, job, options, registry, call)
        if job.arrival is not None:
            return Mesh(*open_mesh_of_job(proposal, job.arrival))
        proposal = place_ranks(proposal)
        return Mesh(proposal, open_groups(proposal))
    except RankTimeoutError as error:
        if error.missing_ranks:
            size, some = world.world_size, f"ranks=range({max(1, world.world_size // 2)})"
            line = f"All {size} ranks call build_mesh; with {some}, for example, the others are "
            error.evidence += (f"{line}outside the mesh.",)
        raise
