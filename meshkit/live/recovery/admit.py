"""Admit the processes that were started anew with the numbers of lost ranks.

The first rank of the mesh looks at the store and broadcasts the answer: 0, or the number of the
recovery round that admits the newcomers. All ranks then go through that round, as after a loss::

    rank 0   looks: rank 3 waits, writes its admission to round 2 ... broadcasts 2 ... round 2
    rank 1   ........................................................ reads 2 ........ round 2
    rank 3   waits in init ........ reads its admission ............................... round 2
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist

from ...core.errors import MeshkitError
from ...launch.agreement.admission import Admission
from ...launch.current_job import Job
from ...launch.recovery.rejoin import RECOVERIES, origin_of
from ...launch.recovery.waiting import find_newcomers, invite, next_recovery
from ...launch.store.deadline import STORE_GRACE, store_call
from ..group_registry import MeshGroups
from ..guard.mesh_guard import guard_mesh
from ..guard.roll_call import GuardState
from .recover import Failure, Recovered, Rounds
from .recovery import Recovery
from .request import check_can_recover


def admit_newcomers(rounds: Rounds, state: GuardState) -> Recovered | None:
    """Return the proposal and the groups of a mesh with the newcomers; None if nobody waits.

    Collective over the mesh. See :meth:`meshkit.Mesh.admit`.
    """
    mesh, job = rounds.mesh, rounds.proposal.job
    check_can_recover(mesh, job)
    if mesh.rank not in mesh.plan.layout:
        line = f"rank {mesh.rank} is a spare, outside the mesh."
        raise MeshkitError(line, fix="mesh.recover(), which waits for the next loss or admission.")
    if not origin_of(job).lost:
        return None
    with guard_mesh(mesh, job, state, job.arrival_timeout):
        number = _share_answer(mesh, job, rounds.last)
    if not number:
        return None
    cast("dict[str, int]", job.counter)[RECOVERIES] = number - 1
    return rounds.run(Failure(is_known=False, silent=()))


def _share_answer(mesh: MeshGroups, job: Job, last: Recovery) -> int:
    """Return the round in which newcomers are admitted, 0 if nobody waits. Collective."""
    first, number = int(mesh.plan.layout.grid.flat[0]), 0
    if mesh.rank == first:
        number = store_call(job.world, STORE_GRACE, lambda: _look(mesh, job, last))
    answer = torch.tensor([number], device=job.world.device)
    dist.broadcast(answer, first, group=mesh.get(()))
    return int(answer)


def _look(mesh: MeshGroups, job: Job, last: Recovery) -> int:
    """Admit those who wait in the next round, and return its number; 0 if nobody waits."""
    waiting_in, holders = find_newcomers(job)
    if not holders:
        return 0
    layout, first_ranks = mesh.plan.layout, [int(rank) for rank in origin_of(job).ranks]
    admission = Admission(
        len(first_ranks),
        (*first_ranks, *holders),
        tuple(holders.values()),
        layout.sizes,
        tuple(int(rank) for rank in layout.grid.flat),
        last.full_sizes,
        job.seed,
    )
    number = next_recovery(job)
    invite(job, waiting_in, number, admission)
    return number
