"""The roll call: a round in which each rank leaves its status, and all follow one report.

::

    rank 0   a collective raises ... opens the call ... judges ......... raises the report
    rank 1   a collective raises ...... answers ....... judges ......... raises the report
    rank 2   sleeps in load_batch ..... its watching thread answers .... raises it when it wakes

The first rank that fails opens it. A few ranks that failed judge, and all ranks raise the report.
A mesh has one report: later failures are its consequences, and raise it too. The host of the store
leaves last: rank 0 stays until all ranks have read the report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from ..call import Call, Verbatim, drop_none
from ..errors import CollectiveError, DisagreementError, MeshkitError
from ..groups.close_mesh import CALLS, OPENER, OVER, READERS
from ..launch.disagreement import RankStatus
from ..launch.judges import Arrivals, Decision, Judge, RankState, Sighting
from ..launch.round import Round
from ..launch.store import Store, error_from_json, error_to_json, read_value
from ..launch.times import TIMES, Deadline
from ..launch.torch_aborts import close_gloo_groups
from ..launch.torch_groups import has_nccl
from .hang import hang_error, who_is_behind
from .silent import ask_nccl
from .state import Guard

ALARM = "alarm"  # in a report: whether a hang is only suspected, so that no collective is ended
LOST = Sighting(RankState.UNKNOWN, "it hosted the store, which does not answer")


def report_failure(
    guard: Guard,
    store: Store | None,
    summary: str,
    status: RankStatus,
    judge: Judge | None = None,
    *,
    is_alarm: bool = False,
) -> MeshkitError | None:
    """Open a roll call, or answer the open one; return the error that all ranks raise.

    Collective over the ranks that are alive, for ``answer_time`` seconds at most; the host of the
    store leaves last. If the store is gone, the result is the last report that this rank has read,
    or a report of its own status. An alarm is a suspicion: no collective has failed yet, and it
    ends none unless the report names a rank that has ended, is stopped, or left with an error.
    """
    record, silent = None, dict[int, Sighting]()
    if store is not None:
        try:
            judge = judge or _judge(guard, store, summary, is_alarm=is_alarm)
            record = _run_roll_call(guard, store, judge, status)
            _end_collectives(guard, record)
            _leave_last(guard, store)
            if record is None:
                return None
        except MeshkitError as lost:
            guard.state.is_lost, reports = True, guard.state.reports
            record = reports.get(max(reports, default=0))
            silent = dict.fromkeys(getattr(lost, "missing_ranks", ()), LOST)
    if record is None:
        error = hang_error(summary, guard.layout, {status.rank: status}, silent)
        _end_collectives(guard, error_to_json(error))
        return error
    return read_value("report", json.dumps(record), lambda text: error_from_json(json.loads(text)))


def respond(guard: Guard, store: Store, status: RankStatus) -> bool:
    """Answer an open roll call for another thread, and read the report; return if it is missing.

    A report of a failed collective ends the groups, so that the other thread raises it at once.

    Cost: one store operation when no roll call is open, else up to 5.
    """
    number = store.run(lambda: store.number(CALLS))
    if not number or number in guard.state.reports:
        return False
    call = guard.roll_call(store, number)
    guard.answer(call, number, status)
    decision = call.decided()
    if decision is not None:
        guard.keep(call, number, decision)
        _end_collectives(guard, decision.value)
    return decision is None


def _run_roll_call(
    guard: Guard, store: Store, judge: Judge, status: RankStatus
) -> dict[str, Any] | None:
    """Return the report of the open roll call as JSON; None if there is nothing to report."""
    number = store.within(TIMES.answer, lambda: _open_call(store, guard.rank))
    call = guard.roll_call(store, number)
    guard.answer(call, number, status)
    # at 2,000 ranks a judge looks at all of them once a second
    poll = min(max(TIMES.poll, guard.layout.num_ranks / 2000), TIMES.answer)
    deadline = Deadline.after(guard.answer_time)
    decision = call.decide(judge, deadline, poll=poll)
    guard.keep(call, number, decision)
    return guard.state.reports[number]


def _open_call(store: Store, rank: int) -> int:
    """Return the number of the open roll call, or of a new one.

    A roll call that ended without a report is over, and so is a false alarm, after which a rank
    left its guard without an error. The next roll call gets a new number.
    """
    number = store.number(CALLS)
    decision = store.part(f"call/{number}").read("decision", json.loads) if number else None
    is_open = number and (decision is None or decision["value"] is not None)
    if is_open and not store.has(OVER.format(number)):
        return number
    if store.claim(OPENER.format(number + 1), str(rank)) == str(rank).encode():
        store.add(CALLS, 1)
    return number + 1


def _judge(guard: Guard, store: Store, summary: str, *, is_alarm: bool) -> Judge:
    """Return the judge of a roll call, whose decision has the report as its value.

    A decision with an error would make rank 0 wait for ranks that answered by a watching thread.
    """
    read_exits = partial(guard.left, store)
    judge = who_is_behind(
        guard.layout,
        summary,
        read_exits,
        known=TIMES.known,
        read_silent=partial(ask_nccl, guard),
        rows=guard.rows(),
    )

    def with_value(seen: Arrivals) -> Decision | None:
        decision = judge(seen)
        if decision is None or decision.error is None:
            return decision
        error = decision.error
        missing = getattr(error, "missing_ranks", ())
        states = [seen.states.get(rank) for rank in missing]
        is_certain = any(state is not None and state.is_certain for state in states)
        if is_alarm and not is_certain:
            is_certain = any(status.error for status in read_exits(seen.missing).values())
        record = error_to_json(error) | {ALARM: is_alarm and not is_certain}
        return Decision(value=record)

    return with_value


def _end_collectives(guard: Guard, record: Mapping[str, Any] | None) -> None:
    """End the collectives of this rank after a report that one has failed. Local.

    On nccl all groups of the job are aborted. On gloo the connections of all groups inside the mesh
    are closed, those of the user too: the other members raise the report as well. An alarm that may
    be false ends nothing on gloo.
    """
    if record is None or record["error"] != CollectiveError.__name__:
        return
    if has_nccl():
        guard.job.abort()
    if not (record.get(ALARM) or guard.state.is_aborted):
        ranks = [int(rank) for rank in guard.layout.grid.flat]
        guard.state.is_aborted = close_gloo_groups(ranks, TIMES.answer)


def _leave_last(guard: Guard, store: Store) -> None:
    """Wait on rank 0, if it hosts the store, until each rank that answered has read the report.

    Local. It takes ``answer_time`` seconds at most. A rank that has not answered yet has as long,
    counted from the answer of rank 0, or a second if that is over.
    """
    reports = guard.state.reports
    if not store.is_host or not any(reports.values()):
        return
    number = max(reports)
    began, call = time.monotonic(), guard.roll_call(store, number)
    answered = guard.state.answered.get(number, began)
    late = max(began + TIMES.silent, answered + guard.answer_time)

    def is_done() -> bool:
        return not _may_read(guard, store, call, is_early=time.monotonic() < late)

    store.try_within(guard.answer_time, lambda: store.stay(guard.answer_time, is_done))


def _may_read(guard: Guard, store: Store, call: Round, *, is_early: bool) -> bool:
    """Return whether some rank may still read the report.

    A rank that has answered this roll call may still read it. Early on, so may a rank that has not
    left its guard, if its process may still run.

    Cost: four store operations, and on a rank that is missing early on up to four more.
    """
    seen = call.arrivals()
    if call.store.number(READERS) < len(seen.arrived):
        return True
    running = [rank for rank, state in seen.states.items() if not state.is_certain]
    return is_early and len(guard.left(store, running)) < len(running)


def read_disagreement(guard: Guard) -> MeshkitError | None:
    """Return the error that one rank has found for all of them, if there is one. Local."""
    store = guard.store
    if store is None:
        return None

    def read() -> MeshkitError | None:
        number = store.number(CALLS)
        decision = store.part(f"call/{number}").read("decision", json.loads) if number else None
        record = (decision or {}).get("value") or {}
        is_for_all = record.get("error") == DisagreementError.__name__
        return error_from_json(record) if is_for_all else None

    return store.try_within(TIMES.answer, read)


def quote_guard(error: MeshkitError, limit: timedelta | None) -> MeshkitError:
    """Return the error with the call of the guard, whose block or watching thread reports it."""
    timeout = None if limit is None else f"{limit.total_seconds():g}"
    return error.quote(Call("mesh.guard", kwargs=drop_none(timeout=timeout and Verbatim(timeout))))
