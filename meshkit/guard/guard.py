"""Report a collective that fails or hangs, with the coordinates of the ranks that cause it.

::

    with mesh.guard(timeout=60):        rank 0 waits in all_reduce ... after 60 s torch raises
        step()                          rank 2 sleeps in load_batch
                                        its watching thread answers the roll call of rank 0
    CollectiveError, on rank 0:         Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives ...

A roll call is a round in which every rank leaves its status. The first rank that fails opens it. A
few ranks that failed judge, and all ranks raise the report. The watching thread of a guard answers
for a rank that hangs. A mesh has one report: later failures are its consequences, and raise it too.

On gloo, the waiting thread gets torch's error at the group's timeout, or as soon as a peer dies. On
other backends a call returns before its work is done, so no thread gets an error. There the
watching thread opens the roll call, once its rank has begun no collective for the timeout. If a
rank is behind or silent, the thread prints the report and aborts all groups of the job. If not, the
roll call ends without a report. On gloo the thread does the same for a group of the user, which
keeps its own timeout, and for sends and receives, whose time gloo keeps from the creation. It ends
the wait, unless the group is the user's and all ranks may still come.

A guard inside that of another mesh, for example of its view, has no roll call of its own, and its
groups are part of the outer report. So all ranks raise one report, whichever group they wait in.

The host of the store leaves last: rank 0 stays until all ranks have read the report.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch.distributed as dist

from ..call import Call, Verbatim, drop_none, quotes_call
from ..errors import CollectiveError, DisagreementError, MeshkitError, RankTimeoutError
from ..groups.close_mesh import CALLS, EXIT, OPENER, OVER, READ, STATUS
from ..groups.registry import Edge, GroupKey, MeshGroups
from ..groups.status import (
    CollectiveTracker,
    CurrentCollective,
    Frames,
    frames_of_error,
    frames_of_thread,
    is_collective_error,
    rank_status,
    tracking,
)
from ..launch.disagreement import RankStatus
from ..launch.job import LEFT, Job
from ..launch.judges import Arrivals, Decision, Judge, RankState, Sighting
from ..launch.log import log_line
from ..launch.of_one_process import OfOneProcess
from ..launch.round import Round
from ..launch.store import Store, error_from_json, error_to_json, read_value
from ..launch.times import TIMES, Deadline, Time, parse_timeout
from ..launch.torch_aborts import close_gloo_groups, collective_count
from ..launch.torch_groups import all_groups, backend_of, has_nccl, is_nccl, knows_group
from ..layout.axes import has_pipeline
from ..layout.group_plan import Axes, edge_rounds
from ..layout.layout import Layout
from ..text import Ints
from .hang import hang_error, lagging_ranks, who_is_behind
from .reentrant import ReentrantGuard

EXITS = "exits/{}"  # how many ranks have left the guard of this number; the last one deletes it
MAX_TEXT = 1000  # characters of the error of a rank that a report shows
MESSAGES = "Sends and receives count too: make those of some ranks alone over a group of their own."
UNEQUAL = "ranks have begun different numbers of collectives in their groups."
ALARM = "alarm"  # in a report: whether a hang is only suspected, so that no collective is ended
POLLS_PER_SECOND = 4000  # polls of all ranks, at most; a store serves 85,000 operations/s
LOST = Sighting(RankState.UNKNOWN, "it hosted the store, which does not answer")


def edge_name(axis: str, edge: Edge) -> str:
    """Return the name of the group of a single edge in a report."""
    return f"{axis} edge {edge[0]}>{edge[1]}"


@dataclass
class GuardState(OfOneProcess):
    """The roll calls of one mesh, as this rank knows them. The mesh owns it.

    Attributes:
        has_left: whether this rank left a guard with an error of its own, and entered none since.
        numbers: the numbers of the guards with a timeout that this rank enters, from 1.
        open: the trackers of the guards with a timeout in which this rank is, in all threads.
        alarm: the roll call that the watching thread of this rank has opened; 0 without one.
        is_lost: whether the store did not answer when this rank reported.
        is_aborted: whether this rank has closed the connections of gloo after a report.
        answered: roll call to the time at which this rank answered.
        reports: roll call to the report that this rank has read, as JSON, since the store may end.
    """

    has_left: bool = False
    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    open: list[CollectiveTracker] = field(default_factory=list)
    alarm: int = 0
    is_lost: bool = False
    is_aborted: bool = False
    answered: dict[int, float] = field(default_factory=dict)
    reports: dict[int, dict[str, Any] | None] = field(default_factory=dict)

    @contextmanager
    def opened(self, tracker: CollectiveTracker, number: int | None) -> Iterator[None]:
        """Note which guards are open at the same time in other threads or tasks. Local."""
        if number is None:
            yield
            return
        self.open.append(tracker)  # before the look: of two that come at once, one sees the other
        around = tracker.around()
        for other in [*self.open]:
            if other not in around:
                other.is_alone = tracker.is_alone = False
        try:
            yield
        finally:
            self.open.remove(tracker)


@dataclass(frozen=True)
class Guard(OfOneProcess):
    """The parts of a mesh that a guard uses."""

    layout: Layout
    job: Job  # the current job
    # axes to this rank's group; the axes are keys of the group plan
    groups: Mapping[Axes, dist.ProcessGroup]
    round_id: int  # id of the agreement round in which the mesh was built
    state: GuardState
    edges: Mapping[str, Mapping[Edge, dist.ProcessGroup]] = field(default_factory=dict)
    # all groups that meshkit has created for the mesh and its views
    created: Mapping[GroupKey, dist.ProcessGroup | None] = field(default_factory=dict)
    parts: list[Guard] = field(default_factory=list)  # guards of other meshes inside this one

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.job.world.rank

    @property
    def store(self) -> Store | None:
        """The part of the store for the guards of this mesh; None if torch exposes no store."""
        store = self.job.store
        return None if store is None else store.part(f"mesh/{self.round_id}/guard")

    def named(self) -> dict[str, dist.ProcessGroup]:
        """Return the groups of this guard, and of those inside it, by their axes as text."""
        taken: dict[str, dist.ProcessGroup] = {}
        for guard in (self, *self.parts):
            groups = [(" ".join(axes), group) for axes, group in guard.groups.items()]
            for axis, edges in [*guard.edges.items()]:  # another thread may request more
                groups += [(edge_name(axis, edge), group) for edge, group in [*edges.items()]]
            for name, group in groups:
                if group not in taken.values() and (name or guard is self):
                    taken[guard.label(name) if name in taken else name] = group
        return taken

    def label(self, name: str) -> str:
        """Return the name of a group of this mesh beside another group of that name."""
        return f"{name} of {self.layout.sizes_text}"

    def rows(self) -> dict[str, Ints]:
        """Return the ranks of the groups of single edges, and of guards inside this one."""
        rows: dict[str, Ints] = {}
        for guard in (self, *self.parts):
            layout = guard.layout
            own = {
                " ".join(axes): layout.groups(axes) for axes in guard.groups if guard is not self
            }
            for axis in [*guard.edges]:
                for edge in itertools.chain(*edge_rounds(layout.sizes[axis], wrap=True)):
                    own[edge_name(axis, edge)] = layout.groups(axis)[:, edge]
            for name, ranks in own.items():
                rows.setdefault(name, ranks)
                rows.setdefault(guard.label(name), ranks)
        return rows

    def status(
        self,
        tracker: CollectiveTracker | None,
        frames: Frames = (),
        current: CurrentCollective | None = None,
        error: str = "",
    ) -> RankStatus:
        """Return the status of this rank, from the frames of a thread or of an error."""
        groups, own = self.named(), self.job.counts.own
        more = [*self.created.values()]
        status = rank_status(self.rank, groups, frames, current, error, own, more)
        if tracker is None:
            return status
        waited = tracker.progress.waited(status.begun)
        sees_waits = not any(map(is_nccl, groups.values()))
        return replace(status, waited=waited, sees_waits=sees_waits)

    @property
    def poll_interval(self) -> float:
        """Seconds between two polls of a watching thread."""
        return max(TIMES.watch, self.layout.num_ranks / POLLS_PER_SECOND)

    @property
    def answer_time(self) -> float:
        """Seconds in which all ranks can answer."""
        return TIMES.answer + 2 * self.poll_interval

    def roll_call(self, store: Store, number: int) -> Round:
        """Return a roll call of this mesh."""
        ranks = sorted(int(rank) for rank in self.layout.grid.flat)
        return Round(store, f"call/{number}", self.rank, ranks, look=self.job.look)

    def answer(self, call: Round, number: int, status: RankStatus) -> None:
        """Leave the status of this rank in a roll call, unless another thread has done so."""
        now = time.monotonic()
        if self.state.answered.setdefault(number, now) is now:
            try:
                call.arrive(status.to_facts())
            except BaseException:  # the thread goes on, and answers again
                self.state.answered.pop(number, None)
                raise

    def keep(self, call: Round, number: int, decision: Decision) -> None:
        """Keep a report, and post that this rank has read it."""
        if self.state.reports.setdefault(number, decision.value) is decision.value:
            call.store.within(TIMES.store, lambda: call.store.add(READ, 1))

    def post(self, status: RankStatus) -> None:
        """Post the status with which this rank leaves, if a rank could read it. Local."""
        if (store := self.store) is not None:
            text = json.dumps(status.to_facts())
            store.try_within(TIMES.host_stays, lambda: store.set(STATUS.format(self.rank), text))

    def left(self, store: Store, ranks: Sequence[int]) -> dict[int, RankStatus]:
        """Return the status of those ranks that left a guard, closed the mesh, or left the job.

        Cost: two to four store operations per rank.
        """
        statuses = {}
        for rank in ranks:
            facts = store.read(EXIT.format(rank), _parse_facts) or {}
            if own := store.read(STATUS.format(rank), _parse_facts):
                facts |= {name: value for name, value in own.items() if value}
            elif cast(Store, self.job.store).has(LEFT.format(rank)):
                facts |= {"ended_by": "meshkit.shutdown()"}
            if facts:
                statuses[rank] = RankStatus.from_facts(rank, facts)
        return statuses


def guard_mesh(
    mesh: MeshGroups, job: Job, state: GuardState, timeout: Time | None
) -> AbstractContextManager[None]:
    """Check the arguments, and return a guard. See :meth:`meshkit.Mesh.guard`."""
    mesh.check_can_communicate()
    limit = parse_timeout("timeout", timeout)

    @quotes_call("mesh.guard")
    def begin() -> AbstractContextManager[None]:  # at each entry: the mesh may be closed meanwhile
        mesh.check_can_communicate()
        # the user may have destroyed some
        groups = {axes: group for axes, group in mesh.groups.by_key.items() if knows_group(group)}
        own = mesh.plan.layout, job, groups, mesh.round_id, state
        limited = [group for _, group in mesh.held if knows_group(group)]
        return _guard(Guard(*own, mesh.edges, mesh.registry.groups), limited, limit)

    return ReentrantGuard(begin)


def post_end(mesh: MeshGroups, job: Job, state: GuardState | None, call: str) -> None:
    """Post the call by which this rank stops using a mesh. Local. Cost: one store operation.

    A rank that left a guard with an error of its own has posted that.
    """
    state = state or GuardState()
    layout = mesh.plan.layout
    is_read = layout.num_ranks > 1 and mesh.rank in layout  # by the roll calls of the other ranks
    if is_read and not (mesh.is_closed or state.has_left):
        guard = Guard(layout, job, {}, mesh.round_id, state)
        guard.post(RankStatus(mesh.rank, ended_by=call))


@contextmanager
def _guard(
    guard: Guard, limited: Sequence[dist.ProcessGroup], limit: timedelta | None
) -> Iterator[None]:
    """Translate the errors of collectives inside; with a limit, also turn a hang into an error."""
    store = guard.store
    if guard.state.has_left and store is not None:
        store.within(TIMES.store, lambda: store.set(STATUS.format(guard.rank), ""))
        guard.state.has_left = False
    raises = _raises_in_caller(guard)
    number = None if limit is None else next(guard.state.numbers)
    with (
        tracking(limit) as tracker,
        guard.job.counts.timeouts.lower(limited, limit),
        guard.state.opened(tracker, number),
        _watching(guard, tracker, limit, raises) as reporter,
    ):
        try:
            yield
            tracker.check_pending(wait=limit is not None)
        except BaseException as error:
            if guard.job.pid != os.getpid():  # a forked child leaves the block of its parent
                raise
            translated = None
            if reporter is guard or is_collective_error(error):
                translated = _translate(reporter, tracker, error)
            _end_by_error(guard, number)
            if translated is None:
                raise
            raise _quote(translated, limit) from error
        if guard.job.pid != os.getpid():
            return
        failure = _report_of_abort(reporter)
        if failure is not None:
            _end_by_error(guard, number)
        elif number is not None:
            failure = _leave(guard, number, name_of_thread() if tracker.is_alone else "")
        if failure is not None:
            raise _quote(failure, limit)


def name_of_thread() -> str:
    """Return the name of this thread, and of the task that runs in it. Local."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs
        task = None
    return threading.current_thread().name + (f" {task.get_name()}" if task is not None else "")


def last_report(state: GuardState) -> MeshkitError | None:
    """Return the last report that this rank has read, if any. Local."""
    known = [report for _, report in sorted(state.reports.items()) if report is not None]
    return error_from_json(known[-1]) if known else None


def _report_of_abort(guard: Guard) -> MeshkitError | None:
    """Return the report after which this rank has aborted the groups, if it has."""
    on_nccl = guard.job.counts.is_aborted and any(map(is_nccl, guard.groups.values()))
    return last_report(guard.state) if on_nccl or guard.state.is_aborted else None


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


def _count_exit(guard: Guard, store: Store, number: int) -> bool:
    """Count that this rank has left a guard; return whether it is the last one. Local.

    Each rank counts once for each guard, also if an error ends it, so that no key stays.
    """
    is_last = store.add(EXITS.format(number), 1) == guard.layout.num_ranks
    if is_last:
        store.delete(EXITS.format(number))
    return is_last


def _end_by_error(guard: Guard, number: int | None) -> None:
    """Count that an error ends a guard with a timeout on this rank; the store may be lost. Local.

    ``number`` is None in a guard without a timeout, which is not counted.
    """
    if number is not None and (store := guard.store) is not None and not guard.state.is_lost:
        store.try_within(TIMES.host_stays, partial(_count_exit, guard, store, number))


def _leave(guard: Guard, number: int, thread: str) -> MeshkitError | None:
    """Post how many collectives this rank has begun, and end a false alarm. Nobody waits.

    The last rank to leave a guard of this number returns the error of ranks whose counts differ.
    Collectives are counted for all threads together. So only ranks are compared that were in guards
    of the mesh in one thread, of the same name; else ``thread`` is empty.
    On other backends than nccl sends and receives count too, so groups along a pipeline are left
    out there. Local.

    Cost: two store operations; on the last rank up to two more per rank, and one.
    """
    store, layout = guard.store, guard.layout
    if store is None or layout.num_ranks == 1:
        return None
    begun = guard.status(None).begun
    messages = {name for name, group in guard.named().items() if not is_nccl(group)}
    uncounted = {name for name in messages if has_pipeline(name.split())}
    facts = json.dumps(RankStatus(guard.rank, begun, left_guard=number, thread=thread).to_facts())

    def post() -> bool:
        if alarm := guard.state.alarm:
            store.set(OVER.format(alarm), "")
            guard.state.alarm, guard.state.reports[alarm] = 0, None
        store.set(EXIT.format(guard.rank), facts)
        return _count_exit(guard, store, number)

    def compare() -> MeshkitError | None:
        statuses = {}
        for rank in map(int, layout.grid.flat):
            status = RankStatus.from_facts(rank, store.read(EXIT.format(rank), _parse_facts) or {})
            counts = {name: n for name, n in status.begun.items() if name not in uncounted}
            if thread and (status.left_guard, status.thread) == (number, thread):
                statuses[rank] = replace(status, begun=counts)
        differs = bool(lagging_ranks(layout, statuses))
        return hang_error(UNEQUAL, layout, statuses, {}) if differs else None

    if not store.try_within(TIMES.store, post):
        return None
    error = store.try_within(TIMES.store, compare)
    if error is not None:
        error.evidence += (MESSAGES,) * bool(messages)
        guard.post(RankStatus(guard.rank, begun, error=f"CollectiveError: {error.summary}"))
        guard.state.has_left = True
    return error


def _quote(error: MeshkitError, limit: timedelta | None) -> MeshkitError:
    """Return the error with the call of the guard, whose block or watching thread reports it."""
    timeout = None if limit is None else f"{limit.total_seconds():g}"
    return error.quote(Call("mesh.guard", kwargs=drop_none(timeout=timeout and Verbatim(timeout))))


def _translate(
    guard: Guard, tracker: CollectiveTracker, error: BaseException
) -> MeshkitError | None:
    """Return the report on a failed collective; for any other error, post it and return None."""
    line = ": ".join(filter(None, (type(error).__name__, _first_line(error))))
    arguments = frames_of_error(error), tracker.of_error(error)
    if is_collective_error(error):
        status = guard.status(tracker, *arguments)
        for each in tracker.around():
            each.leaving = time.monotonic(), status
        if status.is_other_mesh:
            return None  # the guard of that mesh reports it, if there is one
        summary = f"{status.operation or 'a collective'} failed on rank {guard.rank}: {line}."
        return report_failure(guard, guard.store, summary, status)
    if isinstance(error, RankTimeoutError) and (disagreement := _read_disagreement(guard)):
        return disagreement  # why ranks did not come to a barrier
    if not isinstance(error, CollectiveError):
        status = guard.status(tracker, *arguments, line)
        guard.post(status)
        guard.state.has_left = True
        if isinstance(error, DisagreementError) and error.for_all:
            decision = Decision(value=error_to_json(error))
            report_failure(guard, guard.store, "", status, lambda _: decision)
    return None


def _first_line(error: BaseException) -> str:
    """Return the first line of the text of an error, cut if it is long."""
    try:
        return str(error).partition("\n")[0][:MAX_TEXT]
    except Exception:  # an error of the user can raise anything
        return "an error without a text"


def _read_disagreement(guard: Guard) -> MeshkitError | None:
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


def _raises_in_caller(guard: Guard) -> bool:
    """Return whether each collective raises in the thread that waits for it, at its timeout."""
    groups = guard.groups.values()
    return all("gloo" in backend_of(group) and not is_nccl(group) for group in groups)


@contextmanager
def _watching(
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
    # on gloo only a collective on a group of the user does not raise at the limit
    patience = limit + (guard.answer_time if raises else 0)
    since, begun, is_logged, is_reported = time.monotonic(), None, False, False
    store = cast(Store, guard.store)
    is_open = False  # whether a roll call is, whose report this rank has not read or acted on
    is_ended = False  # whether all groups are closed: the thread waits for a rank outside the mesh
    while not over.wait(guard.poll_interval * (TIMES.poll / TIMES.watch if is_open else 1)):
        try:
            status = _status_of_thread(guard, tracker, thread)
            if status.begun != begun or (raises and not status.function):
                since, begun, is_reported = time.monotonic(), status.begun, False
            if time.monotonic() - since > patience and not is_reported:
                since = time.monotonic()
                is_reported = _report_hang(guard, tracker, status, timedelta(seconds=limit), raises)
            if guard.state.is_aborted and status.function and tracker.leaving is None:
                is_ended = is_ended or close_gloo_groups(None, TIMES.answer)
            is_open = respond(guard, store, status)
            is_open |= guard.state.is_aborted and not is_ended
        except Exception as error:  # the store may answer again: the thread goes on
            if not is_logged:
                log_line("the guard of rank %d goes on after an error: %s", guard.rank, error)
            is_logged = True


def _status_of_thread(guard: Guard, tracker: CollectiveTracker, thread: int) -> RankStatus:
    """Return the status of another thread; without its line on any error, as its frames change.

    While the error of a collective leaves the guards, the thread is in that collective.
    """
    try:
        if tracker.leaving is not None:
            at, status = tracker.leaving
            if time.monotonic() - at < TIMES.answer:
                return status
        return guard.status(tracker, frames_of_thread(thread), tracker.current)
    except Exception:
        return guard.status(tracker, (), tracker.current)


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
    is_alarm = raises and not is_limited
    judge = _find_unequal(tracker)
    report = report_failure(guard, guard.store, summary, status, judge, is_alarm=is_alarm)
    if report is not None:
        guard.state.alarm = max(guard.state.reports, default=0)
        print(_quote(report, limit), file=sys.stderr, flush=True)
        guard.job.abort()
    return report is not None


def respond(guard: Guard, store: Store, status: RankStatus) -> bool:
    """Answer an open roll call for another thread, and read the report; return if it is missing.

    A report of a failed collective ends the groups, so that the other thread raises it at once.

    Cost: one store operation when no roll call is open, else up to 5.
    """
    number = store.within(TIMES.store, lambda: store.number(CALLS))
    if not number or number in guard.state.reports:
        return False
    call = guard.roll_call(store, number)
    guard.answer(call, number, status)
    decision = call.decided()
    if decision is not None:
        guard.keep(call, number, decision)
        _end_collectives(guard, decision.value)
    return decision is None


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


def _judge(guard: Guard, store: Store, summary: str, *, is_alarm: bool) -> Judge:
    """Return the judge of a roll call, whose decision has the report as its value.

    A decision with an error would make rank 0 wait for ranks that answered by a watching thread.
    """
    left = partial(guard.left, store)
    judge = who_is_behind(guard.layout, summary, left, known=TIMES.known, rows=guard.rows())

    def with_value(seen: Arrivals) -> Decision | None:
        decision = judge(seen)
        if decision is None or decision.error is None:
            return decision
        decision.error.summary = summary or f"rank {guard.rank} begins no collective."
        missing = getattr(decision.error, "missing_ranks", ())
        states = [seen.states.get(rank) for rank in missing]
        is_certain = any(state is not None and state.is_certain for state in states)
        if is_alarm and not is_certain:
            is_certain = any(status.error for status in left(seen.missing).values())
        record = error_to_json(decision.error) | {ALARM: is_alarm and not is_certain}
        return Decision(value=record)

    return with_value


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

    A rank that has answered this roll call may. Early on, a rank may also that has not left, and
    whose process can answer.

    Cost: four store operations, and on a rank that is missing early on up to four more.
    """
    seen = call.arrivals()
    if call.store.number(READ) < len(seen.arrived):
        return True
    running = [rank for rank, state in seen.states.items() if not state.is_certain]
    return is_early and len(guard.left(store, running)) < len(running)


def _parse_facts(text: str) -> dict[str, Any]:
    """Return what a rank has posted; empty if it has withdrawn that."""
    return dict(json.loads(text or "{}").items())
