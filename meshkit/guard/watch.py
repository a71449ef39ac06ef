"""The watching thread of a guard: it answers roll calls for its rank, and ends silent hangs.

On gloo, the waiting thread gets torch's error at the group's timeout, or as soon as a peer dies. On
other backends a call returns before its work is done, so no thread gets an error. There the
watching thread opens the roll call, once its rank has begun no collective for the timeout. If a
rank is behind or silent, the thread prints the report and aborts all groups of the job. If not, the
roll call ends without a report. On gloo the thread does the same for a group of the user, which
keeps its own timeout, and for sends and receives, whose time gloo keeps from the creation. It ends
the wait, unless the group is the user's and all ranks may still come.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import cast

from ..errors import DisagreementError
from ..groups.frame_calls import frames_of_thread, no_collection
from ..groups.status import CollectiveTracker
from ..launch.disagreement import RankStatus
from ..launch.judges import Decision, Judge
from ..launch.log import log_line
from ..launch.outside import ANSWER, ASK, Answer, answer_to_json
from ..launch.process import current_process
from ..launch.store import Store, error_to_json
from ..launch.times import TIMES
from ..launch.torch_aborts import close_gloo_groups, collective_count
from ..launch.torch_groups import all_groups
from .early import Lookout
from .roll_call import quote_guard, report_failure, respond
from .state import Guard


@contextmanager
def watching(
    guard: Guard, tracker: CollectiveTracker, limit: timedelta | None, raises: bool
) -> Iterator[Guard]:
    """Run a thread beside this one that answers roll calls for it, and yield the guard it is for.

    Inside such a guard of another mesh, that guard reports for this one too.
    """
    outer: Guard | None = tracker.watched
    for each in tracker.around():
        each.leaving = None
    if outer is not None and outer.round_id != guard.round_id:
        outer.parts.append(guard)
        try:
            yield outer
        finally:
            outer.parts.remove(guard)
        return
    if guard.store is None or limit is None:
        yield guard
        return
    tracker.elsewhere = _begun_elsewhere(guard)
    over, caller = threading.Event(), threading.get_ident()
    arguments = guard, tracker, limit.total_seconds(), raises, caller, over
    watcher = threading.Thread(target=_watch, args=arguments, name="meshkit-guard", daemon=True)
    watcher.start()
    tracker.watched = guard
    try:
        yield guard
    finally:
        over.set()
        # a store that does not answer would block it, and does if it has not answered the report
        watcher.join(0 if guard.state.is_lost else TIMES.host_stays)


def _watch(
    guard: Guard,
    tracker: CollectiveTracker,
    limit: float,
    raises: bool,
    thread: int,
    over: threading.Event,
) -> None:
    """Answer roll calls; open one if the thread begins no collective for too long."""
    # on gloo only a collective on a group of the user, or a message, does not raise at the limit
    patience, lookout = limit + (TIMES.silent if raises else 0), Lookout(guard, tracker.number)
    since, begun, is_logged, is_reported = time.monotonic(), None, False, False
    store = cast(Store, guard.store)
    is_open = False  # whether a roll call is, whose report this rank has not read or acted on
    is_ended = False  # whether all groups are closed: the thread waits for a rank outside the mesh
    while not over.wait(guard.poll_interval * (TIMES.poll / TIMES.watch if is_open else 1)):
        try:
            status = _status_of_thread(guard, tracker, thread)
            if status is None:
                continue
            if status.begun != begun or (raises and not status.function):
                since, begun, is_reported = time.monotonic(), status.begun, False
            idle, at = time.monotonic() - since, timedelta(seconds=limit)
            if raises and idle > limit / 2:
                guard.trace(status.begun)
            if idle > patience and not is_reported:
                since = time.monotonic()
                is_reported = _report_hang(guard, tracker, status, at, raises)
            elif not is_open and (
                sign := lookout.look(idle if status.function or not raises else 0)
            ):
                lookout.reported.add(sign)
                is_reported |= _report(guard, sign, status, at)
            if guard.state.is_aborted and status.function and tracker.leaving is None:
                is_ended = is_ended or close_gloo_groups(None, TIMES.answer)
            is_open = respond(guard, store, status)
            _answer_outside(guard, status)
            is_open |= guard.state.is_aborted and not is_ended
        except Exception as error:  # the store may answer again: the thread goes on
            if not is_logged:
                log_line("the guard of rank %d goes on after an error: %s", guard.rank, error)
            is_logged = True


def _status_of_thread(guard: Guard, tracker: CollectiveTracker, thread: int) -> RankStatus | None:
    """Return the status of another thread; without its line on any error, as its frames change.

    While the error of a collective leaves the guards, the thread is in that collective. None as
    long as it is unknown whether an error is that of a collective.
    """
    try:
        if tracker.leaving is not None:
            at, status = tracker.leaving
            if time.monotonic() - at < TIMES.answer:
                return status
        with no_collection():
            return guard.status(tracker, frames_of_thread(thread), tracker.current)
    except Exception:
        return guard.status(tracker, (), tracker.current)


def _report_hang(
    guard: Guard, tracker: CollectiveTracker, status: RankStatus, limit: timedelta, raises: bool
) -> bool:
    """Report a hang of this rank, and end it; return whether there was a report.

    On gloo a wait over a group of the user may last longer than the limit, so that is an alarm. A
    message over a group of the mesh may not, but gloo keeps the time of the creation for it.
    """
    summary = f"rank {guard.rank} waits in {status.operation}." if raises else ""
    is_limited = status.group in guard.named()
    if not status.group:  # the group of a wait is unknown
        is_limited = tracker.elsewhere == _begun_elsewhere(guard)
    is_alarm, judge = raises and not is_limited, _find_unequal(tracker)
    return _report(guard, summary, status, limit, judge, is_alarm=is_alarm)


def _report(
    guard: Guard,
    summary: str,
    status: RankStatus,
    limit: timedelta,
    judge: Judge | None = None,
    *,
    is_alarm: bool = False,
) -> bool:
    """Report a failure, and end the collectives of this rank; return whether there was a report."""
    report = report_failure(guard, guard.store, summary, status, judge, is_alarm=is_alarm)
    if report is not None:
        guard.state.alarm = max(guard.state.reports, default=0)
        print(quote_guard(report, limit), file=sys.stderr, flush=True)
        guard.job.abort()
    return report is not None


def _find_unequal(tracker: CollectiveTracker) -> Judge | None:
    """Return the judge of a hang that comes from different calls of ranks; None if it does not."""
    try:
        tracker.check_pending()
    except DisagreementError as error:
        decision = Decision(value=error_to_json(error))
        return lambda _: decision
    return None


def _begun_elsewhere(guard: Guard) -> int:
    """Return how many collectives this rank has begun over other groups. Local."""
    own = {*guard.named().values()}
    return sum(collective_count(group) or 0 for group in all_groups() if group not in own)


def _answer_outside(guard: Guard, status: RankStatus) -> None:
    """Answer the question of ``meshkit status``, once.

    Cost: one store operation without a question, else three.
    """
    job = cast(Store, guard.job.store)
    asked = None if job.is_file else job.run(partial(job.read, ASK, str))
    if asked and asked != guard.state.asked:
        guard.state.asked = asked
        text = answer_to_json(asked, Answer(guard.layout, current_process(), status))
        job.run(lambda: job.set(ANSWER.format(guard.rank), text))
