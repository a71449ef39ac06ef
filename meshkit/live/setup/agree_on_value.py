"""Agreement rounds of the ranks of one mesh."""

from __future__ import annotations

from functools import partial

from ...launch.agreement.proposal import Proposal
from ...launch.current_job import Job
from ..group_registry import MeshGroups
from .proposal import describe_coordinate


def agree_on_value(mesh: MeshGroups, job: Job, name: str, value: object) -> None:
    """Compare a value of the caller over the ranks of a mesh. Collective over them.

    Cost: 4 store operations per rank.
    """
    mesh.check_usable()
    conflict = f"ranks disagree about {name}."
    describe = partial(describe_coordinate, mesh.plan.layout)
    proposal = Proposal("mesh.agree", {name: repr(value)}, conflict, describe_rank=describe)
    agree_in_mesh(proposal, mesh, job)


def agree_in_mesh(proposal: Proposal, mesh: MeshGroups, job: Job) -> None:
    """Agree over the ranks of a mesh. Collective over them.

    A mesh of the whole world takes part in the rounds of the world. A rank that makes another call
    of the world is then reported.
    """
    layout = mesh.plan.layout
    if layout.num_ranks == job.world.world_size:
        job.agree(proposal)
    else:
        ranks = sorted(int(rank) for rank in layout.grid.flat)
        job.agree(proposal, ranks=ranks, prefix=f"mesh/{mesh.round_id}/")
