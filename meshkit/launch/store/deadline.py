"""Wait for work that torch cannot interrupt, and stop waiting at a deadline.

A store whose host is stopped, or behind a wire that was cut, answers nothing: torch's clients then
wait without end, whatever timeout they were given. So what talks to a store runs in a thread of its
own, and the caller waits for the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")

# Seconds beyond the deadline: a process that was stopped finds it passed when it goes on, and has
# not yet seen what its thread hears.
RESUME_GRACE = 0.2


class DeadlineExceededError(Exception):
    """The work did not come to an end in time."""


def run_with_deadline(
    seconds: float, work: Callable[[], Result], *, late: Callable[[Result], None] | None = None
) -> Result:
    """What ``work()`` returns or raises, if it does so in time.

    Local; some 0.1 ms beside the work itself. The thread ends with the work; only where the work
    never ends it stays, as a daemon, until the process ends.

    Args:
        seconds: how long to wait.
        work: what to run.
        late: is given what the work returns when nobody waits for it any more.

    Raises:
        OverdueError: where the time ran out.

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
        outcome.add_done_callback(partial(_given_back, late))
        raise
    thread.join()
    try:
        return outcome.result()
    finally:
        del outcome  # an error holds the frames it came through, and they must not hold it


def _given_back(late: Callable[[Result], None] | None, outcome: Future[Result]) -> None:
    if late is not None and outcome.exception() is None:
        late(outcome.result())


def _run(work: Callable[[], Result], outcome: Future[Result]) -> None:
    try:
        result = work()
    except BaseException as error:  # it is the caller's
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
    finally:
        del outcome  # as above
