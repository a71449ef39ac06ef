"""Propose a mesh, agree on it, and open its groups on all ranks or on none; and close it.

A round compares the proposals before a group exists, the missing groups are created, and a second
round confirms that all ranks have them. A rank that has no mesh to propose announces its error
instead::

    build_mesh -> plan_groups -> join, if there is no job
               -> round: all_same -> create_groups -> round: all_done -> Mesh
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from ..core import VERSION
from ..core.call import Call, format_value
from ..core.errors import MeshkitError, SpecError
from ..core.group_plan import Axes, GroupPlan, plan_view
from ..core.hang import describe_coordinate
from ..core.sizes import check_view_names, merge_sizes
from ..core.text import Ints, format_sizes
from ..core.topology import Topology
from ..launch.default_group import commit
from ..launch.detect import propose_command
from ..launch.job import Job, current_job
from ..launch.join import announce_init_failure
from ..launch.log import Startup, log_line
from ..launch.times import TIMES, Time, format_timeout, parse_timeout
from ..launch.torch_internals import abort_all_groups, connects_at_creation
from ..launch.world import World
from .group_registry import NO_GROUPS, GroupRegistry, Groups, MeshGroups
from .groups import (
    FoundGroups,
    GroupOptions,
    GroupTimeouts,
    check_orders,
    check_same_groups,
    complete_count,
    create_groups,
    destroy_groups,
    find_groups,
    is_destroyed_collectively,
    log_send_time,
)
from .hosts import check_crossing

CLOSED = "closed/{}"  # in the store of a mesh: a rank has closed it
WAITING = "waiting"  # in the store of a mesh: how many spares wait for a loss
CONFLICT = "ranks disagree about the mesh; no process group was created."
NOT_CLOSED = "ranks disagree about the end of a mesh."
FAILURE = "a rank could not create its groups of the mesh; all are closed again."


class MeshProposal(NamedTuple):
    """The mesh that this rank proposes to all ranks of the world.

    Attributes:
        plan: the layout and the groups.
        job: the current job, with the arrival timeout of this mesh.
        options: the options of the groups.
        registry: the groups that exist.
        built_by: the call that builds the mesh.
        extended_by: the call that builds an equal mesh with more groups; None is ``built_by``.
    """

    plan: GroupPlan
    job: Job
    options: GroupOptions
    registry: GroupRegistry
    built_by: Call
    extended_by: Call | None = None

    def fields(self) -> dict[str, str]:
        """Return what must be equal on all ranks before a group is created."""
        plan, options, registry = self.plan, self.options, self.registry
        place, ranks = options.place, plan.layout.ranks
        fields = {
            "sizes": plan.layout.sizes_text,
            "place": str(place) if isinstance(place, bool) else _describe_place(place),
            "ranks": str(ranks) if isinstance(ranks, range) else _describe_ranks(ranks),
            "groups": ", ".join(" ".join(axes) for axes in plan.requested) or "the usual",
            "backend": options.backend or str(self.job.world.backend),
            "timeout": str(options.timeouts),
            "arrival_timeout": format_timeout(self.job.arrival_timeout),
            "meshkit": VERSION,
            "torch": torch.__version__,
            "history": f"{dist.get_pg_count()} groups",
        }
        if options.crossing:
            fields["crossing"] = format_sizes(options.crossing)
        if registry.open_views:
            fields["open"] = registry.describe_views()
        if registry.external_axes:
            fields["external"] = registry.external_axes
        return fields


def open_groups(proposal: MeshProposal) -> MeshGroups:
    """Agree on a mesh, and create its missing groups. Collective over the world."""
    plan, job, options, registry = (
        proposal.plan,
        proposal.job,
        proposal.options,
        proposal.registry,
    )
    call, describe = proposal.built_by, partial(describe_coordinate, plan.layout)
    found = find_groups(plan, job, options, registry)
    phases = dict(job.startup.phases)
    began = time.monotonic()
    number = job.agree(call.name, proposal.fields(), CONFLICT, describe=describe)
    phases["agreement"] = time.monotonic() - began
    warning = None
    if options.crossing:
        warning = check_crossing(plan.layout, options, job, call, number)
    # A view that creates and checks nothing cannot fail on a rank: the ranks need not agree again.
    is_view = bool(registry.open_views) and not registry.external_groups
    is_safe = is_view and found.is_complete and not options.crossing
    began = time.monotonic()
    groups = commit(
        None if is_safe else job.round(call.name, summary=FAILURE),
        call.name,
        job.arrival_timeout,
        partial(_create, proposal, found, number, warning, phases),
        lambda groups: destroy_groups(groups.created),
        connects=connects_at_creation(options.backend or str(job.world.backend)),
        describe=describe,
    )
    phases["end"] = time.monotonic() - began - phases.get("groups", 0.0)
    if job.world.rank == 0:
        seconds = sum(phases.get(phase, 0.0) for phase in ("agreement", "groups", "end"))
        counts = len({*groups.by_key.values()}), len(groups.created), seconds
        text = "built a mesh: %s, %d groups, %d created, %.2f s"
        log_line(text, plan.layout.sizes_text, *counts)
    return MeshGroups(
        plan,
        job.world.rank,
        groups,
        registry,
        registry.register(plan.layout, groups, number),
        number,
        call,
        proposal.extended_by or call,
        weakref.ref(cast(dist.ProcessGroup, dist.group.WORLD)),
        Startup(phases),
    )


def _create(
    proposal: MeshProposal,
    found: FoundGroups,
    number: int,
    warning: RuntimeWarning | None,
    phases: dict[str, float],
    connect_timeout: timedelta,
) -> Groups:
    """Create the missing groups on this rank, and check the external ones.

    An error quotes the call, for the ranks to which it is reported.
    """
    job, registry, groups = proposal.job, proposal.registry, NO_GROUPS
    before = dist.get_pg_count()
    try:
        began = time.monotonic()
        groups = create_groups(found, job, proposal.options, connect_timeout)
        phases["groups"] = time.monotonic() - began
        if job.world.rank == 0 and "pp" in found.plan.layout.axes:
            backend = proposal.options.backend or str(job.world.backend)
            log_send_time(proposal.plan, groups, backend, connect_timeout)
        if warning is not None:
            raise warning
        if registry.external_groups:
            check_same_groups(job, number, registry.external_groups)
    except BaseException as error:
        destroy_groups(groups.created)
        complete_count(found, job, proposal.options, before)
        if isinstance(error, MeshkitError):
            error.quote(proposal.built_by)
        raise
    return groups


def _describe_place(place: Topology) -> str:
    """Return a topology as text, with a digest, as its text is not unique."""
    nodes = place.node_of(range(place.world_size))
    return f"{place} ({hashlib.sha256(nodes.tobytes()).hexdigest()[:8]})"


def _describe_ranks(ranks: Ints) -> str:
    """Return the ranks by position as text, with a digest, as long lists are shortened."""
    return f"{format_value(ranks)} ({hashlib.sha256(ranks.tobytes()).hexdigest()[:8]})"


@contextmanager
def announcing_failure(world: World, call: Call) -> Iterator[None]:
    """Announce an error that leaves the block, in the round that the other ranks enter."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, SpecError) and error.num_ranks is not None:
            propose_command(error, world, error.num_ranks)
        if isinstance(error, MeshkitError):
            error.quote(call)
        job = current_job()
        if job is None:
            announce_init_failure(world, error, CONFLICT)
        elif (round := job.round(call.name, summary=CONFLICT)) is not None:
            round.fail(error)
        raise


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


def agree_on_value(mesh: MeshGroups, job: Job, name: str, value: object) -> None:
    """Compare a value of the caller over the ranks of a mesh. Collective over them.

    Cost: 4 store operations per rank.
    """
    mesh.check_usable()
    _agree_in_mesh(mesh, job, "mesh.agree", {name: repr(value)}, f"ranks disagree about {name}.")


def _agree_in_mesh(
    mesh: MeshGroups, job: Job, call: str, facts: Mapping[str, str], summary: str
) -> None:
    """Agree over the ranks of a mesh. Collective over them.

    A mesh of the whole world takes part in the rounds of the world. A rank that makes another call
    of the world is then reported.
    """
    layout = mesh.plan.layout
    describe = partial(describe_coordinate, layout)
    ranks, part = None, ""
    if layout.num_ranks != job.world.world_size:
        ranks, part = sorted(int(rank) for rank in layout.grid.flat), f"mesh/{mesh.round_id}"
    job.agree(call, facts, summary, describe=describe, ranks=ranks, part=part)


def close_mesh(mesh: MeshGroups, job: Job, *, failed: bool) -> None:
    """Destroy the created groups of a mesh that no open view uses.

    Local on gloo. Collective over the mesh on NCCL, unless an error has ended the block of the
    mesh: then all groups of the job are aborted, as the other ranks may not come.
    """
    layout = mesh.plan.layout
    if not failed and layout.num_ranks < job.world.world_size:
        _release_spares(mesh, job)
    together = is_destroyed_collectively(mesh.groups.by_key.values())
    groups = mesh.release()
    try:
        if together and failed:
            abort_all_groups()
        elif together and layout.num_ranks > 1 and mesh.rank in layout:
            facts = {"mesh": f"{mesh.built_by}, number {mesh.round_id}"}
            _agree_in_mesh(mesh, job, "mesh.close", facts, NOT_CLOSED)
    except BaseException:
        abort_all_groups()
        raise
    finally:
        destroy_groups(groups)


def _release_spares(mesh: MeshGroups, job: Job) -> None:
    """Let spares know that this rank needs no recovery any more. Local.

    Rank 0, which may host the store, stays up to 5 s for spares that wait in a recovery.

    Cost: one store operation.
    """
    if job.store is None or mesh.is_closed or mesh.view_id or mesh.rank not in mesh.plan.layout:
        return
    store = job.store.part(f"mesh/{mesh.round_id}")

    def post() -> None:
        store.set(CLOSED.format(mesh.rank), "")
        store.stay(TIMES.failure_stays, lambda: store.add(WAITING, 0) <= 0)

    store.try_within(TIMES.host_stays + TIMES.failure_stays * store.is_host, post)
