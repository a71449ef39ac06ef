"""Go on with the ranks that live: a new default group, and a mesh of as many whole replicas.

Every rank that lives goes through the same rounds. A round decides who lives, and then creates the
groups. If another rank is lost meanwhile, creation fails on all ranks together, and another round
begins::

    rank 0   round 1: 0 1 2 live   creates ... fails   round 2: 0 1 live   creates   a mesh
    rank 1   round 1: 0 1 2 live   creates ... fails   round 2: 0 1 live   creates   a mesh
    rank 2   round 1: 0 1 2 live   is killed

A round may admit newcomers. If the groups cannot be created with them, the next round is without.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast

import torch.distributed as dist

from ...core.call import Call
from ...core.errors import CollectiveError, MeshkitError, RankTimeoutError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.grid.sizes import STANDARD_AXES
from ...core.recovery.held_state import find_sources
from ...core.recovery.regroup import Regrouping, regroup
from ...core.text import count_noun, format_ranks
from ...launch.agreement.admission import Admission, read_admission
from ...launch.agreement.members import Members, MembershipRound, held_steps, own_request
from ...launch.current_job import Job
from ...launch.recovery.rejoin import (
    NEWCOMER_LIMIT,
    RECOVERIES,
    leave_default_group,
    origin_of,
    rejoin,
)
from ...launch.store import keys
from ...launch.store.client import hosted_by_rank_0
from ...launch.store.deadline import (
    STORE_GRACE,
    Deadline,
    DeadlineExceededError,
    run_with_deadline,
    store_call,
)
from ...launch.store.error_json import error_from_json
from ...launch.store.rank_lease import LeaseHolder, read_lease_holders
from ...launch.torch_internals import existing_groups
from ..groups import abort_groups
from ..group_registry import GroupRegistry, MeshGroups
from ..guard.roll_call import GuardState
from ..guard.stack import is_collective_error
from ..setup.proposal import MeshProposal, open_groups
from .recovery import Recovery
from .request import RecoveryRequest, check_can_recover
from .spare import wait_for_loss

SILENT_TIME = 1.0  # seconds for a rank that was silent when the failure was reported
ANSWER_TIME = 1.0  # seconds in which the store answers
MAX_FAILURES = 3  # creations that fail although no further rank is lost


@dataclass(frozen=True)
class Failure:
    """The failure, as far as this rank knows it.

    Attributes:
        is_known: whether a collective failed here.
        silent: the ranks that did not answer when the failure was reported.
    """

    is_known: bool
    silent: Collection[int]


Recovered = tuple[MeshProposal, MeshGroups, Recovery]


def recover_mesh(rounds: Rounds, state: GuardState) -> Recovered | None:
    """Return the proposal and the groups of a mesh of the ranks that live. Collective over them.

    None on a spare whose mesh was closed. See :meth:`meshkit.Mesh.recover`.
    """
    mesh, job = rounds.mesh, rounds.proposal.job
    check_can_recover(mesh, job)
    try:
        if mesh.rank not in mesh.plan.layout and not wait_for_loss(mesh, job):
            rounds.last.is_over = True
            return None
        failure = find_failure(state)
        if failure.is_known:
            abort_groups(existing_groups())  # also those of other meshes, which nccl ends together
        return rounds.run(failure)
    except RankTimeoutError as error:
        if hosted_by_rank_0(job.world) and not _store_answers(cast(dist.Store, job.store)):
            error.evidence += (
                "Rank 0 hosted the store, without which the other ranks cannot find each other.",
                "Three stores outlive the ranks: python -m meshkit store --port 29400 "
                '(init_method="store://<host>:29400/<name>"), a file (init_method='
                '"file:///shared/store"), and that of torchrun\'s agent.',
            )
        raise


def _store_answers(store: dist.Store) -> bool:
    """Return whether a store answers. Cost: one store operation, for a second at most."""
    try:
        run_with_deadline(ANSWER_TIME, lambda: store.check([keys.DECISION]))
    except (RuntimeError, DeadlineExceededError):
        return False
    return True


def find_failure(state: GuardState) -> Failure:
    """Return what the guards of this mesh, or the error that is handled now, tell of the failure.

    Local.
    """
    reports = [error_from_json(text) for text in state.reports.values() if text]
    current = sys.exc_info()[1]
    failed = isinstance(current, RankTimeoutError) or (
        current is not None and is_collective_error(current)
    )
    silent = {
        rank
        for error in (*reports, *([current] if isinstance(current, CollectiveError) else []))
        for rank in getattr(error, "missing_ranks", ())
    }
    return Failure(bool(reports) or failed, silent)


@dataclass
class Rounds:
    """The rounds of one recovery on this rank."""

    mesh: MeshGroups
    proposal: MeshProposal
    last: Recovery
    request: RecoveryRequest
    admission: Admission | None = None

    @property
    def _job(self) -> Job:
        return self.proposal.job

    @property
    def _wait(self) -> timedelta:
        """How long ranks wait for each other."""
        return self.request.arrival_timeout or self._job.arrival_timeout

    def run(self, failure: Failure) -> Recovered:
        """Run rounds until one of them has created the groups on all ranks that live."""
        size = self._job.world.world_size
        candidates: Sequence[int] = range(size)
        failures, patient = 0, self.request.arrival_timeout is not None
        while True:
            number, members = self._decide(candidates, failure, patient=patient)
            regrouped = self._regroup(members)
            sources = find_sources(regrouped, held_steps(members))
            try:
                proposal, groups = self._create(number, regrouped)
            except (MeshkitError, RuntimeError) as error:
                leave_default_group()
                failures = failures + 1 if members.ranks == [*candidates] else 0
                if failures == MAX_FAILURES:
                    raise
                missing = getattr(error, "missing_ranks", ())
                silent = {regrouped.old_ranks[rank] for rank in missing}
                candidates = [rank for rank in members.ranks if rank < size]  # without newcomers
                failure, patient = Failure(True, silent), False
                continue
            full = self.last.full_sizes
            recovery = Recovery.of(groups, full, regrouped, sources, size)
            return proposal, groups, recovery

    def _decide(
        self, candidates: Sequence[int], failure: Failure, *, patient: bool
    ) -> tuple[int, Members]:
        """Return the number of this round, and the ranks that live."""
        job, counter = self._job, cast("dict[str, int]", self._job.counter)
        wait = self._wait
        inside = job.world.rank in self.mesh.plan.layout
        request = own_request(
            f"{self.mesh.plan.layout.sizes_text}, number {self.mesh.round_id}",
            failed=failure.is_known,
            step=self.request.step,
            holds_state=inside and not self.last.lacks_state,
            **self.request.same,
        )
        silent_time = wait.total_seconds() if patient else SILENT_TIME
        members = None

        def decide() -> Members | None:
            prefix = keys.RECOVERY.format(counter[RECOVERIES])
            store = dist.PrefixStore(prefix, origin_of(job).store)
            holders, newcomers = self._find_ranks(store, candidates)
            ranks, deadline = [*candidates, *newcomers], Deadline.after(wait)
            waits = deadline, failure.silent, silent_time, holders, newcomers
            members = MembershipRound(store, job.world.rank, ranks, request, *waits).decide()
            self.admission = read_admission(store)  # a rank may have written it meanwhile
            return members

        while members is None:
            counter[RECOVERIES] += 1
            members = store_call(job.world, wait.total_seconds() + 2 * STORE_GRACE, decide)
        return counter[RECOVERIES], members

    def _find_ranks(
        self, store: dist.Store, candidates: Sequence[int]
    ) -> tuple[dict[int, LeaseHolder], Sequence[int]]:
        """Return the process of each rank of a round, as far as known, and its newcomers."""
        job, admission = self._job, read_admission(store)
        own = cast(dist.Store, job.store)
        holders = read_lease_holders(own, candidates, job.lease_generation)
        if admission is None:
            return holders, ()
        newcomers = dict(zip(admission.newcomers, admission.holders, strict=True))
        return holders | newcomers, admission.newcomers

    def _regroup(self, members: Members) -> Regrouping:
        """Return the mesh of the ranks that live, or raise if they are too few."""
        layout, ranks = self.mesh.plan.layout, members.ranks
        regrouped = regroup(layout, ranks, self.last.full_sizes)
        least = self.request.min_ranks or 1
        if regrouped is not None and len(ranks) >= least:
            return regrouped
        lost = sorted({*range(self._job.world.world_size)} - {*ranks})
        whole = "fewer than one whole replica" if regrouped is None else f"min_ranks is {least}"
        raise RankTimeoutError(
            f"{len(ranks)} of {count_noun(self._job.world.world_size, 'rank')} "
            f"{'lives' if len(ranks) == 1 else 'live'}: {whole}.",
            f"The mesh was {layout.sizes_text}. Lost: {format_ranks(lost)}.",
            fix="start the job again, from a checkpoint.",
            missing_ranks=tuple(lost),
        )

    def _create(self, number: int, regrouped: Regrouping) -> tuple[MeshProposal, MeshGroups]:
        """Create the default group and the groups of the mesh. Collective over those who live."""
        self.mesh.release()
        self.mesh.is_replaced = True
        leave_default_group()
        job, limit = self._job, self._wait
        if max(regrouped.old_ranks) >= job.world.world_size:  # newcomers
            first_ranks = cast(Admission, self.admission).first_ranks
            job = replace(job, origin=origin_of(job)._replace(ranks=first_ranks))
            limit = min(limit, NEWCOMER_LIMIT)
        job = rejoin(job, number, regrouped.old_ranks, limit)
        proposal = propose_again(self.proposal, job, regrouped.after)
        groups = open_groups(proposal._replace(job=replace(job, arrival_timeout=limit)))
        return proposal, groups


def propose_again(proposal: MeshProposal, job: Job, layout: Layout) -> MeshProposal:
    """Return the proposal of the same mesh over other ranks, with the same options of its groups.

    Axes may cross nodes that did not before, as every rank that lives is used.
    """
    before, requested = proposal.plan, proposal.plan.requested
    plan = GroupPlan.of(layout, [" ".join(axes) for axes in requested])
    timeouts = proposal.options.timeouts
    by_key = {
        plan.group_key(axes): timeouts.by_key[key]
        for axes, key in before.keys.items()
        if key in timeouts.by_key
    }
    options = proposal.options._replace(
        timeouts=timeouts._replace(by_key=by_key), crossing={}, place=False
    )
    call = _call_of(layout, requested, job.world.world_size)
    return MeshProposal(plan, job, options, GroupRegistry(call), call)


def _call_of(layout: Layout, requested: Sequence[Sequence[str]], world_size: int) -> Call:
    """Return the call that builds a mesh of these ranks."""
    sizes = layout.sizes
    standard = STANDARD_AXES.issuperset(sizes)
    is_whole = layout.rank_positions.is_identity and layout.num_ranks == world_size
    ranks = None if is_whole else layout.ranks
    groups = [" ".join(axes) for axes in requested] or None
    kwargs: Mapping[str, object] = {**(sizes if standard else {}), "groups": groups, "ranks": ranks}
    return Call("build_mesh", () if standard else (sizes,), kwargs, ("sizes",))
