"""Timeouts, deadlines, work in bounded time, and the seconds that ranks wait for each other."""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import Any, NamedTuple, TypeVar, cast

from ..errors import SpecError
from ..synonyms import guess_seconds

Result = TypeVar("Result")
Time = float | timedelta  # a timeout as callers write it; a number is seconds

LOOK = 0.5  # seconds between two questions whether work that waits is given up
LEAST = 0.001  # seconds; torch's timeouts have millisecond resolution, and 0 is its default
MOST = 1e9  # seconds, about 30 years, so that sums of timeouts never overflow


@dataclass(frozen=True)
class Times:
    """The seconds of waits among ranks, with the numbers of tests/scenarios/promises.md."""

    arrival: float = 300.0  # how long ranks wait for each other by default (D)
    # how long the store may take beyond a deadline: a FileStore rounds up to a second, and one rank
    # reads all arrivals for a second (3, 12)
    store: float = 4.0
    # how long the error of a silent store may take to look up a name, as its host does (12)
    lookup: float = 1.0
    # how much longer an operation waits for a store that looks up a name while lookups are slow:
    # a resolver asks a name server that does not answer twice, for 5 s (12)
    slow_lookup: float = 12.0
    # how long rank 0, which may host the store, stays until all have read a decision that is an
    # error; also how long ranks leave the judgement at a deadline to one of them (5, 12)
    host_stays: float = 1.0
    failure_stays: float = 5.0  # the same after its own call failed: others may still start (2)
    create: float = 10.0  # how long ranks have at least to create groups (C of 16)
    create_report: float = 3.0  # how long a rank may take beyond that to report (16)
    answer: float = 3.0  # how long a roll call waits for answers (24, 25)
    known: float = 0.3  # the same if a rank has posted the error with which it left (24, 29)
    # how long a recovery waits for a rank that a report names as silent, and how long a rank
    # without an answer may take to read the report (31)
    silent: float = 1.0
    # how long the aborts of all groups of nccl may take together: 0.3 to 1.0 s on a GPU (25)
    abort: float = 5.0
    newcomer: float = 30.0  # how long ranks and those that they admit wait for each other (46)
    newcomer_arrival: float = 5.0  # how long a round waits for newcomers at the store (45)
    # how long a rank of torchrun waits for the end of a start in which a process of another host
    # holds its rank: the agent of that host may be gone, and the ranks of the others start anew (9)
    replaced: float = 20.0
    poll: float = 0.05  # the interval of a judge's looks at the store (24, 31)
    watch: float = 0.5  # the interval of a watching thread's looks (25)
    # how long a result is waited for beyond a deadline: a process that is resumed after SIGSTOP
    # sees the deadline before its thread delivers the result
    resume: float = 0.2


TIMES = Times()
ARRIVAL = timedelta(seconds=TIMES.arrival)


def parse_timeout(name: str, value: Time | None) -> timedelta | None:
    """Return a timeout as a timedelta; None stays None."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if number and LEAST <= seconds <= MOST:  # nan is neither
        return timedelta(seconds=float(seconds))
    raise SpecError(
        f"{name} is {value!r}.",
        "A timeout is a positive number of seconds, or a timedelta.",
        fix=f"{name}={meant_seconds(value)}.",
    )


def meant_seconds(value: object) -> float:
    """Return a valid timeout for a value that is none, such as 60 for ``"1 min"`` and for 0."""
    seconds = guess_seconds(value)
    return seconds if seconds is not None and LEAST <= seconds <= MOST else 60


def format_timeout(time: timedelta | None) -> str:
    """Return a timeout as errors show it, such as ``300 s``; None is the backend's default."""
    return "default" if time is None else f"{time.total_seconds():g} s"


class Deadline(NamedTuple):
    """A moment until which a rank waits, and the timeout that errors show."""

    timeout: timedelta  # the whole wait, as the user knows it
    moment: float  # the end of the wait, in seconds of the monotonic clock

    @classmethod
    def after(cls, timeout: timedelta | float) -> Deadline:
        """Return the deadline that is one timeout (a timedelta or seconds) from now."""
        whole = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        return cls(whole, time.monotonic() + whole.total_seconds())

    @property
    def left(self) -> float:
        """The seconds that are left, 0 or more."""
        return max(0.0, self.moment - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.left == 0

    def __str__(self) -> str:
        return format_timeout(self.timeout)

    def sleep(self, seconds: float) -> bool:
        """Sleep if so many seconds are left; return whether they were."""
        enough = self.left > seconds
        time.sleep(seconds if enough else 0)
        return enough


class DeadlineExceededError(Exception):
    """The work did not finish in time."""


def run_with_deadline(
    seconds: float,
    work: Callable[[], Result],
    *,
    late: Callable[[Result], object] | None = None,
    stop: Callable[[], bool] | None = None,
    extend: Callable[[], float] | None = None,
) -> Result:
    """Return the result of ``work()``, or raise its error, if it finishes in time. Local.

    A store whose host is stopped never answers, so the work runs in a thread, as a daemon. It is
    given up as soon as ``stop()`` is True, which is asked twice a second. ``late`` undoes a result
    that comes too late. ``extend`` is asked once, at the deadline, for more seconds, or 0.
    Cost: 0.1 ms beside the work itself.
    """
    task, deadline = _Task(work, late), Deadline.after(seconds)
    _thread.start_new_thread(task.run, ())  # in half of the time of a Thread, for a daemon
    try:
        while not task.ended.wait(deadline.left if stop is None else min(LOOK, deadline.left)):
            if deadline.expired and not task.ended.wait(TIMES.resume):
                deadline, extend = Deadline.after(extend() if extend else 0), None
                if deadline.expired and not task.ended.is_set():
                    raise DeadlineExceededError(f"it did not finish within {seconds:g} s")
            if stop is not None and stop():
                raise DeadlineExceededError("another rank has given up")
    except BaseException:  # a KeyboardInterrupt too
        task.abandon()
        raise
    result, error, task.result, task.error = task.result, task.error, None, None
    if error is None:
        return cast(Result, result)
    try:
        raise error
    finally:
        del error  # its frames hold this one


class _Task:
    """Work that a thread does, and its outcome until the caller takes it."""

    def __init__(self, work: Callable[[], Any], late: Callable[[Any], object] | None) -> None:
        self.work, self.late = [work], late
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.is_abandoned = False

    def run(self) -> None:
        """Do the work, and keep its outcome for the caller, or undo it if the caller has left."""
        running.add(self)
        try:
            self.result = self.work.pop()()  # an error holds the frames through which it came
        except BaseException as error:  # the caller's thread raises it
            self.error = error
        running.discard(self)
        with self.lock:
            self.ended.set()
        if self.is_abandoned:
            self._undo()

    def abandon(self) -> None:
        """Let the thread undo a late result, or do so here if it has ended."""
        with self.lock:
            self.is_abandoned = not self.ended.is_set()
            if self.is_abandoned and self.late is not None:
                _abandoned.append(self)
        if not self.is_abandoned:
            self._undo()

    def _undo(self) -> None:
        try:
            if self.error is None and self.late is not None:
                self.late(self.result)
        finally:
            self.result = self.error = None
            if self in _abandoned:
                _abandoned.remove(self)


# Tasks whose late result must still be undone. A forked child has none of its parent's threads.
_abandoned: list[_Task] = []
running: set[_Task] = set()  # tasks whose work has begun, and has not ended
os.register_at_fork(after_in_child=_abandoned.clear)
os.register_at_fork(after_in_child=running.clear)


def wait_for_abandoned(deadline: Deadline) -> None:
    """Wait until work that an error has left, such as the creation of a group, is undone."""
    while _abandoned and deadline.sleep(0.01):
        pass
