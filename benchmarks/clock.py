"""Two sides of the same work, timed in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = Callable[[], object]
Told = Callable[[], float]  # does the work, and says how many seconds it took
Times = tuple[list[float], list[float]]


def in_turns(ours: Work, theirs: Work, repeats: int, *, least: float = 0.005) -> Times:
    """Seconds of one call of each, one a repetition.

    Both are called once beforehand, uncounted. A repetition times so many calls in a row that they
    take ``least`` seconds, and the side that begins changes from repetition to repetition, so that
    a machine that slows down does so to both. Garbage is collected before the first, and not
    meanwhile.

    Args:
        ours: the work by meshkit.
        theirs: the same work by a peer.
        repeats: how many repetitions, 1 or more.
        least: seconds a repetition of one side lasts at the least.
    """
    with no_garbage():
        calls, more = calls_for(ours, least), calls_for(theirs, least)
        return told_in_turns(
            lambda: seconds(ours, calls), lambda: seconds(theirs, more), repeats, uncounted=0
        )


def told_in_turns(ours: Told, theirs: Told, repeats: int, *, uncounted: int = 1) -> Times:
    """What each side says that it took, one a repetition; the side that begins changes.

    Args:
        ours: the work by meshkit, which times itself.
        theirs: the same work by a peer.
        repeats: how many repetitions, 1 or more.
        uncounted: how many come before them.
    """
    sides = (ours, theirs)
    times: Times = ([], [])
    for repeat in range(uncounted + repeats):
        for which in (0, 1) if repeat % 2 == 0 else (1, 0):
            times[which].append(sides[which]())
    return times[0][uncounted:], times[1][uncounted:]


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect garbage now, and not in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls_for(work: Work, least: float) -> int:
    """How many calls in a row take about ``least`` seconds: 1 or more."""
    seconds(work, 1)
    return max(1, round(least / max(seconds(work, 1), 1e-7)))


def seconds(work: Work, calls: int) -> float:
    """Seconds of one call, from several in a row."""
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls
