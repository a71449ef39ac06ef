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

Cost: 4 store operations per rank, one more per claim, and one more if the default group is not
meshkit's. A rank that decides anything but "all" reads all check-ins.

After agreement, ranks create groups. torch waits for peers there, with its own timeouts: a rank
that dies at that moment would block the others for half an hour. Creation therefore gets the time
that ranks wait for each other, and a second round follows. All ranks there have compared their
requests in the round before, so the last one only looks at how many of them are at the end of a
call. If a rank has made another call instead, all raise as soon as every rank has arrived::

    rank 0   create ........ created   check in ............... reads: 2 is missing, undo
    rank 1   create ................ failed   check in ........ reads: 2 is missing
    rank 2   create .. dies
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from ...core.errors import DisagreementError, MeshkitError, RankTimeoutError
from ..store import keys
from ..store.check_in import CheckIn, ProcessIdentity
from ..store.client import hosted_by_rank_0
from ..store.deadline import (
    STORE_GRACE,
    Deadline,
    DeadlineExceededError,
    run_with_deadline,
    store_call,
    store_get,
    store_wait,
)
from ..store.error_json import error_from_json, error_to_json
from ..store.file_store import check_file
from ..store.foreign_value import FAULTS, foreign_value_error, read_value
from ..torch_internals import CONNECT_ATTEMPTS
from ..world import World
from .proposal import Participants, Proposal

Created = TypeVar("Created")

HOST_GRACE = 1.0  # seconds that rank 0, which may host the store, stays so that others can read
# seconds that rank 0 stays after its own call failed; other ranks may still be starting
FAILURE_GRACE = 5.0
DECISION_TIME = 1.0  # seconds in which one rank reads all check-ins
MIN_TIMEOUT = timedelta(seconds=10)  # a busy machine needs two seconds per attempt
REPORT_GRACE = timedelta(seconds=3)  # for ranks that fail just before the deadline
AGREED = keys.ALL.encode()  # the decision as a rank reads it
END = 1 << 32  # a rank at the end of a call adds so much to the count of its round, and 1


def agree(proposal: Proposal, participants: Participants, deadline: Deadline) -> int:
    """Check in, and return when every rank has checked in with the same request.

    Collective over the participants.

    Cost: 4 store operations per rank.
    """

    def take_part() -> tuple[int, bytes]:
        round_id, store = next_round(participants)
        request = {"call": f"{proposal.stage}{proposal.operation}", **proposal.fields}
        process = ProcessIdentity(socket.gethostname(), os.getpid())
        check_in = CheckIn(process, request, proposal.seconds)
        kind = bool(proposal.stage), store.has_extended_api()  # type: ignore[attr-defined]
        decision = Round(proposal, participants, deadline, store, check_in, *kind).decide()
        if decision != AGREED:
            _leave_last(store, world, store.add(keys.COUNT, 0) % END)
        return round_id, decision

    world = participants.world
    round_id, decision = store_call(world, deadline.left + STORE_GRACE, take_part)
    if decision == AGREED:
        return round_id
    raise _as_seen_by(world.rank, read_value(keys.DECISION, decision, error_from_json))


def commit(
    proposal: Proposal,
    participants: Participants | None,
    timeout: timedelta,
    create: Callable[[timedelta], Created],
    undo: Callable[[Created], None],
    *,
    connects: bool,
) -> Created:
    """Return the result of ``create``, once every rank has created it. Collective.

    Cost: 3 store operations per rank, 4 in a file.
    """
    limit = max(timeout, MIN_TIMEOUT)
    deadline = Deadline.after(limit + REPORT_GRACE)
    work = partial(create, limit / CONNECT_ATTEMPTS)
    if participants is None:
        return work()
    try:
        created = _run_bounded(limit, work, undo) if connects else work()
    except RuntimeError as error:  # torch's own: a peer may be the reason
        _find_reason(proposal, participants, deadline, error)
        raise
    except BaseException as error:  # this rank's own
        announce_failure(proposal, participants, error)
        raise
    try:
        # A rank that closed its groups while another still connects would leave that one hanging.
        limited = deadline if connects else Deadline.after(limit + REPORT_GRACE)
        round_id = agree(proposal, participants, limited)
    except BaseException:
        undo(created)
        raise
    if proposal.report is not None:
        proposal.report(round_id)
    return created


def _find_reason(
    proposal: Proposal, participants: Participants, deadline: Deadline, error: RuntimeError
) -> None:
    """Find out why creation failed, unless this rank is the reason."""
    from .disagreement import failure_report

    rank = participants.world.rank
    failure = failure_report(proposal.conflict_summary, rank, error)
    try:
        agree(proposal._replace(failure=failure), participants, deadline)
    except DisagreementError as reason:
        if rank not in reason.requests:
            raise reason from error
    except MeshkitError as reason:
        raise reason from error


def _run_bounded(
    limit: timedelta, work: Callable[[], Created], undo: Callable[[Created], None]
) -> Created:
    """Return the result of the work, or undo it if it comes too late."""
    try:
        return run_with_deadline((limit + REPORT_GRACE / 2).total_seconds(), work, late=undo)
    except DeadlineExceededError:
        seconds = limit.total_seconds()
        raise RuntimeError(f"it did not finish within {seconds:g} s") from None


def announce_failure(proposal: Proposal, participants: Participants, error: BaseException) -> None:
    """Report to the other ranks, in their next round, that this rank's own call failed.

    Local. Rank 0 waits up to 5 s for the others to read it. Nothing happens if no rank waits, or if
    the store is gone.
    """
    from .disagreement import failure_report

    rank = participants.world.rank
    report = failure_report(proposal.conflict_summary, rank, error)

    def post() -> None:
        _, store = next_round(participants)
        # before the check-in: the last rank to check in decides "all"
        store.compare_set(keys.DECISION, "", error_to_json(report))
        CheckIn(ProcessIdentity.current()).post(store, rank)
        _leave_last(store, participants.world, len(participants.ranks), FAILURE_GRACE)

    with suppress(RuntimeError, DeadlineExceededError):  # of the store; the caller raises its error
        run_with_deadline(FAILURE_GRACE + STORE_GRACE, post)


def next_round(participants: Participants) -> tuple[int, dist.Store]:
    """Return the id and the store of this rank's next round of these participants.

    Every rank counts its rounds, whatever they are about. Ranks that make different calls
    therefore enter the same round and see the difference.

    Cost: no store operation if ranks count locally, else one.
    """
    store, prefix, counter = participants.store, participants.prefix, participants.counter
    check_file(store)
    if counter is None:
        round_id = int(store.add(keys.ROUNDS.format(prefix, participants.world.rank), 1))
    else:
        counter[prefix] += 1
        round_id = counter[prefix]
    return round_id, dist.PrefixStore(keys.ROUND.format(prefix, round_id), store)


class Round(NamedTuple):
    """One agreement round of this rank: check in, wait, decide.

    Attributes:
        proposal: the request of this rank.
        participants: the ranks and their store.
        deadline: the end of the wait.
        store: the store of this round.
        check_in: the process and the request of this rank.
        is_end: whether the ranks have compared their requests in the round before.
        has_counter: whether ranks count their check-ins. A FileStore re-reads its file on every
            operation, so there ranks look for the keys, and compare their requests at the end too.
    """

    proposal: Proposal
    participants: Participants
    deadline: Deadline
    store: dist.Store
    check_in: CheckIn
    is_end: bool
    has_counter: bool

    def decide(self) -> bytes:
        """Check in, wait, and return the decision."""
        ranks, check_in = self.participants.ranks, json.dumps(self.check_in._asdict())
        conflict = self._post_conflict(check_in)
        # If the decision is "all", the other ranks have agreed without this one.
        if "dissent" in conflict and self._is_decided_for_all():
            from .verdict import judge_late

            return judge_late(self.proposal, conflict).encode()
        # The conflict is posted first: a rank that sees this check-in also sees the conflict.
        self.store.set(keys.CHECK_IN.format(self.participants.world.rank), check_in)
        if self.has_counter:
            ends, count = divmod(self.store.add(keys.COUNT, END * self.is_end + 1), END)
            is_last, is_mixed = count >= len(ranks), 0 < ends < count
        else:
            keys_of_all = [keys.CHECK_IN.format(rank) for rank in ranks]
            is_last, is_mixed = self.store.check(keys_of_all), False
        if is_last:
            decision = self._judge() if is_mixed or self.store.check([keys.CONFLICT]) else keys.ALL
            return self.store.compare_set(keys.DECISION, "", decision)
        decided = store_get(self.store, keys.DECISION, len(ranks), self.deadline)
        return self._decide_at_deadline() if decided is None else decided

    def _post_conflict(self, check_in: str) -> dict[str, Any]:
        """Post this rank's conflict, if there is one, and return it. The first one posted wins."""
        proposal, rank = self.proposal, self.participants.world.rank
        conflict: dict[str, Any] = {}
        if proposal.failure is not None:
            conflict = {"failure": error_to_json(proposal.failure)}
        if not (self.is_end and self.has_counter):
            conflict = self._compare(check_in) or conflict
        if proposal.claims:
            from .claims import conflicting_claim

            clash = conflicting_claim(self.store, rank, proposal.claims)
            conflict = conflict if clash is None else {"claim": error_to_json(clash)}
        if conflict:
            self.store.compare_set(keys.CONFLICT, "", json.dumps(conflict))
        return conflict

    def _compare(self, check_in: str) -> dict[str, Any]:
        """Return the conflict of this request with the first one, if they differ.

        The value begins with what equal requests of one host share: then the rest is not parsed.
        """
        proposal, process = self.proposal, self.check_in.process
        request = json.dumps(self.check_in.request, sort_keys=True)
        digest = hashlib.sha256(request.encode()).hexdigest()
        same = [digest, process.host]
        own = [self.participants.world.rank, check_in]
        record = [*same, process.pid, proposal.process_start, *own]
        text = self.store.compare_set(keys.REQUEST, "", json.dumps(record))
        if proposal.check_first is None and text.startswith(json.dumps(same)[:-1].encode()):
            return {}
        try:
            first_digest, host, pid, start, rank, first_check_in = json.loads(text)
            if proposal.check_first is not None:
                proposal.check_first(ProcessIdentity(str(host), int(pid)), str(start))
            if host != process.host:
                self.store.set(keys.SEVERAL_HOSTS, "")
            if first_digest == digest:
                return {}
            CheckIn.from_json(first_check_in)
            return {"dissent": [[int(rank), first_check_in], own]}
        except FAULTS as error:
            raise foreign_value_error(keys.REQUEST, text) from error

    def _is_decided_for_all(self) -> bool:
        """Return whether the decision is "all" already."""
        decided = self.store.check([keys.DECISION])
        return decided and self.store.get(keys.DECISION) == AGREED

    def _decide_at_deadline(self) -> bytes:
        """Decide, as the first rank whose deadline has expired; others wait for it."""
        is_first = self.store.add(keys.DECIDERS, 1) == 1
        if is_first or not store_wait(self.store, [keys.DECISION], Deadline.after(DECISION_TIME)):
            return self.store.compare_set(keys.DECISION, "", self._judge())
        return self.store.get(keys.DECISION)

    def _judge(self) -> str:
        """Return the decision about the ranks that have arrived."""
        from .verdict import judge

        return judge(self.proposal, self.participants, self.deadline, self.store)


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
