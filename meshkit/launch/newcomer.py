"""Let a process that was started anew join a job that has lost its rank: a newcomer.

A newcomer waits at the store in a generation that it has begun, like any rank that joins a job. The
ranks that run write an admission for their next recovery round, and end that generation::

    rank 3 (new)   init: waits ................ reads: round 2 admits it ... arrives there
    rank 0         trains ... mesh.admit(): looks, writes the admission .... arrives there
    rank 1         trains ... mesh.admit(): reads the answer of rank 0 ..... arrives there
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, cast

from ..errors import RankTimeoutError
from ..layout.layout import Layout
from ..layout.ranks import RankPositions
from .generation import end_generation, generation_part, init_round, leases
from .job import ADMISSION, RECOVERED, RECOVERY, Job, Membership
from .judges import Arrival, Arrivals, Decision, Process, RankState, disagreement
from .nodes import FROM_MACHINES, LOCAL_RANK, free_local_rank
from .process import state_of
from .regroup import RecoveryFacts, Regrouping, Sources, find_sources, held_steps, regroup
from .round import Round, process_from_json
from .store import Store, read_number
from .times import TIMES, Deadline
from .world import World

NEWEST = "meshkit/newest"
INVITED = "admitted"  # in a generation: which job admits the ranks that wait there
CONFLICT = "a new process disagrees with the job that runs, which goes on without it."


@dataclass(frozen=True)
class Admission:
    """The newcomers of a recovery round, and the facts of the job that they need."""

    num_ranks: int  # the ranks of the job; the newcomers are numbered from there
    ranks_before: tuple[int, ...]  # the first rank of each rank, newcomers included
    processes: tuple[Process, ...]  # the process of each newcomer
    sizes: Mapping[str, int]  # the sizes of the mesh, the outermost axis first
    ranks: tuple[int, ...]  # the rank at each position of the mesh
    full_sizes: Mapping[str, int]  # the sizes of the mesh before its first loss
    seed: int | None  # the seed of the job

    @property
    def newcomers(self) -> range:
        """The numbers of the newcomers."""
        return range(self.num_ranks, len(self.ranks_before))

    @classmethod
    def from_json(cls, text: str) -> Admission:
        """Return the admission that a rank wrote."""
        record: dict[str, Any] = json.loads(text)
        sizes, full = (
            {str(axis): int(size) for axis, size in record[name].items()}
            for name in ("sizes", "full_sizes")
        )
        before, ranks = (tuple(map(int, record[name])) for name in ("ranks_before", "ranks"))
        processes = tuple(map(process_from_json, record["processes"]))
        seed = None if record["seed"] is None else int(record["seed"])
        return cls(int(record["num_ranks"]), before, processes, sizes, ranks, full, seed)


@dataclass(frozen=True)
class JoinedMesh:
    """The mesh that a newcomer joins by ``build_mesh``."""

    world: World  # the newcomer as it was started, in a world of the first size
    admission: Admission  # the admission that it has read
    regrouped: Regrouping  # the ranks of the job, newcomers included
    sources: Sources  # the step, and the ranks that send the state


def read_admission(store: Store) -> Admission | None:
    """Return the admission to a recovery round, if any. Local. Cost: 2 store operations."""
    return store.run(lambda: store.read(ADMISSION, Admission.from_json))


def read_invitation(base: Store, generation: int) -> tuple[int, int] | None:
    """Return the generation and the recovery round of the job that admits this rank, if any."""
    part = generation_part(base, generation)
    invited = part.run(lambda: part.read(INVITED, _parse_invitation))
    return invited[:2] if invited and base.world.rank in invited[2] else None


def _parse_invitation(text: str) -> tuple[int, int, list[int]]:
    generation, number, ranks = json.loads(text)
    return int(generation), int(number), [int(rank) for rank in ranks]


def running_job_evidence(base: Store, generation: int) -> tuple[str, ...]:
    """Return a line on a job of an earlier generation that goes on after a loss, if any."""
    earlier = [generation_part(base, number) for number in range(1, generation)]
    first = f"{RECOVERY.format(1)}/count"
    look = lambda: any(part.has(key) for part in earlier for key in (first, RECOVERED))  # noqa: E731
    runs = base.try_within(1.0, look)
    line = "A job at this store goes on after a loss. It admits a new process by mesh.admit()."
    return (line,) * bool(runs)


def find_newcomers(job: Job) -> tuple[int, dict[int, Process]]:
    """Return the generation in which newcomers wait, and their processes by their rank. Local.

    Newcomers that called ``init`` with other arguments than this job raise, and none is returned.
    Cost: one store operation if no process has come since the last look, else about 6.
    """
    base = cast(Store, job.attempt)
    newest = base.run(lambda: read_number(NEWEST, base.get(NEWEST)))
    waiting = init_round(base, newest, job.membership.lost)
    if newest == job.generation or waiting.decided() is not None:
        return newest, {}
    arrived = {r: a for r, a in waiting.arrivals().arrived.items() if r in {*job.membership.lost}}
    if not arrived or not _agree(job, base, waiting, arrived):
        return newest, {}
    held = base.run(lambda: leases(base, [*arrived]))
    return newest, {
        rank: lease.process
        for rank, lease in held.items()
        if lease.generation == newest and state_of(lease.process) is not RankState.ENDED
    }


def _agree(job: Job, base: Store, waiting: Round, arrived: Mapping[int, Arrival]) -> bool:
    """Return whether newcomers have called ``init`` as this job did; else refuse them."""
    own = base.run(init_round(base, job.generation, ()).first)
    if own is None:
        return False
    compared = {job.membership.ranks_before[job.world.rank]: own, **arrived}
    # a new process lacks the name of the launcher's job
    alike = {r: a._replace(facts={**a.facts, "job": ""}) for r, a in compared.items()}
    error = disagreement(CONFLICT, Arrivals((), alike))
    if error is not None:
        waiting.say(Decision(error))
    return error is None


def invite(job: Job, waiting_in: int, number: int, admission: Admission) -> None:
    """Write the admission for the ranks that run, and then for the newcomers. Local."""
    base, recovery = cast(Store, job.attempt), job.recovery_store(number)
    record = [job.generation, number, admission.ranks_before[admission.num_ranks :]]

    def post() -> None:
        recovery.set(ADMISSION, json.dumps(asdict(admission)))
        generation_part(base, waiting_in).set(INVITED, json.dumps(record))
        end_generation(base, waiting_in)

    base.run(post)


def left_out_error(rank: int) -> RankTimeoutError:
    """Return the error of a newcomer that came too late to the round that admitted it."""
    line = f"rank {rank} was left out: it did not come in time."
    return RankTimeoutError(line, fix="start the job again, from a checkpoint.")


def join_running_job(
    base: Store,
    invitation: tuple[int, int],
    timeout: timedelta | None,
    wait: timedelta,
    bind: bool,
    prepare: Callable[[World], World],
) -> Job:
    """Create the default group with the ranks of the job that admits this process. Collective.

    ``prepare`` returns the world with the device of its local rank. Its error is raised by all.
    """
    world, (generation, number) = base.world, invitation
    store = generation_part(base, generation)
    round = Round(store, RECOVERY.format(number), world.rank, ())
    admission = read_admission(round.store)
    if admission is None:  # the ranks have gone through a later recovery since
        raise left_out_error(world.rank)
    own = replace(world, rank=admission.ranks_before.index(world.rank, admission.num_ranks))
    round.rank, round.expected = own.rank, range(len(admission.ranks_before))
    round.arrive({**RecoveryFacts().to_facts(), LOCAL_RANK: own.local_rank})
    decision = round.follow(Deadline.after(wait))
    if decision is None:
        raise RankTimeoutError(
            f"the ranks of the job did not decide within {wait.total_seconds():g} s.",
            fix="look at the logs of the ranks that run.",
        )
    members = decision.check(own.rank).members
    requests = {rank: RecoveryFacts.from_facts(facts) for rank, facts in members.items()}
    layout = Layout.of(admission.sizes, RankPositions.of(admission.ranks, None))
    regrouped = regroup(layout, [*requests], admission.full_sizes)
    if regrouped is None:
        line = "the ranks that live cannot form one replica."
        raise RankTimeoutError(line, fix="start the job again, from a checkpoint.")
    if own.rank not in requests:
        raise left_out_error(world.rank)
    if own.local_rank is None:
        arrived = {r: a for r, a in round.arrivals().arrived.items() if r in requests}
        local_rank = free_local_rank(own.rank, arrived, admission.newcomers)
        found = {} if local_rank is None else {LOCAL_RANK: FROM_MACHINES}
        own = replace(own, local_rank=local_rank, sources={**own.sources, **found})
    joined = JoinedMesh(world, admission, regrouped, find_sources(regrouped, held_steps(requests)))
    job = Job(
        own,
        store,
        timeout,
        wait,
        Membership(number, admission.ranks_before, world.world_size),
        generation,
        base=store,
        attempt=base,
        default_timeout=timeout,
        bind=bind,
        seed=admission.seed,
        arrival=joined,
    )
    limit = min(wait, timedelta(seconds=TIMES.newcomer))
    return job.rejoin(number, regrouped.old_ranks, limit, prepare)
