"""The roll call after a failed collective: every rank posts its status through the store.

The first rank that fails starts the roll call; this rank is the caller. Every rank in a guard
answers; the watching thread answers for a rank that hangs. The caller writes the report once all
ranks have answered or a few seconds have passed, and all ranks raise the report. A mesh has one
report: later failures are consequences and reuse the report. If a watching thread only suspected a
hang and no rank is behind, the roll call ends without a report.

The process that hosts the store leaves last: rank 0 stays until all ranks have read the report. A
watching thread reads the report at once, since the main thread may raise an error of its own later.
If a rank has left with an error, the report is written before all ranks have answered. Rank 0 then
stays for the others::

    rank 3   leaves with an error
    rank 0   roll call ... report after 0.3 s ... stays, 4 s at most .... raises
    rank 2   gets no time on a busy machine ............ answers, reads it, raises
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from ...core.errors import CollectiveError, MeshkitError
from ...core.group_plan import Axes
from ...core.hang import Life, RankStatus, Silence, hang_error
from ...core.layout import Layout
from ...launch.current_job import Job
from ...launch.store.client import hosted_by_rank_0, store_lost_error
from ...launch.store.deadline import DeadlineExceededError, run_with_deadline
from ...launch.store.error_json import error_from_json, error_to_json
from ...launch.store.foreign_value import read_value, reading
from ...launch.store.keys import LEFT
from ...launch.store.rank_lease import STATES, LeaseHolder, read_lease_holders
from ..setup.close import STATUS, guard_store
from ..setup.proposal import describe_coordinate

ANSWER_TIME = 3.0  # seconds for the answers, in addition to two polls of the watching threads
LATE_TIME = 1.0  # seconds at least for ranks without an answer to read the report
KNOWN_TIME = 0.3  # seconds for the answers if a rank has posted the error that it left with
MIN_POLL = 0.5  # seconds between two polls of the store, at least
STATUS_TIMEOUT = 1.0  # seconds in which a rank that leaves posts its status
POLLS_PER_SECOND = 4000  # polls of all ranks, at most; a store serves 85,000 operations/s


@dataclass
class GuardState:
    """The roll calls of one mesh, as this rank knows them. The mesh owns it."""

    # whether this rank left a guard with an error of its own, and entered none since
    has_left: bool = False
    # roll call id to the time at which this rank answered
    answered: dict[int, float] = field(default_factory=dict)
    # roll call id to the report that this rank has read, kept since the store may end
    reports: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GuardContext:
    """The parts of a mesh that a guard uses."""

    layout: Layout
    record: Job  # the current job
    # axes to this rank's group; the axes are keys of the group plan
    groups: Mapping[Axes, dist.ProcessGroup]
    round_id: int  # id of the agreement round in which the mesh was built
    state: GuardState  # the state of the mesh's roll calls

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.record.world.rank

    @property
    def keys(self) -> dist.Store | None:
        """The store prefix of this mesh's roll calls; None if torch exposes no store."""
        root = self.record.store
        return None if root is None else guard_store(root, self.round_id)

    @property
    def poll_interval(self) -> float:
        """Seconds between two polls of a watching thread."""
        return max(MIN_POLL, self.layout.num_ranks / POLLS_PER_SECOND)

    @property
    def answer_time(self) -> float:
        """Seconds in which all ranks can answer."""
        return ANSWER_TIME + 2 * self.poll_interval


def post_status(keys: dist.Store, status: RankStatus, call_id: int = 0) -> None:
    """Post the status of this rank. Cost: one store operation."""
    keys.set(STATUS.format(status.rank), json.dumps({**asdict(status), "call": call_id}))


def respond(context: GuardContext, keys: dist.Store, status: RankStatus) -> None:
    """Answer an open roll call for another thread, and read the report.

    Cost: one store operation when no roll call is open, else up to 5.
    """
    call_id, state = num_calls(keys), context.state
    if call_id and call_id not in state.answered:
        state.answered[call_id] = time.monotonic()
        post_status(keys, status, call_id)
    if call_id and call_id not in state.reports and keys.check([f"report/{call_id}"]):
        _read_report(context, keys, call_id)


def withdraw_status(keys: dist.Store, rank: int) -> None:
    """Remove the status that this rank posted when it left. Cost: one store operation."""
    keys.set(STATUS.format(rank), "")


def num_calls(keys: dist.Store) -> int:
    """Return how many roll calls were started. Cost: one store operation."""
    return int(keys.add("calls", 0))


def report_failure(context: GuardContext, summary: str, status: RankStatus) -> MeshkitError | None:
    """Start a roll call, or answer the open one; return the error that all ranks raise.

    Collective over the ranks that are alive. This rank waits ``answer_time`` seconds for the
    others, or twice that if the caller has died. If the store is gone, the result is the last
    report that this rank has read, or a report of its own status. Call :func:`leave_last` after it.
    """
    keys, reports = context.keys, context.state.reports
    if keys is None:
        return _local_report(context, summary, status, ())
    try:
        run_with_deadline(ANSWER_TIME, lambda: num_calls(keys))  # do not wait long for a dead store
        limit = 2 * (context.answer_time + ANSWER_TIME)
        text = run_with_deadline(limit, lambda: _run_roll_call(context, keys, summary, status))
    except (RuntimeError, DeadlineExceededError):
        text = reports.get(max(reports, default=0), "")
        if not text:
            host = store_lost_error(context.record.world).missing_ranks
            return _local_report(context, summary, status, host)
    return read_value("report", text, error_from_json) if text else None


def _run_roll_call(
    context: GuardContext, keys: dist.Store, summary: str, status: RankStatus
) -> str:
    """Return the report as text; this rank writes the report if the caller does not in time."""
    call_id, is_caller = _open_call(keys, status.rank)
    context.state.answered.setdefault(call_id, time.monotonic())
    post_status(keys, status, call_id)
    if not is_caller:
        try:
            keys.wait([f"report/{call_id}"], timedelta(seconds=context.answer_time + 1))
        except dist.DistNetworkError:
            raise
        except (dist.DistStoreError, RuntimeError):  # timed out; a FileStore raises RuntimeError
            pass
    if not keys.check([f"report/{call_id}"]):
        report = _gather_report(context, keys, summary, call_id)
        text = error_to_json(report) if summary or report.behind or report.missing_ranks else ""
        keys.compare_set(f"report/{call_id}", "", json.dumps(text))
    return _read_report(context, keys, call_id)


def _read_report(context: GuardContext, keys: dist.Store, call_id: int) -> str:
    """Read a report that exists, keep it, and post that this rank has read it."""
    key = f"report/{call_id}"
    text = str(read_value(key, keys.get(key), json.loads))
    context.state.reports[call_id] = text
    keys.set(f"read/{call_id}/{context.rank}", "1")
    return text


def leave_last(context: GuardContext) -> None:
    """Wait on rank 0, if it hosts the store, until each rank that answered has read the report.

    Local. It takes ``answer_time`` seconds at most. A rank that has not answered yet has as long,
    counted from the answer of rank 0, or a second if that is over.
    """
    keys, is_host = context.keys, hosted_by_rank_0(context.record.world)
    if keys is None or context.rank or not is_host or not any(context.state.reports.values()):
        return
    began, call_id = time.monotonic(), max(context.state.reports)
    answered = context.state.answered.get(call_id, began)
    late = max(began + LATE_TIME, answered + context.answer_time)

    def stay() -> None:
        while (now := time.monotonic()) < began + context.answer_time:
            if not any(_unread(context, keys, call_id, is_early=now < late)):
                return
            time.sleep(0.05)

    with suppress(
        RuntimeError, DeadlineExceededError
    ):  # another process hosted the store after all
        run_with_deadline(context.answer_time, stay)


def _unread(
    context: GuardContext, keys: dist.Store, call_id: int, *, is_early: bool
) -> Iterator[bool]:
    """Yield for each rank with an unread report whether it may still read it.

    It does if it has answered this roll call; early on also if it has posted nothing, has not left
    the job, and its process is not known to have ended.
    """
    for rank in map(int, context.layout.grid.flat):
        if keys.check([f"read/{call_id}/{rank}"]):
            continue
        if posted := _posted_status(keys, rank, call_id):
            yield posted["call"] == call_id
        elif is_early and context.record.store is not None:
            has_left = _after_shutdown(context, rank) is not None
            holders = {} if has_left else read_lease_holders(context.record.store, [rank])
            yield rank in holders and not holders[rank].life().is_certain


def _open_call(keys: dist.Store, rank: int) -> tuple[int, bool]:
    """Return the id of the open roll call, or of the last one, and whether this rank opened it.

    A roll call whose report is empty is over, so the next roll call gets a new id.
    """
    call_id = num_calls(keys)
    over = call_id == 0 or (
        keys.check([f"report/{call_id}"]) and not json.loads(keys.get(f"report/{call_id}"))
    )
    if not over:
        return call_id, False
    caller = keys.compare_set(f"caller/{call_id + 1}", "", str(rank)).decode()
    if caller == str(rank):
        keys.add("calls", 1)
    return call_id + 1, caller == str(rank)


def _gather_report(
    context: GuardContext, keys: dist.Store, summary: str, call_id: int
) -> CollectiveError:
    """Return the report on all ranks, silent ranks included."""
    ranks = sorted(int(rank) for rank in context.layout.grid.flat)
    record = context.record
    known: dict[int, LeaseHolder] = {}
    if record.store is not None:
        known = read_lease_holders(record.store, ranks, record.lease_generation)
    began = time.monotonic()
    deadline = began + context.answer_time
    answers: dict[int, RankStatus] = {}
    while True:
        left: dict[int, RankStatus] = {}  # ranks that left with their own error, before this call
        for rank in (r for r in ranks if r not in answers):
            if posted := _posted_status(keys, rank, call_id):
                by_rank = answers if posted.pop("call") == call_id else left
                with reading(STATUS.format(rank), json.dumps(posted)):
                    by_rank[rank] = _parse_status(posted)
        silent = [rank for rank in ranks if rank not in answers]
        unknown = [rank for rank in silent if rank not in left]
        left |= {r: status for r in unknown if (status := _after_shutdown(context, r))}
        if left:  # the reason is known
            deadline = min(deadline, began + KNOWN_TIME)
        awaited = [rank for rank in silent if rank not in left]
        alive = [rank for rank in awaited if rank not in known or known[rank].runs() is not False]
        if not alive or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    reasons = {rank: _silence(known.get(rank)) for rank in silent if rank not in left}
    first_line = summary or f"rank {context.rank} begins no collective."
    return _error(context, first_line, {**left, **answers}, reasons)


def _posted_status(keys: dist.Store, rank: int, call_id: int) -> dict[str, Any]:
    """Return the answer of a rank to a roll call, or the status with which it left; else nothing.

    The answer to an earlier roll call, which ended without a report, is out of date.
    """
    key = STATUS.format(rank)
    posted = _read_status(keys, key) if keys.check([key]) else {}
    return posted if posted.get("call") in (0, call_id) else {}


def _read_status(keys: dist.Store, key: str) -> dict[str, Any]:
    """Return what a rank has posted; empty if it has withdrawn that."""
    return read_value(key, keys.get(key) or "{}", lambda text: dict(json.loads(text).items()))


def _parse_status(posted: Mapping[str, Any]) -> RankStatus:
    """Return the status that a rank has posted as JSON."""
    begun = {str(axes): int(count) for axes, count in posted.get("begun", {}).items()}
    names = ("operation", "line", "error", "ended_by")
    texts = {name: str(posted.get(name, "")) for name in names}
    return RankStatus(int(posted["rank"]), begun, **texts)


def _after_shutdown(context: GuardContext, rank: int) -> RankStatus | None:
    """Return the status of a rank that has left the job by itself; None for all others."""
    store = context.record.store
    has_left = store is not None and store.check([LEFT.format(rank)])
    return RankStatus(rank, ended_by="meshkit.shutdown()") if has_left else None


def _silence(holder: LeaseHolder | None) -> Silence:
    """Return the facts known about a rank that does not answer."""
    if holder is None:
        return Silence(Life.UNKNOWN, "no answer")
    life = holder.life()
    busy = ", outside a guard with a timeout or too busy to answer" if life is Life.BUSY else ""
    return Silence(life, f"{holder}; {STATES[life]}{busy}")


def _local_report(
    context: GuardContext, summary: str, status: RankStatus, gone: Sequence[int]
) -> CollectiveError:
    """Return the report of a rank that reaches no other rank."""
    facts = Silence(Life.UNKNOWN, "it hosted the store, which does not answer")
    silent = dict.fromkeys(gone, facts)
    return _error(context, summary, {status.rank: status}, silent)


def _error(
    context: GuardContext,
    summary: str,
    statuses: Mapping[int, RankStatus],
    silent: Mapping[int, Silence],
) -> CollectiveError:
    """Return the error that all ranks raise."""
    layout = context.layout
    return hang_error(summary, layout, statuses, silent, partial(describe_coordinate, layout))
