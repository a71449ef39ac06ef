"""Admit the processes that were started anew with the numbers of lost ranks.

The first rank of the mesh looks at the store and broadcasts the answer: 0, or the number of the
recovery round that admits the newcomers. All ranks then go through that round, as after a loss::

    rank 0   looks: rank 3 waits, writes its admission to round 2 ... broadcasts 2 ... round 2
    rank 1   ........................................................ reads 2 ........ round 2
    rank 3   waits in init ........ reads its admission ............................... round 2

    key                                 written by                      goes
    meshkit/<generation>/init/...       the newcomer, as it joins       with its generation
    meshkit/<generation>/admitted       the first rank: which round     with that generation
    recovery/<n>/admission              the first rank: who comes in    with round n

The newcomer then builds the mesh of the job that runs (:func:`open_mesh_of_job`).

A process started anew with the number of a lost rank calls ``init`` and ``build_mesh`` as at the
start of the job. If one waits, all ranks go through a recovery with it: data axes grow again, up to
their sizes before the first loss, and no rank of the mesh changes its coordinate.
``mesh.recovery.new_ranks`` lists the new ranks, which are spares if they do not fill a replica. If
the process dies meanwhile, differs, or takes longer than 30 s, the other ranks go on without it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast

import torch
import torch.distributed as dist

from ..errors import MeshkitError, SpecError
from ..groups.open_mesh import MeshProposal, announcing_failure, open_groups
from ..groups.registry import MeshGroups
from ..guard.guard import guard_mesh
from ..guard.state import GuardState
from ..launch.job import Job, set_current_job
from ..launch.newcomer import Admission, JoinedMesh, find_newcomers, invite
from ..launch.round import COUNT
from ..launch.store import Store
from ..launch.times import TIMES
from ..text import format_sizes
from .recovery import Recovery
from .rounds import KnownFailure, Recovered, Rounds, check_can_recover, propose_again


def admit_newcomers(rounds: Rounds, state: GuardState) -> Recovered | None:
    """Return the proposal and the groups of a mesh with the newcomers; None if nobody waits.

    Collective over the mesh. See :meth:`meshkit.Mesh.admit`.
    """
    mesh, job = rounds.mesh, rounds.proposal.job
    check_can_recover(mesh, job)
    if mesh.rank not in mesh.plan.layout:
        line = f"rank {mesh.rank} is a spare, outside the mesh."
        raise MeshkitError(line, fix="mesh.recover(), which waits for the next loss or admission.")
    if not job.membership.lost:
        return None
    first, number = int(mesh.plan.layout.grid.flat[0]), 0
    with guard_mesh(mesh, job, state, job.arrival_timeout):
        if mesh.rank == first:
            number = _invite_newcomers(mesh, job, rounds.last)
        answer = torch.tensor([number], device=job.world.device)
        dist.broadcast(answer, first, group=mesh.get(()))
        number = int(answer)
        job.check_not_aborted()
    if not number:
        return None
    job.counts.recoveries = number - 1
    return rounds.run(KnownFailure(is_known=False, silent=()))


def _invite_newcomers(mesh: MeshGroups, job: Job, last: Recovery) -> int:
    """Write the admission to the next round, and return its number; 0 if nobody waits. Local."""
    waiting_in, processes = find_newcomers(job)
    if not processes:
        return 0
    layout, ranks_before = mesh.plan.layout, [int(rank) for rank in job.membership.ranks_before]
    admission = Admission(
        len(ranks_before),
        (*ranks_before, *processes),
        tuple(processes.values()),
        layout.sizes,
        tuple(int(rank) for rank in layout.grid.flat),
        last.full_sizes,
        job.seed,
    )
    number = max(job.counts.recoveries, job.membership.number) + 1
    store = cast(Store, job.store)
    while store.run(partial(job.recovery_store(number).has, COUNT)):
        number += 1
    invite(job, waiting_in, number, admission)
    return number


def open_mesh_of_job(proposal: MeshProposal, joined: JoinedMesh) -> Recovered:
    """Return the proposal and the groups of the mesh that the job builds now. Collective.

    The given proposal is the mesh before the first loss, as this rank requests it.
    """
    job, admission = replace(proposal.job, arrival=None), joined.admission
    set_current_job(job)
    full, own = dict(admission.full_sizes), proposal.plan.layout.sizes
    with announcing_failure(job.world, proposal.built_by):
        if full != own:
            raise SpecError(
                f"the job that runs began with another mesh: {format_sizes(full)}.",
                f"This rank was started anew, and requests {format_sizes(own)}.",
                fix="start it with the program and the arguments of the other ranks.",
            )
    new = propose_again(proposal, job, joined.regrouped.after)
    limit = min(job.arrival_timeout, timedelta(seconds=TIMES.newcomer))
    groups = open_groups(new._replace(job=replace(job, arrival_timeout=limit)))
    regrouped, sources, size = joined.regrouped, joined.sources, admission.num_ranks
    return new, groups, Recovery.of(groups, full, regrouped, sources, size)
