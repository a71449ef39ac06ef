"""Join a job that runs: a process started anew with the number of a rank that the job has lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from ...core.grid.layout import Layout
from ...core.grid.rank_positions import RankPositions
from ...core.regroup import Sources, find_sources
from ...core.regroup import Regrouping, regroup
from ..agreement.admission import Admission, Arrival
from ..agreement.members import Members, MembershipRound, held_steps
from ..current_job import Job, Origin
from ..launchers.world import World
from ..rendezvous.rendezvous import AdmittedError
from ..seeds import seed_all
from ..store import keys
from ..store.deadline import STORE_GRACE, Deadline, store_call
from ..store.foreign_value import read_value
from .rejoin import NEWCOMER_LIMIT, rejoin


def join_running_job(
    admitted: AdmittedError, world: World, timeout: timedelta | None, wait: timedelta
) -> Job:
    """Create the default group with the ranks of the job that admits this process. Collective.

    The job knows the mesh that the process joins by ``build_mesh``.

    Args:
        admitted: the job, and the round in which it admits this process.
        world: this process as it was started.
        timeout: as in ``init``.
        wait: how long ranks wait for each other.
    """
    admission, members = store_call(
        world,
        wait.total_seconds() + 2 * STORE_GRACE,
        lambda: _take_part(admitted, world, Deadline.after(wait)),
    )
    regrouped, sources = _regroup(admission, members)
    job = Job(
        replace(world, rank=admission.number_of(world.rank)),
        admitted.store,
        timeout,
        wait,
        admitted.generation,
        timeout,
        admission.seed,
        origin=Origin(admitted.store, admission.first_ranks, world.world_size, admitted.generation),
        arrival=Arrival(world, admission, regrouped, sources),
    )
    limit = min(wait, NEWCOMER_LIMIT)
    job = rejoin(job, admitted.number, regrouped.old_ranks, limit)
    if admission.seed is not None:
        seed_all(admission.seed)
    return job


def _take_part(
    admitted: AdmittedError, world: World, deadline: Deadline
) -> tuple[Admission, Members]:
    """Check in at the round that admits this process, and return who takes part."""
    store = dist.PrefixStore(keys.RECOVERY.format(admitted.number), admitted.store)
    admission = read_value(keys.ADMISSION, store.get(keys.ADMISSION), Admission.from_json)
    number, ranks = admission.number_of(world.rank), range(len(admission.first_ranks))
    return admission, MembershipRound(store, number, ranks, {}, deadline, (), 0, {}).join()


def _regroup(admission: Admission, members: Members) -> tuple[Regrouping, Sources]:
    """Return the new mesh and who sends the state, as all other ranks compute them, too."""
    positions = RankPositions.of(admission.ranks, None)
    layout = Layout.of(admission.sizes, positions)
    regrouped = regroup(layout, members.ranks, admission.full_sizes)
    if regrouped is None:
        raise RankTimeoutError(
            "the ranks that live cannot form one replica.",
            fix="start the job again, from a checkpoint.",
        )
    return regrouped, find_sources(regrouped, held_steps(members))
