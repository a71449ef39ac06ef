"""An agreement round: ranks check in at a store before a deadline and compare their requests.

A round has one decision, and the first rank that writes it decides. The last rank to check in
writes that all ranks agree, or the conflict. A rank whose deadline has expired writes which ranks
are missing. A rank whose own call failed writes its failure. All ranks, late ones included, follow
the decision::

    rank 0   check in ............................ wait ... reads "all"
    rank 1   check in .... wait .................. wait ... reads "all"
    rank 2   check in, the last of three: writes "all"

Each rank posts its claims before it checks in. A conflict of claims or requests becomes the
decision when all ranks have checked in, or at the deadline.

Cost: 5 store operations per rank, one more per claim, and one more if the default group is not
meshkit's. A rank that decides anything but "all" reads all check-ins.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ...core.errors import MeshkitError, RankTimeoutError
from ...core.text import plural
from ..launchers.world import World
from ..store import keys
from ..store.check_in import CheckIn, read_check_ins
from ..store.client import hosted_by_rank_0
from ..store.deadline import (
    STORE_GRACE,
    Deadline,
    DeadlineExceededError,
    run_with_deadline,
    store_call,
    store_wait,
)
from ..store.error_json import error_from_json, error_to_json
from ..store.process import ProcessIdentity
from ..store.rank_lease import last_seen
from .claims import Claim, conflicting_claim
from .errors import (
    disagreement_error,
    failure_report,
    first_few,
    first_reporter,
    missing_ranks_error,
)

ALL = "all"  # the decision when every rank has checked in with the same request
HOST_GRACE = 1.0  # seconds that rank 0, which may host the store, stays so that others can read
# seconds that rank 0 stays after its own call failed; other ranks may still be starting
FAILURE_GRACE = 5.0
DECISION_TIME = 1.0  # seconds in which one rank reads all check-ins


@dataclass(frozen=True)
class Proposal:
    """A request that must be equal on all ranks.

    Attributes:
        operation: the public function that proposes, for example ``"build_mesh"``.
        fields: the values to compare, by name.
        conflict_summary: first line of the error if ranks disagree or one of them failed.
        claims: values that are compared only among the ranks that set them, or that only one rank
            may have.
        describe_rank: returns the coordinate of a rank as text, for errors; None leaves it out.
        stage: prefix of the call in errors: ``"the end of "``; empty at the start of the call.
        expected_hosts: returns the hosts of the job, as far as the launcher lists them.
        failure: an earlier failure of this rank. All ranks raise it, unless ranks are missing.
    """

    operation: str
    fields: Mapping[str, str]
    conflict_summary: str
    claims: tuple[Claim, ...] = ()
    describe_rank: Callable[[int], str] | None = None
    stage: str = ""
    expected_hosts: Callable[[], Sequence[str]] = tuple
    failure: MeshkitError | None = None

    @property
    def request(self) -> dict[str, str]:
        """All compared values: the operation and the fields."""
        return {"call": f"{self.stage}{self.operation}", **self.fields}


@dataclass(frozen=True)
class Participants:
    """The ranks of a round and their store.

    Attributes:
        store: the store of a generation of the job.
        world: this process.
        ranks: the ranks that take part, this one among them.
        prefix: key prefix of the rounds, if only a part of the world takes part.
        counter: the number of this rank's rounds by prefix; None counts them in the store, as the
            store of a default group that someone else created may have served an earlier group.
    """

    store: dist.Store
    world: World
    ranks: Sequence[int]
    prefix: str = ""
    counter: Counter[str] | None = None

    @classmethod
    def of(
        cls, store: dist.Store, world: World, counter: Counter[str] | None = None
    ) -> Participants:
        """Return all ranks of a world."""
        return cls(store, world, range(world.world_size), counter=counter)

    def next_round(self) -> tuple[int, dist.Store]:
        """Return the id and the store of this rank's next round.

        Every rank counts its rounds, whatever they are about. Ranks that make different calls
        therefore enter the same round and see the difference.

        Cost: no store operation if ranks count locally, else one.
        """
        if self.counter is None:
            round_id = int(self.store.add(keys.rounds_key(self.world.rank, self.prefix), 1))
        else:
            self.counter[self.prefix] += 1
            round_id = self.counter[self.prefix]
        return round_id, dist.PrefixStore(keys.ROUND.format(self.prefix, round_id), self.store)


def agree(proposal: Proposal, participants: Participants, deadline: Deadline) -> int:
    """Check in, and return when every rank has checked in with the same request.

    Collective over the participants.

    Cost: 5 store operations per rank.
    """

    def take_part() -> tuple[int, str]:
        round_id, store = participants.next_round()
        check_in = CheckIn(ProcessIdentity.current(), proposal.request)
        decision = Round(proposal, participants, deadline, store, check_in).decide()
        if decision != ALL:
            _leave_last(store, world, store.add(keys.COUNT, 0))
        return round_id, decision

    world = participants.world
    round_id, decision = store_call(world, deadline.left + STORE_GRACE, take_part)
    if decision == ALL:
        return round_id
    raise _as_seen_by(world.rank, error_from_json(decision))


def announce_failure(
    proposal: Proposal, participants: Participants, error: BaseException
) -> int | None:
    """Report to the other ranks, in their next round, that this rank's own call failed.

    Local. Returns the rank that has reported the same error before, if there is one. Rank 0 waits
    up to 5 s for the others to read it. Nothing happens if no rank waits, or if the store is gone.
    """
    rank = participants.world.rank
    report = failure_report(proposal.conflict_summary, rank, error)

    def post() -> int | None:
        _, store = participants.next_round()
        # before the check-in: the last rank to check in decides "all"
        decision = store.compare_set(keys.DECISION, "", error_to_json(report)).decode()
        CheckIn.current({}).post(store, rank)
        _leave_last(store, participants.world, len(participants.ranks), FAILURE_GRACE)
        return None if decision == ALL else first_reporter(error_from_json(decision), report)

    try:
        return run_with_deadline(FAILURE_GRACE + STORE_GRACE, post)
    except (RuntimeError, DeadlineExceededError):  # of the store; the caller has an error to raise
        return None


@dataclass(frozen=True)
class Round:
    """One agreement round of this rank: check in, wait, decide.

    Attributes:
        proposal: the request of this rank.
        participants: the ranks and their store.
        deadline: the end of the wait.
        store: the store of this round.
        check_in: the process and the request of this rank.
    """

    proposal: Proposal
    participants: Participants
    deadline: Deadline
    store: dist.Store
    check_in: CheckIn

    def decide(self) -> str:
        """Check in, wait, and return the decision."""
        conflict = self._post_conflict()
        # If the decision is "all", the other ranks have agreed without this one.
        if "dissent" in conflict and self._is_decided_for_all():
            dissent = _dissenting(conflict)
            return error_to_json(disagreement_error(self.proposal.conflict_summary, dissent, []))
        # The conflict is posted first: a rank that sees this check-in also sees the conflict.
        rank = self.participants.world.rank
        self.store.set(keys.CHECK_IN.format(rank), self.check_in.to_json())
        if self._all_arrived():
            decision = self._judge() if self.store.check([keys.CONFLICT]) else ALL
            return str(self.store.compare_set(keys.DECISION, "", decision).decode())
        if not store_wait(self.store, [keys.DECISION], self.deadline):
            self._decide_at_deadline()
        return str(self.store.get(keys.DECISION).decode())

    def _post_conflict(self) -> dict[str, Any]:
        """Post this rank's conflict, if there is one, and return it. The first one posted wins."""
        proposal, rank = self.proposal, self.participants.world.rank
        clash = conflicting_claim(self.store, rank, proposal.claims) if proposal.claims else None
        request, host = (
            json.dumps(self.check_in.request, sort_keys=True),
            self.check_in.process.host,
        )
        digest = hashlib.sha256(request.encode()).hexdigest()
        own = [digest, rank, self.check_in.to_json(), host]
        first = json.loads(self.store.compare_set(keys.REQUEST, "", json.dumps(own)))
        if first[3] != host:
            self.store.set(keys.SEVERAL_HOSTS, "")
        conflict: dict[str, Any] = {}
        if clash is not None:
            conflict = {"claim": error_to_json(clash)}
        elif first[0] != digest:
            conflict = {"dissent": [first[1:3], own[1:3]]}
        elif proposal.failure is not None:
            conflict = {"failure": error_to_json(proposal.failure)}
        if conflict:
            self.store.compare_set(keys.CONFLICT, "", json.dumps(conflict))
        return conflict

    def _is_decided_for_all(self) -> bool:
        """Return whether the decision is "all" already."""
        decided = self.store.check([keys.DECISION])
        return decided and self.store.get(keys.DECISION).decode() == ALL

    def _all_arrived(self) -> bool:
        """Return whether this rank, which has checked in, is the last. Cost: one store operation.

        A store with the extended API counts check-ins. A FileStore re-reads its file on every
        operation, so there this function looks for the keys.
        """
        ranks = self.participants.ranks
        if self.store.has_extended_api():  # type: ignore[attr-defined]
            return bool(self.store.add(keys.COUNT, 1) >= len(ranks))
        return bool(self.store.check([keys.CHECK_IN.format(rank) for rank in ranks]))

    def _decide_at_deadline(self) -> None:
        """Write the decision, as the first rank whose deadline has expired; others wait for it."""
        is_first = self.store.add(keys.DECIDERS, 1) == 1
        if is_first or not store_wait(self.store, [keys.DECISION], Deadline.after(DECISION_TIME)):
            self.store.compare_set(keys.DECISION, "", self._judge())

    def _judge(self) -> str:
        """Return the decision about the ranks that have arrived."""
        proposal, ranks = self.proposal, self.participants.ranks
        check_ins = read_check_ins(self.store, ranks)
        missing = [rank for rank in ranks if rank not in check_ins]
        has_conflict = self.store.check([keys.CONFLICT])
        conflict = json.loads(self.store.get(keys.CONFLICT)) if has_conflict else {}
        if "dissent" in conflict:  # a rank of another world size is not among our ranks
            check_ins |= _dissenting(conflict)
            return error_to_json(disagreement_error(proposal.conflict_summary, check_ins, missing))
        if "claim" in conflict:
            return str(conflict["claim"])
        if missing:
            return error_to_json(self._missing_ranks_error(check_ins, missing))
        return str(conflict.get("failure", ALL))

    def _missing_ranks_error(
        self, check_ins: Mapping[int, CheckIn], missing: Sequence[int]
    ) -> RankTimeoutError:
        """Return the error that names the missing ranks, their last hosts, and absent hosts."""
        proposal, participants = self.proposal, self.participants
        seen = last_seen(participants.store, participants.world.rank, missing)
        return missing_ranks_error(
            proposal.stage,
            self.deadline.timeout.total_seconds(),
            check_ins,
            missing,
            proposal.describe_rank,
            *[f"Last seen: {'; '.join(seen)}."] * bool(seen),
            *_absent_hosts(proposal.expected_hosts(), check_ins),
        )


def _dissenting(conflict: Mapping[str, Any]) -> dict[int, CheckIn]:
    """Return the check-ins of the two ranks whose requests differ."""
    return {rank: CheckIn.from_json(check_in) for rank, check_in in conflict["dissent"]}


def _absent_hosts(expected: Sequence[str], check_ins: Mapping[int, CheckIn]) -> list[str]:
    """Return a line on the hosts without check-ins, if the launcher and the hosts use one name."""
    names = {check_in.process.host.partition(".")[0] for check_in in check_ins.values()}
    absent = [host for host in expected if host.partition(".")[0] not in names]
    known = absent and len(absent) < len(expected)
    hosts = f"{plural('host', len(absent))} {', '.join(first_few(absent))}"
    return [f"No rank came from {hosts}."] * bool(known)


def _as_seen_by(rank: int, error: MeshkitError) -> MeshkitError:
    """Return the decision's error, with a note if this rank arrived too late."""
    if isinstance(error, RankTimeoutError) and rank in error.missing_ranks:
        error.evidence += (f"Rank {rank} came after that.",)
    return error


def _leave_last(store: dist.Store, world: World, readers: int, seconds: float = HOST_GRACE) -> None:
    """On rank 0, which may host the store, wait until all ranks have read, or some seconds."""
    deadline = Deadline.after(seconds)
    read = store.add(keys.READ, 1)
    if world.rank == 0 and hosted_by_rank_0(world):
        while read < readers and deadline.sleep(0.01):
            read = store.add(keys.READ, 0)
