"""Propose a mesh, agree on it, and open its groups on all ranks or on none; and close it.

A mesh is proposed by ``build_mesh``, by a view, or over groups of the user. A rank that has no mesh
to propose announces its error instead::

    plan_groups -> round: all_same -> create_groups -> round: all_done -> Mesh
"""

from __future__ import annotations

import hashlib
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..call import Call, Verbatim, format_value
from ..errors import VERSION, MeshkitError, RankTimeoutError, SpecError
from ..launch.agreement import ENDED, Agreement
from ..launch.command import propose_command
from ..launch.creation import Creation, create_on_all
from ..launch.disagreement import describe_coordinate
from ..launch.job import Job, current_job, require_job
from ..launch.join import announce_init_failure
from ..launch.log import Startup, log_line
from ..launch.store import Store
from ..launch.times import Time, parse_timeout
from ..launch.torch_groups import backend_of, waits_for_peers
from ..launch.world import World
from ..layout.axes import check_axes_exist, check_names, parse_axes
from ..layout.crossings import placed
from ..layout.group_plan import GroupPlan, check_in_world, plan_view
from ..layout.layout import Layout
from ..layout.ranks import Strides
from ..layout.sizes import check_view_names, merge_sizes
from ..layout.topology import Topology
from ..text import Ints, article, format_sizes
from .backends import inherit_backends, parse_backends
from .device_mesh import check_members
from .groups import (
    check_same_groups,
    complete_count,
    create_groups,
    destroy_groups,
    is_destroyed_collectively,
)
from .hosts import check_crossing, gather_hosts
from .registry import NO_GROUPS, GroupRegistry, Groups, MeshGroups
from .requests import (
    FoundGroups,
    GroupOptions,
    GroupTimeouts,
    check_orders,
    list_requests,
    match_groups,
)
from .status import within_guard

CONFLICT = "ranks disagree about the mesh; no process group was created."
FAILURE = "a rank could not create its groups of the mesh; all are closed again."


class MeshProposal(NamedTuple):
    """The mesh that this rank asks for: computed locally, and compared before a group is created.

    Every rank computes its proposal from the arguments of its own call. :meth:`fields` is the part
    that must be equal on all ranks. The groups are created only if it is.
    """

    plan: GroupPlan  # the layout and the groups
    job: Job  # the current job, with the arrival timeout of this mesh
    options: GroupOptions
    registry: GroupRegistry  # the groups that exist
    built_by: Call

    def fields(self) -> dict[str, str]:
        """Return what must be equal on all ranks before a group is created."""
        plan, options, registry = self.plan, self.options, self.registry
        place, ranks = options.place, plan.layout.ranks
        fields = {
            "sizes": plan.layout.sizes_text,
            "place": str(place),
            "ranks": str(ranks),
            "groups": ", ".join(" ".join(axes) for axes in plan.requested) or "the usual",
            **options.fields(self.job),
            "meshkit": VERSION,
            "torch": torch.__version__.partition("+")[0],
            "history": f"{dist.get_pg_count()} groups",
        }
        if isinstance(place, Topology):
            fields["place"] = f"{place} ({_digest(place.node_of(range(place.world_size)))})"
        if not isinstance(ranks, range):
            fields["ranks"] = f"{format_value(ranks)} ({_digest(ranks)})"
        fields |= options.facts
        if registry.is_private:
            fields["share"] = "False"
        if self.job.counts.unbound:
            fields["binding"] = "hidden by meshkit.unbound()"
        if options.crossing:
            fields["crossing"] = format_sizes(dict(sorted(options.crossing.items())))
        return fields | registry.fields()


def _digest(numbers: Ints) -> str:
    """Return a digest of numbers, whose text is shortened and so not unique."""
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:8]


@contextmanager
def announcing_failure(world: World, call: Call) -> Iterator[None]:
    """Announce an error that leaves the block, in the round that the other ranks enter."""
    __tracebackhide__ = True
    try:
        yield
    except BaseException as error:
        if isinstance(error, SpecError):
            error = propose_command(error, world)
        if isinstance(error, MeshkitError):
            error.quote(call)
        job = current_job()
        if job is None:
            announce_init_failure(world, error, CONFLICT)
        elif (agreement := job.agreement(call.name, CONFLICT)) is not None:
            agreement.fail(error)
        raise error


def place_ranks(proposal: MeshProposal) -> MeshProposal:
    """Return the proposal with its ranks on the nearest links, if it requests that.

    Collective over the world if the nodes must be found.
    """
    plan, job, options, _, call = proposal
    topology = options.place
    if topology is False:
        return proposal
    if not isinstance(topology, Topology):
        fix = "place=meshkit.Topology.of_hosts([...]), with a host for each rank."
        hosts = gather_hosts(job, call.name, proposal.fields(), CONFLICT, fix)
        topology = Topology.of_hosts(hosts)
    with announcing_failure(job.world, call):
        plan = GroupPlan.of(placed(plan.layout, topology), plan.requested)
        check_orders(plan)
    return proposal._replace(plan=plan)


# ------------------------------------------------------------------ a view


def propose_view(
    mesh: MeshGroups,
    first: MeshProposal,
    sizes: Mapping[str, int] | None,
    axes: Mapping[str, int],
    order: str | Iterable[str] | None,
    groups: str | Sequence[str | Iterable[str]] | None,
    timeout: Time | Mapping[str, Time] | None,
    arrival_timeout: Time | None,
    backend: str | Mapping[str, object] | None,
    share: bool,
) -> MeshProposal:
    """Return the proposal of a view. Local. See :meth:`meshkit.Mesh.view`."""
    given = {"order": order, "groups": groups, "timeout": timeout}
    keywords = {**axes, **given, "arrival_timeout": arrival_timeout, "backend": backend}
    keywords["share"] = None if share is True else share
    call = Call("mesh.view", () if sizes is None else (sizes,), keywords, ("sizes",))
    job, options = first.job, first.options
    with announcing_failure(job.world, call):
        mesh.check_open()
        check_view_names(axes)
        check_share(share)
        if sizes is None and not axes and order is None:  # the same axes
            sizes, order = mesh.plan.layout.sizes, mesh.plan.layout.axes
            groups = mesh.plan.requested if groups is None else groups
        plan = plan_view(mesh.plan.layout, merge_sizes(sizes, axes), order, groups)
        check_orders(plan)
        name, backends = parse_backends(plan, backend)
        if name is None:  # for all other groups as in the mesh
            name = options.backend
            backends = inherit_backends(mesh.plan, options.backends, plan, backends)
        else:
            job = with_backend(job, name)
        timeouts = GroupTimeouts.of(plan, timeout, options.timeouts.default)
        wait = parse_timeout("arrival_timeout", arrival_timeout)
        if timeout is None or isinstance(timeout, Mapping):
            timeouts = options.timeouts.inherit(mesh.plan, plan, timeouts)
        else:  # one timeout for all groups sets the arrival timeout too
            wait = wait or timeouts.default
    job = replace(job, arrival_timeout=wait or job.arrival_timeout)
    options = GroupOptions(name, timeouts, backends=backends)
    registry = mesh.registry if share else GroupRegistry(call, is_private=True)
    return MeshProposal(plan, job, options, registry, call)


def check_share(share: object) -> None:
    """Raise if ``share`` is neither True nor False."""
    if not isinstance(share, bool):
        fix = "share=False for groups of its own, or leave it out."
        raise SpecError(f"share is {share!r}.", fix=fix)


def with_backend(job: Job, backend: str) -> Job:
    """Return the job with the device that tensors of a backend have: those of gloo are on the CPU.

    A backend other than gloo has the device with which this process joined the job.
    """
    device = torch.device("cpu") if backend == "gloo" else require_job().world.device
    return replace(job, world=replace(job.world, device=device))


# ------------------------------------------------------------------ groups of the user


def propose_from_groups(layout: object, groups: object) -> MeshProposal:
    """Return the proposal of a mesh over groups of the user. Local."""
    job = require_job()
    shown = dict.fromkeys(groups, Verbatim("...")) if isinstance(groups, Mapping) else groups
    call = Call("Mesh.from_groups", (layout, shown))
    with announcing_failure(job.world, call):
        if not isinstance(layout, Layout) or not isinstance(groups, Mapping):
            raise SpecError(
                f"the arguments are {article(type(layout).__name__)} and"
                f" {article(type(groups).__name__)}, not a Layout and a dict.",
                fix="for example Mesh.from_groups(Layout(dp=4, tp=2), "
                '{"dp": dp_group, "tp": tp_group}).',
            )
        for key in groups:
            names = (key,) if isinstance(key, str) else key
            if not isinstance(names, tuple) or not all(isinstance(axis, str) for axis in names):
                fix = 'for example {"dp": group, "dp tp": group}.'
                raise SpecError(f"{key!r} does not name axes.", fix=fix)
        return _propose(job, layout, groups, call)


def propose_from_device_mesh(device_mesh: object) -> MeshProposal:
    """Return the proposal of a mesh over a DeviceMesh of the user. Local."""
    job, call = require_job(), Call("Mesh.from_device_mesh", (Verbatim("device_mesh"),))
    with announcing_failure(job.world, call):
        if not isinstance(device_mesh, DeviceMesh):
            fix = "a torch.distributed.device_mesh.DeviceMesh."
            raise SpecError(f"the argument is {article(type(device_mesh).__name__)}.", fix=fix)
        grid, names = device_mesh.mesh, device_mesh.mesh_dim_names
        if names is None:
            example = tuple(f"axis{dim}" for dim in range(grid.ndim))
            arguments = f"{device_mesh.device_type!r}, {tuple(grid.shape)}"
            fix = f"for example init_device_mesh({arguments}, mesh_dim_names={example})."
            raise SpecError("its dimensions have no names.", fix=fix)
        check_names(names)
        sizes = dict(zip(names, grid.shape, strict=True))
        layout = Layout(ranks=grid.flatten().tolist(), **sizes)
        groups: dict[str, object] = dict.fromkeys(names)  # None on a rank outside
        try:
            if device_mesh.get_coordinate() is not None:
                groups = {name: device_mesh.get_group(name) for name in names}
        except RuntimeError as error:
            line = "one of its groups has been destroyed."
            raise SpecError(line, str(error), fix="a DeviceMesh with all its groups.") from error
        return _propose(job, layout, groups, call)


def _propose(job: Job, layout: Layout, groups: Mapping[Any, object], call: Call) -> MeshProposal:
    size = job.world.world_size
    fix = f"a mesh of ranks from 0 to {size - 1}."
    check_in_world(max(layout.ranks), size, job.world.size_evidence, fix=fix)
    plan = GroupPlan.of(layout, [*groups])
    check_orders(plan)
    external: dict[Strides, dist.ProcessGroup | None] = {}
    for names, value in groups.items():
        axes = parse_axes(names)
        check_axes_exist(axes, layout.axes)
        group = None
        if job.world.rank in layout:
            group = _check_group(axes, value, layout.peers(job.world.rank, *axes), job.world.rank)
        members = layout.strides(*axes)
        # groups of one rank have no members here; the first one serves all
        if external.setdefault(members, group) is not group and members:
            raise SpecError(f"two groups over {_describe_axes(axes)}.", fix="pass one of them.")
    registry = GroupRegistry(call, external, ", ".join(map(_describe_axes, plan.requested)))
    return MeshProposal(plan, job, GroupOptions(None, GroupTimeouts(job.timeout)), registry, call)


def _check_group(
    axes: tuple[str, ...], group: object, members: Ints, rank: int
) -> dist.ProcessGroup:
    if not isinstance(group, dist.ProcessGroup):
        raise SpecError(
            f"the value for {_describe_axes(axes)} is no process group of rank {rank}.",
            f"It is {group!r}; the layout has {members.tolist()}.",
            fix=f"the group over {members.tolist()}, which dist.new_group created on all ranks.",
        )
    check_members(axes, group, members, fix=f"the group over {members.tolist()}, in this order.")
    return group


def _describe_axes(axes: tuple[str, ...]) -> str:
    return " ".join(axes) or "the whole mesh"


# ------------------------------------------------------------------ agree and create


def open_groups(proposal: MeshProposal) -> MeshGroups:
    """Agree on a mesh, and create its missing groups. Collective; one thread at a time."""
    with proposal.job.counts.lock:
        return _open_groups(proposal)


def _open_groups(proposal: MeshProposal) -> MeshGroups:
    plan, job, options, registry, call = proposal
    describe = partial(describe_coordinate, plan.layout)
    requests = list_requests(plan, options, options.backend or backend_of())
    found = match_groups(plan, requests, job, registry)
    phases = dict(job.startup.phases)
    began = time.monotonic()
    number = job.agree(call.name, proposal.fields(), CONFLICT, describe=describe)
    phases["agreement"] = time.monotonic() - began
    warning = None
    if options.crossing:
        warning = check_crossing(plan.layout, options, job, call)
    # A view that creates and checks nothing cannot fail on a rank: the ranks need not agree again.
    is_view = bool(registry.open_views) and not registry.external_groups
    is_safe = is_view and not found.missing and not options.crossing
    began, before = time.monotonic(), dist.get_pg_count()
    try:
        groups = create_on_all(
            None if is_safe else job.agreement(call.name, FAILURE, describe=describe),
            job.arrival_timeout,
            partial(_create, proposal, found, number, warning, phases),
            partial(_undo, proposal, number),
            connects=any(waits_for_peers(request.key[1]) for request in found.requests),
        )
    except BaseException:
        complete_count(found, job, options, before)
        raise
    phases["end"] = time.monotonic() - began - phases.get("groups", 0.0)
    if job.world.rank == 0:
        seconds = sum(phases.get(phase, 0.0) for phase in ("agreement", "groups", "end"))
        counts = len({*groups.by_key.values()}), len(groups.created), seconds
        text = "built a mesh: %s, %d groups, %d created, %.2f s"
        log_line(text, plan.layout.sizes_text, *counts)
    view_id = registry.register(plan.layout, groups, number)
    is_whole = (
        plan.layout.rank_positions.is_identity and len(plan.layout.ranks) == dist.get_world_size()
    )
    if registry.is_private:
        job.counts.private += view_id == 0
        registry.number = registry.number or job.counts.private
    elif is_whole and not registry.external_groups:
        job.counts.shared = registry
    world = weakref.ref(cast(dist.ProcessGroup, dist.group.WORLD))
    rank, startup = job.world.rank, Startup(phases)
    return MeshGroups(plan, rank, groups, registry, view_id, number, call, world, startup)


def _create(
    proposal: MeshProposal,
    found: FoundGroups,
    number: int,
    warning: RuntimeWarning | None,
    phases: dict[str, float],
    creation: Creation,
) -> Groups:
    """Create the missing groups on this rank, and check the external ones."""
    job, registry, groups = proposal.job, proposal.registry, NO_GROUPS
    try:
        began = time.monotonic()
        groups = create_groups(found, job, proposal.options, creation)
        phases["groups"] = time.monotonic() - began
        if warning is not None:
            raise warning
        if registry.external_groups:
            check_same_groups(job, number, registry.external_groups)
        if (part := _part_of_spares(proposal, number)) is not None:
            part.run(partial(part.add, ENDED, 0))  # spares see by it that it is open
    except BaseException as error:
        destroy_groups(groups.created)
        if isinstance(error, MeshkitError):
            error.quote(proposal.built_by)
        raise
    return groups


def _part_of_spares(proposal: MeshProposal, number: int) -> Store | None:
    """Return the store of a mesh that leaves ranks out, on its first rank; else None."""
    layout, job = proposal.plan.layout, proposal.job
    is_first = job.world.rank == layout.ranks[0] and not proposal.registry.next_view_id
    if job.store is None or not is_first or layout.num_ranks == job.world.world_size:
        return None
    return job.store.part(f"mesh/{number}")


def _undo(proposal: MeshProposal, number: int, groups: Groups) -> None:
    """Destroy the groups of a mesh that is not complete: on NCCL not without the missing ranks."""
    job = proposal.job
    if (part := _part_of_spares(proposal, number)) is not None:
        part.try_run(partial(part.delete, ENDED))
    is_timeout = isinstance(sys.exc_info()[1], RankTimeoutError)
    if is_timeout and is_destroyed_collectively(groups.created):
        job.abort()
    destroy_groups(groups.created)


# ------------------------------------------------------------------ while it is open


def agree_in_mesh(
    mesh: MeshGroups, job: Job, call: str, facts: Mapping[str, str], summary: str
) -> None:
    """Agree over the ranks of a mesh; over the whole world in the rounds of the world.

    Inside a guard ranks wait no longer for each other than its timeout.
    """
    limit = within_guard(job.arrival_timeout)
    agreement = agreement_of(mesh, job, call, summary, limit)
    if agreement is not None:
        agreement.same(facts)


def agreement_of(
    mesh: MeshGroups, job: Job, call: str, summary: str, limit: timedelta | None = None
) -> Agreement | None:
    """Return the next agreement of the ranks of a mesh, as :meth:`Job.agreement` does."""
    layout, ranks, part = mesh.plan.layout, None, ""
    describe = partial(describe_coordinate, layout)
    if layout.num_ranks < job.world.world_size:
        ranks, part = sorted(int(rank) for rank in layout.grid.flat), f"mesh/{mesh.round_id}"
    return job.agreement(call, summary, ranks=ranks, part=part, limit=limit, describe=describe)
