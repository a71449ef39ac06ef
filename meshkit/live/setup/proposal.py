"""Propose a mesh, agree on it, and open its groups on all ranks or on none.

A rank that has no mesh to propose reports its error instead.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.distributed as dist

from ...core import VERSION
from ...core.call import Call, format_value
from ...core.errors import MeshkitError, SpecError
from ...core.group_plan import GroupPlan
from ...core.layout import Layout
from ...core.text import Ints, format_sizes
from ...launch.agreement.consensus import commit
from ...launch.agreement.proposal import Proposal
from ...launch.current_job import Job, current_job
from ...launch.log import Startup, is_logged, log_line, log_slowest_ranks
from ...launch.rendezvous.rendezvous import announce_init_failure
from ...launch.store.deadline import Deadline, format_timeout
from ...launch.torch_internals import connects_at_creation
from ...launch.world import World
from ..groups.create import FoundGroups, GroupOptions, complete_count, create_groups, find_groups
from ..groups.destroy import destroy_groups
from ..groups.mesh_groups import NO_GROUPS, GroupRegistry, Groups, MeshGroups

if TYPE_CHECKING:
    from ...core.topology import Topology

CONFLICT = "ranks disagree about the mesh; no process group was created."
FAILURE = "a rank could not create its groups of the mesh; all are closed again."
STORE_TIMEOUT = 5.0  # seconds that a rank that fails may take to reach the store


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

    def before_creation(self) -> Proposal:
        """Return the proposal on which ranks agree before a group is created."""
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
        describe = partial(describe_coordinate, plan.layout)
        return Proposal(self.built_by.name, fields, CONFLICT, describe_rank=describe)


def open_groups(proposal: MeshProposal) -> MeshGroups:
    """Agree on a mesh, and create its missing groups. Collective over the world."""
    plan, job, options = proposal.plan, proposal.job, proposal.options
    before = proposal.before_creation()
    found = find_groups(plan, job, options, proposal.registry)
    phases = dict(job.startup.phases)
    began = time.monotonic()
    round_id = job.agree(before)
    phases["agreement"] = time.monotonic() - began
    warning = None
    if options.crossing:
        from .hosts import check_crossing

        warning = check_crossing(plan.layout, options, job, proposal.built_by, round_id)
    # A view that creates and checks nothing cannot fail on a rank: the ranks need not agree again.
    is_view = bool(proposal.registry.open_views) and not proposal.registry.external_groups
    is_safe = is_view and found.is_complete and not options.crossing
    participants = None if is_safe else job.participants()
    report = None
    if participants is not None and job.world.rank == 0 and is_logged():
        report = partial(log_slowest_ranks, participants, call=proposal.built_by)
    after = before._replace(fields={}, conflict_summary=FAILURE, stage="the end of ")
    began = time.monotonic()
    groups = commit(
        after._replace(seconds=phases, report=report),
        participants,
        job.arrival_timeout,
        partial(_create, proposal, found, round_id, warning, phases),
        lambda groups: destroy_groups(groups.created),
        connects=connects_at_creation(before.fields["backend"]),
    )
    phases["end"] = time.monotonic() - began - phases.get("groups", 0.0)
    if job.world.rank == 0:
        sizes = plan.layout.sizes_text
        seconds = sum(phases.get(phase, 0.0) for phase in ("agreement", "groups", "end"))
        numbers = len({*groups.by_key.values()}), len(groups.created), seconds
        log_line("built a mesh: %s, %d groups, %d created, %.2f s", sizes, *numbers)
    registry, call = proposal.registry, proposal.built_by
    return MeshGroups(
        plan,
        job.world.rank,
        groups,
        registry,
        registry.register(plan.layout, groups, round_id),
        round_id,
        call,
        proposal.extended_by or call,
        weakref.ref(cast(dist.ProcessGroup, dist.group.WORLD)),
        Startup(phases),
    )


def _create(
    proposal: MeshProposal,
    found: FoundGroups,
    round_id: int,
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
            from ..groups.send_time import log_send_time

            backend = proposal.options.backend or str(job.world.backend)
            log_send_time(proposal.plan, groups, backend, connect_timeout)
        if warning is not None:
            raise warning
        if registry.external_groups:
            from ..groups.external import check_same_groups

            check_same_groups(job, round_id, registry.external_groups)
    except BaseException as error:
        destroy_groups(groups.created)
        complete_count(found, job, proposal.options, before)
        if isinstance(error, MeshkitError):
            error.quote(proposal.built_by)
        raise
    return groups


def describe_coordinate(layout: Layout, rank: int) -> str:
    """Return the coordinate of a rank as text; ``outside`` for a rank outside the layout."""
    return format_sizes(layout.coordinate(rank)) if rank in layout else "outside"


def _describe_place(place: Topology) -> str:
    """Return a topology as text, with a digest, as its text is not unique."""
    nodes = place.node_of(range(place.world_size))
    return f"{place} ({hashlib.sha256(nodes.tobytes()).hexdigest()[:8]})"


def _describe_ranks(ranks: Ints) -> str:
    """Return the ranks by position as text, with a digest, as long lists are shortened."""
    return f"{format_value(ranks)} ({hashlib.sha256(ranks.tobytes()).hexdigest()[:8]})"


@contextmanager
def announcing_failure(world: World, call: Call) -> Iterator[None]:
    """Report a MeshkitError that leaves the block to the other ranks."""
    try:
        yield
    except MeshkitError as error:
        if isinstance(error, SpecError) and error.num_ranks is not None:
            from ...launch.detect import propose_command

            propose_command(error, world, error.num_ranks)
        announce_failure(world, error.quote(call))
        raise


def announce_failure(world: World, error: MeshkitError) -> None:
    """Report an error of this rank, in the round that the other ranks enter.

    Local. It takes about 10 s at most.
    """
    job = current_job()
    proposal = Proposal("build_mesh", {}, CONFLICT)
    if job is None:
        announce_init_failure(proposal, world, Deadline.after(STORE_TIMEOUT), error)
    else:
        job.announce_failure(proposal, error)
