"""Jobs that run beside each other, since each of them mostly waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def side_by_side(
    jobs: Mapping[str, Callable[[], T]], *, at_once: int
) -> Iterator[dict[str, Future[T]]]:
    """Start jobs in threads, in the order given, and yield their results by name.

    Jobs that have not begun at the end of the block are dropped.

    Args:
        jobs: functions that start ranks and return the results.
        at_once: how many jobs run at the same time.
    """
    pool = ThreadPoolExecutor(at_once)
    try:
        yield {name: pool.submit(job) for name, job in jobs.items()}
    finally:
        pool.shutdown(cancel_futures=True)
