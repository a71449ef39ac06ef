"""Ranks meet at a store under one deadline: who came, who did not, and who asked for what.

A meeting has one verdict, and the first to write it decides: the last rank to check in writes that
all are here and ask for the same, or who asks for what; a rank whose deadline has passed writes who
is missing; a rank whose own call was refused writes that. Everybody, those who come late included,
obeys what stands there::

    rank 0   check in ............................ wait ... reads "all"
    rank 1   check in .... wait .................. wait ... reads "all"
    rank 2   check in, the last of three: writes "all"

What ranks bring to a meeting they claim before they check in; where two claims clash, that becomes
the verdict once all are here, or the deadline has passed. A rank needs five store operations, one
more a claim, and one more where someone else made the default group; whoever writes a verdict other
than "all" looks at every rank. Nothing read from the store is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...core.errors import CALL, MeshkitError, RankTimeoutError
from ...core.text import plural
from ..launchers.world import World
from ..store.check_in import (
    ALL,
    ELSEWHERE,
    CheckIn,
    check_ins,
    disagreement_error,
    error_from_json,
    error_to_json,
    failure_report,
    first_few,
    missing_ranks_error,
)
from ..store.client import STORE_GRACE, Generation, hosted_by_rank_0, store_call
from ..store.deadline import DeadlineExceededError, run_with_deadline
from ..store.rank_lease import last_seen
from .claims import Claim, conflicting_claim

# The process that hosts the store must outlive the others' reading of the verdict, or they lose it.
HOST_GRACE = 1.0
FAILURE_GRACE = 5.0  # where it was refused itself, others may still be starting
DECIDING = 1.0  # seconds in which one rank looks at all others


@dataclass(frozen=True)
class Proposal:
    """What a meeting is about.

    Attributes:
        operation: the public call that proposes, for example ``"build_mesh"``.
        request: what must be equal on all ranks, field by field.
        about: line one of the error where it is not.
        claims: what must be equal on the ranks that claim it, or a rank's alone.
        place: a rank's coordinate in words, for errors.
        stage: what of the call, where not its beginning: ``"the end of "``.
        hosts: where ranks are expected, as far as the launcher says.
        failure: what went wrong on this rank before; all raise it, unless a rank is missing, as
            that explains it.
    """

    operation: str
    request: Mapping[str, str]
    about: str
    claims: tuple[Claim, ...] = ()
    place: Callable[[int], str] | None = None
    stage: str = ""
    hosts: Callable[[], Sequence[str]] = tuple
    failure: MeshkitError | None = None


@dataclass(frozen=True)
class Participants:
    """Who meets where.

    Attributes:
        store: that of the job, under the prefix of its generation.
        world: who this process is.
        ranks: who meets, this one among them.
        keys: before the keys of these meetings, where not the whole world meets.
    """

    store: dist.Store
    world: World
    ranks: Sequence[int]
    keys: str = ""

    @classmethod
    def of(cls, store: dist.Store, world: World) -> Participants:
        """All ranks of a world."""
        return cls(store, world, range(world.world_size))

    def next_meeting(self) -> tuple[int, dist.Store]:
        """The number and the keys of this rank's next meeting.

        Every rank counts its own meetings, whatever they are about, so that the keys of an earlier
        one are never met again, and ranks that make different calls meet.
        """
        if isinstance(self.store, Generation):
            number = self.store.next_meeting(self.keys)
        else:  # someone else's, which may have been there for an earlier group
            number = int(self.store.add(f"{self.keys}meetings/{self.world.rank}", 1))
        return number, dist.PrefixStore(f"{self.keys}meeting/{number}", self.store)


def agree(
    matter: Proposal, party: Participants, wait: timedelta, *, since: float | None = None
) -> int:
    """Check in, and return when every rank has, with the same request.

    Collective over the ranks of the party; five store operations a rank.

    Args:
        matter: what the meeting is about.
        party: who meets where.
        wait: how long to wait for the others.
        since: when that time began, on the monotonic clock; None means now.

    Returns:
        The number of the meeting, the same on every rank.

    Raises:
        DisagreementError: where ranks ask for different things, or one of them gave up; the same
            on every rank.
        MeshkitError: the error of a claim that clashes, the same on every rank.
        RankTimeoutError: naming the ranks that did not check in, the same on every rank that did.
            All of them within ``wait``, plus up to a second by which a FileStore rounds, plus up to
            a second in which one of them looks at all, plus on rank 0 up to a second more so that
            all can read it. Where the store itself answers nothing, within ``wait`` plus 4 s.
    """
    began = time.monotonic() if since is None else since
    left = max(0.001, began + wait.total_seconds() - time.monotonic())
    limit = left + STORE_GRACE
    number, said = store_call(party.world, limit, lambda: _held(matter, party, left, wait))
    if said == ALL:
        return number
    raise _obeyed(error_from_json(said), party.world.rank)


def announce_failure(matter: Proposal, party: Participants, error: BaseException) -> None:
    """Tell the others that this rank's own call failed, in the meeting to which they come.

    Local: it waits for nobody but, on rank 0, five seconds for the others to read it. Harmless
    where nobody waits, and where the store is gone.
    """

    def tell() -> None:
        _, meeting = party.next_meeting()
        words = error_to_json(failure_report(matter.about, party.world.rank, error))
        meeting.compare_set("verdict", "", words)  # before it is here: the last to come says "all"
        meeting.set(f"here/{party.world.rank}", CheckIn.here({}).written())
        _leave_last(meeting, party.world, len(party.ranks), FAILURE_GRACE)

    try:
        run_with_deadline(FAILURE_GRACE + STORE_GRACE, tell)
    except (
        RuntimeError,
        DeadlineExceededError,
    ):  # of a store; the caller has its own error to tell
        return


def _held(matter: Proposal, party: Participants, left: float, wait: timedelta) -> tuple[int, str]:
    """The number of the meeting, and its verdict."""
    number, meeting = party.next_meeting()
    said = _verdict(matter, party, meeting, timedelta(seconds=left), wait)
    if said != ALL:
        _leave_last(meeting, party.world, meeting.add("count", 0))
    return number, said


def _verdict(
    matter: Proposal, party: Participants, meeting: dist.Store, left: timedelta, wait: timedelta
) -> str:
    """Claim, check in and wait; what the verdict says."""
    rank, here = party.world.rank, CheckIn.here(matter.request)
    odd = _object(matter, meeting, rank, here)
    if odd and meeting.check(["verdict"]) and meeting.get("verdict").decode() == ALL:
        return error_to_json(
            disagreement_error(matter.about, odd, [])
        )  # it comes to a job that runs already
    # After all that could differ: whoever finds this rank here has found the difference too.
    meeting.set(f"here/{rank}", here.written())
    if _all_here(meeting, party.ranks):
        words = _judged(matter, party, meeting, wait) if meeting.check(["trouble"]) else ALL
        return str(meeting.compare_set("verdict", "", words).decode())
    try:
        meeting.wait(["verdict"], left)
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # the deadline; FileStore says RuntimeError
        _judge(matter, party, meeting, wait)
    return str(meeting.get("verdict").decode())


def _all_here(meeting: dist.Store, ranks: Sequence[int]) -> bool:
    """Whether this rank, which has checked in, is the last. One store operation.

    Of a file every rank reads every word: there the ranks are looked for rather than counted.
    """
    if meeting.has_extended_api():  # type: ignore[attr-defined]
        return bool(meeting.add("count", 1) >= len(ranks))
    return bool(meeting.check([f"here/{rank}" for rank in ranks]))


def _judge(matter: Proposal, party: Participants, meeting: dist.Store, wait: timedelta) -> None:
    """Write the verdict, as the first whose deadline has passed; the others wait for that one."""
    if meeting.add("judges", 1) > 1:
        try:
            return meeting.wait(["verdict"], timedelta(seconds=DECIDING))
        except dist.DistNetworkError:
            raise
        except (dist.DistStoreError, RuntimeError):  # that one has gone
            pass
    meeting.compare_set("verdict", "", _judged(matter, party, meeting, wait))


def _object(matter: Proposal, meeting: dist.Store, rank: int, here: CheckIn) -> dict[int, CheckIn]:
    """Write down what this rank has against the meeting; what is written first counts.

    Returns:
        The first rank and this one, where they ask for different things.
    """
    clash = conflicting_claim(meeting, rank, matter.claims)
    digest = hashlib.sha256(json.dumps(dict(matter.request), sort_keys=True).encode()).hexdigest()
    mine = [digest, rank, here.written()]
    first = json.loads(meeting.compare_set("request", "", json.dumps(mine)))
    if json.loads(first[2])["host"] != here.host:
        meeting.set(ELSEWHERE, "")
    trouble: dict[str, Any] = {}
    if clash is not None:
        trouble = {"clash": error_to_json(clash)}
    elif first[0] != digest:
        trouble = {"odd": [first[1:], mine[1:]]}
    elif matter.failure is not None:
        trouble = {"failure": error_to_json(matter.failure)}
    if trouble:
        meeting.compare_set("trouble", "", json.dumps(trouble))
    return _odd(trouble)


def _odd(trouble: Mapping[str, Any]) -> dict[int, CheckIn]:
    """The two ranks of a trouble that is a difference."""
    return {rank: CheckIn(**json.loads(here)) for rank, here in trouble.get("odd", ())}


def _judged(matter: Proposal, party: Participants, meeting: dist.Store, wait: timedelta) -> str:
    """The verdict on those who came, by whoever has to write it."""
    came = check_ins(meeting, party.ranks)
    missing = [rank for rank in party.ranks if rank not in came]
    trouble = json.loads(meeting.get("trouble")) if meeting.check(["trouble"]) else {}
    if "odd" in trouble:  # a rank of another world size would not be found among ours
        came |= _odd(trouble)
        return error_to_json(disagreement_error(matter.about, came, missing))
    if "clash" in trouble:
        return str(trouble["clash"])
    if missing:
        seen = last_seen(party.store, party.world.rank, missing)
        more = [f"Last seen: {'; '.join(seen)}."] * bool(seen) + _unseen(matter.hosts(), came)
        what, seconds = f"{matter.stage}{CALL}", wait.total_seconds()
        return error_to_json(missing_ranks_error(what, seconds, came, missing, matter.place, *more))
    return str(trouble.get("failure", ALL))


def _unseen(expected: Sequence[str], came: Mapping[int, CheckIn]) -> list[str]:
    """The hosts from which nobody came, where the launcher calls hosts as they call themselves."""
    short = {one.host.partition(".")[0] for one in came.values()}
    unseen = [host for host in expected if host.partition(".")[0] not in short]
    known = unseen and len(unseen) < len(expected)
    hosts = f"{plural('host', len(unseen))} {', '.join(first_few(unseen))}"
    return [f"No rank came from {hosts}."] * bool(known)


def _obeyed(error: MeshkitError, rank: int) -> MeshkitError:
    """The error of the verdict, as a rank that came too late tells it."""
    if not isinstance(error, RankTimeoutError) or rank not in error.missing_ranks:
        return error
    before, _, fix = str(error).rpartition("\n  Fix: ")
    text = f"{before}\n  Rank {rank} came after that.\n  Fix: {fix}"
    return RankTimeoutError(text, missing_ranks=error.missing_ranks)


def _leave_last(meeting: dist.Store, world: World, readers: int, slack: float = HOST_GRACE) -> None:
    """On rank 0, which may host the store: wait until all have read, or a moment."""
    deadline = time.monotonic() + slack
    read = meeting.add("read", 1)
    hosts = world.rank == 0 and hosted_by_rank_0(world)
    while hosts and read < readers and time.monotonic() < deadline:
        time.sleep(0.01)
        read = meeting.add("read", 0)
