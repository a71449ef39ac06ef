"""Recover a mesh: a new default group of the ranks that live, and a mesh of whole replicas.

Every rank that lives takes part in the same rounds. A round decides who lives. Its members then
create the groups. If another rank is lost meanwhile, the creation fails on all ranks, and another
round begins::

    rank 0   round 1: 0 1 2 live   creates ... fails   round 2: 0 1 live   creates   a mesh
    rank 1   round 1: 0 1 2 live   creates ... fails   round 2: 0 1 live   creates   a mesh
    rank 2   round 1: 0 1 2 live   is killed

A round may admit newcomers. If the ranks cannot create the groups with them, the next round leaves
them out. The keys, below the generation of the job::

    key                        written by                             goes
    recovery/<n>/...           ranks that live: who lives?            after a later recovery
    recovery/<n>/admission     the first rank, for newcomers          with its round
    recovered                  rank 0: the newest n                   stays
    membership/<n>/rejoin/...  members of n: all groups created?      after a later recovery
    membership/<n>/...         their rounds and meshes                as in a job without a loss;
                                                                      after a failure all at once

A recovery destroys the default group and all groups on it, those of other meshes and of views too.
The ranks decide at the store which of them live. Ranks are numbered anew: ``mesh.rank`` and
``torch.distributed.get_rank()`` are equal, and positions in the mesh count first. A rank keeps its
coordinate if the new mesh has it. Build again on the new mesh whatever holds groups, and its
samplers and streams.

Ranks that are left over are spares, on which a recovery waits for the next one, or for an
admission. If all ranks close the mesh instead, it returns the old mesh, and
``mesh.recovery.is_over`` is True.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, cast

from ..call import Call, parse_integer
from ..errors import CollectiveError, MeshkitError, RankTimeoutError, SpecError
from ..groups.close_mesh import CLOSED, WAITING, end_lost_mesh
from ..groups.open_mesh import MeshProposal, open_groups
from ..groups.registry import GroupRegistry, MeshGroups
from ..groups.status import is_collective_error
from ..guard.commit import committed_steps
from ..guard.state import GuardState
from ..launch.agreement import ENDED, Agreement
from ..launch.job import Job, leave_default_group
from ..launch.judges import Process, RankState, Sighting
from ..launch.newcomer import Admission, read_admission
from ..launch.nodes import LOCAL_RANK
from ..launch.of_one_process import OfOneProcess
from ..launch.process import check_own_process, sight
from ..launch.regroup import (
    RecoveryFacts,
    RecoveryWaits,
    Regrouping,
    check_committed,
    find_sources,
    held_steps,
    regroup,
    who_lives,
)
from ..launch.round import COUNT
from ..launch.store import Store, hosted_by_rank_0
from ..launch.times import TIMES, Time, parse_timeout
from ..layout.group_plan import GroupPlan
from ..layout.layout import Layout
from ..layout.sizes import STANDARD_AXES
from ..text import count_noun, format_ranks, plural
from .recovery import Recovery

ANSWER_TIME = 1.0  # seconds in which the store answers
MAX_FAILURES = 3  # creations that fail although no further rank is lost
LOOK_INTERVAL = 0.25  # seconds between two looks of a spare for a loss
LOOKS = 4  # looks for a loss between two looks for ended processes


class RecoveryRequest(NamedTuple):
    """The arguments of ``mesh.recover`` or ``mesh.admit`` on this rank, checked."""

    step: int | None
    arrival_timeout: timedelta | None = None
    min_ranks: int | None = None
    # the text of min_ranks, which must be equal on all ranks; None in an admission, which has none
    min_ranks_text: str | None = None

    @classmethod
    def of_admission(cls, step: object) -> RecoveryRequest:
        """Return the checked arguments of ``mesh.admit``."""
        return cls(_parse_count("step", step, 0))

    @classmethod
    def of(cls, step: object, arrival_timeout: Time | None, min_ranks: object) -> RecoveryRequest:
        """Return the checked arguments of ``mesh.recover``."""
        return cls(
            _parse_count("step", step, 0),
            parse_timeout("arrival_timeout", arrival_timeout),
            _parse_count("min_ranks", min_ranks, 1),
            str(min_ranks),
        )


def _parse_count(name: str, value: object, least: int) -> int | None:
    """Return an int of at least so many, or None."""
    number = parse_integer(value)
    if value is None or (number is not None and number >= least):
        return number
    fix = f"{name}={least}, or another int of {least} or more."
    raise SpecError(f"{name} is {value!r}.", fix=fix)


class KnownFailure(NamedTuple):
    """The failure, as far as this rank knows it."""

    is_known: bool  # whether a collective failed here
    silent: Collection[int]  # the ranks that did not answer when the failure was reported


Recovered = tuple[MeshProposal, MeshGroups, Recovery]


def recover_mesh(rounds: Rounds, state: GuardState) -> Recovered | None:
    """Return the mesh of the ranks that live; None on a spare whose mesh was closed.

    Collective over the ranks that live. See :meth:`meshkit.Mesh.recover`.
    """
    mesh, job = rounds.mesh, rounds.proposal.job
    store = check_can_recover(mesh, job)
    try:
        if mesh.rank not in mesh.plan.layout and not wait_for_loss(mesh, job, store):
            rounds.last.is_over = True
            return None
        if state.sampler is not None:
            state.sampler.stop()
        mesh.posted |= {f"guard/{key}" for key in state.exits}
        failure = find_known_failure(state)
        if failure.is_known:
            job.abort()
        return rounds.run(failure)
    except RankTimeoutError as error:
        if hosted_by_rank_0(job.world) and not store.answers(ANSWER_TIME):
            lines = (
                "Rank 0 hosted the store, without which the other ranks cannot find each other.",
                "Three stores outlive the ranks: python -m meshkit store --port 29400 "
                '(init_method="store://<host>:29400/<name>"), a file (init_method='
                '"file:///shared/store"), and that of torchrun\'s agent.',
            )
            raise error.but(evidence=(*error.evidence, *lines)) from error.__cause__
        raise


def check_can_recover(mesh: MeshGroups, job: Job) -> Store:
    """Return the store of the job; raise if the groups of a mesh cannot be created again."""
    mesh.check_open()
    check_own_process(mesh.rank, mesh.pid)
    if mesh.view_id:
        fix = "recover the mesh from which it was created, then create the view again."
        line = "A recovery replaces all groups of the job."
        raise MeshkitError("this mesh is a view.", line, fix=fix)
    if job.store is not None and job.generation and not mesh.registry.external_groups:
        return job.store
    groups = "groups of the mesh" if mesh.registry.external_groups else "the default group"
    line = f"other code created {groups}, which meshkit cannot create again."
    raise MeshkitError(line, fix="meshkit.init() and build_mesh(), which create all groups.")


def find_known_failure(state: GuardState) -> KnownFailure:
    """Return the failure that the guards, or the error that is handled now, report. Local."""
    reports = [report for report in state.reports.values() if report is not None]
    silent = {int(rank) for report in reports for rank in report.get("missing_ranks", ())}
    error = sys.exc_info()[1]
    if isinstance(error, CollectiveError):
        silent |= {*error.missing_ranks}
    failed = isinstance(error, RankTimeoutError) or (error and is_collective_error(error))
    return KnownFailure(bool(reports or failed), silent)


@dataclass
class Rounds(OfOneProcess):
    """The rounds of one recovery on this rank."""

    mesh: MeshGroups
    proposal: MeshProposal
    last: Recovery
    request: RecoveryRequest
    admission: Admission | None = None

    @property
    def job(self) -> Job:
        """The job that has lost ranks."""
        return self.proposal.job

    @property
    def _wait(self) -> timedelta:
        """The time for which ranks wait for each other."""
        return self.request.arrival_timeout or self.job.arrival_timeout

    @property
    def _committed(self) -> int | None:
        """The steps that this rank has committed, if it recovers with a step and they count."""
        is_recovery = self.request.min_ranks_text is not None and self.request.step is not None
        return committed_steps(self.mesh, self.last.step) if is_recovery else None

    def run(self, failure: KnownFailure) -> Recovered:
        """Run rounds until one of them has created the groups on all ranks that live."""
        size = self.job.world.world_size
        candidates: Sequence[int] = range(size)
        failures, patient = 0, self.request.arrival_timeout is not None
        while True:
            number, requests = self._decide(candidates, failure, patient=patient)
            check_committed(requests)
            regrouped = self._regroup([*requests])
            sources = find_sources(regrouped, held_steps(requests))
            try:
                proposal, groups = self._create(number, regrouped)
            except (MeshkitError, RuntimeError) as error:
                leave_default_group()
                failures = failures + 1 if [*requests] == [*candidates] else 0
                if failures == MAX_FAILURES:
                    raise
                missing = getattr(error, "missing_ranks", ())
                silent = {regrouped.old_ranks[rank] for rank in missing}
                candidates = [rank for rank in requests if rank < size]  # without newcomers
                failure, patient = KnownFailure(True, silent), False
                continue
            recovery = Recovery.of(groups, self.last.full_sizes, regrouped, sources, size)
            return proposal, groups, recovery

    def _decide(
        self, candidates: Sequence[int], failure: KnownFailure, *, patient: bool
    ) -> tuple[int, dict[int, RecoveryFacts]]:
        """Return the number of this round, and the ranks that live with their requests."""
        job, wait, layout = self.job, self._wait, self.mesh.plan.layout
        request = RecoveryFacts(
            f"{layout.sizes_text}, number {self.mesh.round_id}",
            self.request.min_ranks_text,
            failure.is_known,
            job.world.rank in layout and not self.last.lacks_state,
            self.request.step,
            self._committed,
        )
        silent = wait.total_seconds() if patient else TIMES.silent
        waits = RecoveryWaits(wait.total_seconds(), silent, TIMES.newcomer_arrival)
        poll = max(TIMES.poll, len(candidates) / 2000)  # a judge reads what all have left
        while True:
            number = job.next_recovery()
            agreement = self._agreement(number, candidates)
            decision = agreement.round.decided()
            came_late = decision is not None
            if decision is None:
                self._check_not_left_out(number)
                newcomers = [rank for rank in agreement.ranks if rank not in {*candidates}]
                facts = {**request.to_facts(), LOCAL_RANK: job.world.local_rank}
                agreement.round.arrive(facts)
                judge = who_lives(waits, failure.silent, newcomers)
                decision = agreement.decide(judge, poll=poll)
                self._check_not_left_out(number)  # this process may have been stopped meanwhile
            if came_late and failure.is_known and decision.error is not None:
                continue  # a failure that comes later has a round of its own
            decision.check(job.world.rank)
            self.admission = read_admission(agreement.round.store)
            members, rank = decision.members, job.world.rank
            if rank in members:
                return number, {r: RecoveryFacts.from_facts(members[r]) for r in sorted(members)}
            raise _left_out_error(
                rank,
                f"{plural('Rank', len(members))} {format_ranks(sorted(members))} "
                f"{'goes' if len(members) == 1 else 'go'} on without it.",
            )

    def _check_not_left_out(self, number: int) -> None:
        """Raise if other ranks have gone on from this recovery or a later one, without this rank.

        They have deleted the rounds before. A rank that decided alone would begin a second job.
        """
        newest = self.job.recovered()
        if newest >= number:
            line = f"The other ranks go on without it, since recovery {newest}."
            raise _left_out_error(self.job.world.rank, line)

    def _agreement(self, number: int, candidates: Sequence[int]) -> Agreement:
        """Return the agreement of the candidates, and of the newcomers that it admits."""
        job, processes = self.job, dict[int, Process]()
        admission = read_admission(job.recovery_store(number))
        if admission is not None:
            processes.update(zip(admission.newcomers, admission.processes, strict=True))

        def look(ranks: Sequence[int]) -> dict[int, Sighting]:
            newcomers = {rank: sight(processes[rank]) for rank in ranks if rank in processes}
            return {**job.look(ranks), **newcomers}

        return job.recovery(number, [*candidates, *processes], self._wait, look)

    def _regroup(self, members: Sequence[int]) -> Regrouping:
        """Return the mesh of the ranks that live, or raise if they are too few."""
        layout, size = self.mesh.plan.layout, self.job.world.world_size
        regrouped = regroup(layout, members, self.last.full_sizes)
        least = self.request.min_ranks or 1
        if regrouped is not None and len(members) >= least:
            return regrouped
        lost = sorted({*range(size)} - {*members})
        whole = "fewer than one whole replica" if regrouped is None else f"min_ranks is {least}"
        raise RankTimeoutError(
            f"{len(members)} of {count_noun(size, 'rank')} "
            f"{'lives' if len(members) == 1 else 'live'}: {whole}.",
            f"The mesh was {layout.sizes_text}. Lost: {format_ranks(lost)}.",
            fix="start the job again, from a checkpoint.",
            missing_ranks=tuple(lost),
        )

    def _create(self, number: int, regrouped: Regrouping) -> tuple[MeshProposal, MeshGroups]:
        """Create the default group and the groups of the mesh. Collective over the members."""
        self.mesh.release()
        self.mesh.is_replaced = True
        leave_default_group()
        job, limit = self.job, self._wait
        if max(regrouped.old_ranks) >= job.world.world_size:  # newcomers
            ranks = cast(Admission, self.admission).ranks_before
            job = replace(job, membership=job.membership._replace(ranks_before=ranks))
            limit = min(limit, timedelta(seconds=TIMES.newcomer))
        before, job = self.job, job.rejoin(number, regrouped.old_ranks, limit)
        end_lost_mesh(self.mesh, before, job, regrouped.old_ranks)
        proposal = propose_again(self.proposal, job, regrouped.after)
        groups = open_groups(proposal._replace(job=replace(job, arrival_timeout=limit)))
        return proposal, groups


def _left_out_error(rank: int, evidence: str) -> RankTimeoutError:
    """Return the error of a rank that was declared lost while it lives."""
    line = f"rank {rank} was declared lost, as it did not come in time."
    return RankTimeoutError(line, evidence, fix="end this process.")


def propose_again(proposal: MeshProposal, job: Job, layout: Layout) -> MeshProposal:
    """Return the proposal of the same mesh over other ranks, with the same options of its groups.

    Axes may cross nodes that did not before, as every rank that lives is used.
    """
    before = proposal.plan
    groups = [" ".join(axes) for axes in before.requested]
    plan = GroupPlan.of(layout, groups)
    timeouts = proposal.options.timeouts
    by_key = {
        plan.group_key(axes): timeouts.by_key[key]
        for axes, key in before.keys.items()
        if key in timeouts.by_key
    }
    timeouts = timeouts._replace(by_key=by_key)
    options = proposal.options._replace(timeouts=timeouts, crossing={}, place=False)
    sizes, standard = layout.sizes, STANDARD_AXES.issuperset(layout.sizes)
    is_whole = layout.rank_positions.is_identity and layout.num_ranks == job.world.world_size
    given = {"groups": groups or None, "ranks": None if is_whole else layout.ranks}
    kwargs: Mapping[str, object] = {**(sizes if standard else {}), **given}
    call = Call("build_mesh", () if standard else (sizes,), kwargs, ("sizes",))
    registry = GroupRegistry(call, is_private=proposal.registry.is_private)
    return MeshProposal(plan, job, options, registry, call)


def wait_for_loss(mesh: MeshGroups, job: Job, store: Store) -> bool:
    """Wait on a spare until a rank of the mesh is lost; return False if it was closed. Local.

    Each rank that closes the mesh posts that in the store. A rank whose process has ended without
    that is lost, also if no other rank is left to notice.

    Cost: two store operations four times a second, and once a second a look at each rank.
    """
    part = store.part(f"mesh/{mesh.round_id}")
    ranks = [int(rank) for rank in mesh.plan.layout.grid.flat]
    recovery = job.recovery_store(max(job.counts.recoveries, job.membership.number) + 1)
    closed = {rank: CLOSED.format(rank) for rank in ranks}

    def look(number: int) -> bool | None:
        """Return whether a rank is lost; None if neither a loss nor the end is known."""
        if recovery.has(COUNT) or job.recovered() > job.membership.number:
            return True
        if not part.has(ENDED) or part.has(*closed.values()):
            return False
        seen = {} if number % LOOKS else job.look(ranks)
        ended = [rank for rank, sighting in seen.items() if sighting.state is RankState.ENDED]
        return any(not part.has(closed[rank]) for rank in ended) or None

    part.run(lambda: part.add(WAITING, 1))
    numbers = itertools.count()
    while (is_lost := part.run(lambda: look(next(numbers)))) is None:
        time.sleep(LOOK_INTERVAL)
    part.run(lambda: part.add(WAITING, -1) > 0 or part.delete(WAITING))
    return is_lost
