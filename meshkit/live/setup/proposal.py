"""MeshProposal: the mesh that a rank proposes, or its report that it has none to propose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from ...core.arrays import Ints
from ...core.call import Call, format_value
from ...core.errors import MeshkitError, SpecError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.text import format_sizes
from ...core.topology.topology import Topology
from ...core.version import VERSION
from ...launch.agreement.consensus import Proposal
from ...launch.current_job import Job, current_job
from ...launch.launchers.table import SPAWN
from ...launch.launchers.world import World
from ...launch.rendezvous.rendezvous import announce_init_failure
from ...launch.store.deadline import Deadline
from ...launch.timeouts import format_timeout
from ..groups.options import GroupOptions
from ..groups.registry import GroupRegistry

CONFLICT = "ranks disagree about the mesh; no process group was created."
FAILURE = "a rank could not create its groups of the mesh; all are closed again."
STORE_TIMEOUT = 5.0  # seconds that a rank that fails may take to reach the store


@dataclass(frozen=True)
class MeshProposal:
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

    @property
    def fields(self) -> dict[str, str]:
        """The values that must be equal on every rank, by name."""
        plan, options, registry = self.plan, self.options, self.registry
        place, ranks = options.place, plan.layout.ranks
        fields = {
            "sizes": format_sizes(plan.layout.sizes),
            "place": _describe_place(place) if isinstance(place, Topology) else str(place),
            "ranks": str(ranks) if isinstance(ranks, range) else _describe_ranks(ranks),
            "groups": ", ".join(" ".join(axes) for axes in plan.requested) or "the usual",
            "crossing": format_sizes(options.crossing),
            "backend": options.backend or str(self.job.world.backend),
            "timeout": str(options.timeouts),
            "arrival_timeout": format_timeout(self.job.arrival_timeout),
            "meshkit": VERSION,
            "torch": torch.__version__,
            "history": f"{dist.get_pg_count()} groups",
        }
        if registry.open_views:
            fields["open"] = registry.describe_views()
        if registry.external_axes:
            fields["external"] = registry.external_axes
        return fields

    def before_creation(self) -> Proposal:
        """Return the proposal on which ranks agree before a group is created."""
        describe = partial(describe_coordinate, self.plan.layout)
        return Proposal(self.built_by.name, self.fields, CONFLICT, describe_rank=describe)

    def after_creation(self) -> Proposal:
        """Return the proposal on which ranks agree when all groups are created."""
        describe = partial(describe_coordinate, self.plan.layout)
        stage = "the end of "
        return Proposal(self.built_by.name, {}, FAILURE, describe_rank=describe, stage=stage)


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
            from ...launch.launchers.program import propose_command

            propose_command(error, world, error.num_ranks)
        first = announce_failure(world, error.quote(call))
        if world.launcher != SPAWN.name:  # spawn collects the errors of its ranks
            error.printed_by = first
        raise


def announce_failure(world: World, error: MeshkitError) -> int | None:
    """Report an error of this rank, in the round that the other ranks enter.

    Local. Returns the rank that has reported the same error before. It takes about 10 s at most.
    """
    job = current_job()
    proposal = Proposal("build_mesh", {}, CONFLICT)
    if job is None:
        return announce_init_failure(proposal, world, Deadline.after(STORE_TIMEOUT), error)
    return job.announce_failure(proposal, error)
