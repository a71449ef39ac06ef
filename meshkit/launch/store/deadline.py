"""Timeouts, deadlines, and calls to the store of a job that end in time.

A store whose host is stopped, or whose network is cut, does not answer. A torch client then waits
forever, whatever its timeout. Calls to a store therefore run in a thread of their own, and the
caller waits for the thread until a deadline.

``store_call`` runs such calls and raises :class:`RankTimeoutError` if the store is lost.
``store_wait`` waits for keys until a deadline. ``run_with_deadline`` runs any work in bounded time,
for callers that handle a lost store themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from numbers import Real
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from ...core.errors import Change, MeshkitError, SpecError
from ..launchers.world import World
from .client import store_lost_error

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
        fix=(Change(**{name: 60}), "."),
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


@dataclass(frozen=True)
class Deadline:
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

    Local. The thread ends with the work. If the work never ends, its thread stays until the process
    ends, as a daemon.

    Cost: 0.1 ms beside the work itself.

    Example:
        >>> run_with_deadline(1, lambda: 6 * 7)
        42
    """
    outcome: Future[Result] = Future()
    thread = Thread(target=_run, args=(work, outcome), name="meshkit-waits", daemon=True)
    thread.start()
    try:
        if not wait([outcome], seconds).done and not wait([outcome], RESUME_GRACE).done:
            raise DeadlineExceededError
    except BaseException:  # a KeyboardInterrupt too
        outcome.add_done_callback(partial(_pass_late_result, late))
        raise
    thread.join()
    try:
        return outcome.result()
    finally:
        del outcome  # an error holds the frames it came through, and they must not hold it


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


def _pass_late_result(late: Callable[[Result], None] | None, outcome: Future[Result]) -> None:
    if late is not None and outcome.exception() is None:
        late(outcome.result())


def _run(work: Callable[[], Result], outcome: Future[Result]) -> None:
    try:
        result = work()
    except BaseException as error:  # run_with_deadline raises it in the caller's thread
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
    finally:
        del outcome  # as above
