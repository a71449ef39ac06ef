"""Timeouts, deadlines, and calls to the store of a job that end in time.

A store whose host is stopped, or whose network is cut, does not answer. A torch client then waits
forever, whatever its timeout. Calls to a store therefore run in a thread, and the caller waits for
the thread until a deadline. The thread is a plain one of ``_thread``: an object of ``threading``
costs three times as much, and a thread that is kept for later calls is still there after ``close``.

``store_call`` runs such calls and raises :class:`RankTimeoutError` if the store is lost.
``store_wait`` waits for keys until a deadline. ``run_with_deadline`` runs any work in bounded time,
for callers that handle a lost store themselves.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from ...core.errors import MeshkitError, SpecError
from ..world import World
from .client import store_lost_error
from .file_store import check_file

if TYPE_CHECKING:  # meshkit doctor waits with a deadline where torch cannot be imported
    import torch.distributed as dist

Result = TypeVar("Result")
Time = float | timedelta  # a timeout as callers write it; a number is seconds

LEAST = 0.001  # seconds; torch's timeouts have millisecond resolution
MOST = 1e9  # seconds, about 30 years, so that sums of timeouts never overflow
ARRIVAL = timedelta(seconds=300)  # default time that ranks wait for each other

# Extra seconds: a process resumed after SIGSTOP sees an expired deadline before its thread delivers
# the result.
RESUME_GRACE = 0.2

# Seconds to wait for a store beyond a deadline: a FileStore rounds up to a second, one rank reads
# all check-ins for a second, and rank 0, which may host the store, stays a second longer.
STORE_GRACE = 4.0
MIN_WAIT = 0.001  # seconds; torch takes a timeout of 0 for its default
MIN_LOOK, LOOK_PER_RANK = 0.002, 0.0003  # seconds between two looks at a file, least and per rank


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
        fix=f"{name}=60.",
    )


def format_timeout(time: timedelta | None) -> str:
    """Return a timeout as errors show it; None is the backend's default.

    Example:
        >>> format_timeout(timedelta(minutes=5)), format_timeout(None)
        ('300 s', 'default')
    """
    return "default" if time is None else f"{time.total_seconds():g} s"


class DeadlineExceededError(Exception):
    """The work did not finish in time."""


class Deadline(NamedTuple):
    """A moment until which a rank waits, and the timeout that errors show.

    Attributes:
        timeout: the whole wait, as the user knows it.
        moment: the end of the wait, in seconds of the monotonic clock.
    """

    timeout: timedelta
    moment: float

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
        return f"{self.timeout.total_seconds():g} s"

    def sleep(self, seconds: float) -> bool:
        """Sleep if so many seconds are left; return whether they were."""
        enough = self.left > seconds
        time.sleep(seconds if enough else 0)
        return enough


def run_with_deadline(
    seconds: float, work: Callable[[], Result], *, late: Callable[[Result], None] | None = None
) -> Result:
    """Return the result of ``work()``, or raise its error, if it finishes in time.

    Local. If the work never ends, its thread stays until the process ends, as a daemon.

    Cost: 0.05 ms beside the work itself.

    Example:
        >>> run_with_deadline(1, lambda: 6 * 7)
        42
    """
    task = _Task(work, late)
    start_new_thread(task.run, ())
    try:
        if not task.ended.acquire(timeout=seconds) and not task.ended.acquire(timeout=RESUME_GRACE):
            raise DeadlineExceededError
    except BaseException:  # a KeyboardInterrupt too
        task.abandon()
        raise
    result, error, task.result, task.error = task.result, task.error, None, None
    if error is None:
        return cast(Result, result)
    try:
        raise error
    finally:
        del error


def store_call(world: World, seconds: float, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, which calls the store, in bounded time."""
    try:
        return run_with_deadline(seconds, work)
    except MeshkitError:
        raise
    except RuntimeError as error:  # of any store; DistStoreError for an unreadable file
        raise store_lost_error(world) from error
    except DeadlineExceededError:
        raise store_lost_error(world, silent=True) from None


def store_wait(store: dist.Store, keys: Sequence[str], deadline: Deadline) -> bool:
    """Wait until all keys exist; return False if they do not at the deadline."""
    import torch.distributed as dist

    try:
        store.wait([*keys], timedelta(seconds=max(deadline.left, MIN_WAIT)))
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # timed out; a FileStore raises RuntimeError
        return False
    return True


def store_get(store: dist.Store, key: str, ranks: int, deadline: Deadline) -> bytes | None:
    """Wait for a key with other ranks; return its value, or None if there is none at the deadline.

    ``get`` waits by itself, for the timeout of the store. A FileStore would read its file a hundred
    times a second on every rank, so this looks less often the more ranks wait.

    Cost: one store operation; in a file one for each look, too.
    """
    import torch.distributed as dist

    if not store.has_extended_api():  # type: ignore[attr-defined]
        while True:
            check_file(store)
            if store.check([key]):
                break
            if not deadline.left:
                return None
            time.sleep(min(max(MIN_LOOK, LOOK_PER_RANK * ranks), deadline.left))
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=max(deadline.left, MIN_WAIT)))
    try:
        return store.get(key)
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # timed out, or another thread set its own timeout
        is_there = not deadline.expired and store_wait(store, [key], deadline)
        return store.get(key) if is_there else None
    finally:
        store.set_timeout(timeout)


class _Task(Generic[Result]):
    """Work that a thread does, and its outcome until the caller takes it.

    An error holds the frames through which it came, so neither the work nor the outcome may stay in
    a variable of these frames.
    """

    def __init__(self, work: Callable[[], Result], late: Callable[[Result], None] | None) -> None:
        self.work: Callable[[], Result] | None = work
        self.late = late
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.decided = allocate_lock()  # held by the first: the ended thread, or the caller
        self.ended = allocate_lock()
        self.ended.acquire()

    def run(self) -> None:
        """Do the work, and keep its outcome for the caller, or pass it on if the caller has left.

        Debuggers, coverage and profilers of all threads see this one too.
        """
        sys.settrace(threading.gettrace())
        sys.setprofile(threading.getprofile())
        try:
            work, self.work = cast(Callable[[], Result], self.work), None
            self.result = work()
        except BaseException as error:  # the caller's thread raises it
            self.error = error
        del work
        in_time = self.decided.acquire(blocking=False)
        self.ended.release()
        if not in_time:
            self._pass_late_result()

    def abandon(self) -> None:
        """Let the thread pass the result on, or do so here if it has ended."""
        if self.late is not None:
            _abandoned.append(self)
        if not self.decided.acquire(blocking=False):
            self._pass_late_result()

    def _pass_late_result(self) -> None:
        try:
            if self.error is None and self.late is not None:
                self.late(cast(Result, self.result))
        finally:
            self.result = self.error = None
            with suppress(ValueError):
                _abandoned.remove(self)


# Tasks whose late result must still be undone. A forked child has none of its parent's threads.
_abandoned: list[_Task[Any]] = []
os.register_at_fork(after_in_child=_abandoned.clear)


def wait_for_abandoned(deadline: Deadline) -> None:
    """Wait until work that an error has left, such as the creation of a group, is undone."""
    while _abandoned and deadline.sleep(0.01):
        pass
