"""How far a sweep has come, on stderr: one line that is written again, or now and then a new one.

Time left is estimated from the work done: a call counts as its bytes and as much again as a few
hundred KiB, which is about what a small one costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from ..core.layout import Layout
from ..core.measured import modes, passes
from ..core.measurement import Case
from ..core.words import count_noun

EMPTY = 2**18  # bytes that a call without any counts as
EVERY = 10.0  # seconds between lines where they cannot be written again
WIDTH = 79


def announced(layout: Layout, cases: Sequence[Case], alone: int | None, calls: int) -> str:
    """What is to come, in one line. Pure.

    Args:
        layout: the grid.
        cases: all that is measured.
        alone: how many groups are measured alone at the most; None means all.
        calls: of one pass, those to warm up among them.

    Example:
        >>> from meshkit.core.targets import every_target
        >>> layout = Layout(dp=1000, tp=8)
        >>> todo = [Case("broadcast", one, 1024) for one in every_target(layout)]
        >>> print(announced(layout, todo, 16, 23))
        6 rows in 28 passes, one after the other, each of up to 23 calls
    """
    rows = sum(len(modes(layout, case.target)) for case in cases)
    runs = count_noun(passes(layout, cases, alone), "pass")
    return f"{count_noun(rows, 'row')} in {runs}, one after the other, each of up to {calls} calls"


def work(layout: Layout, case: Case, alone: int | None) -> float:
    """What a case costs, in a unit of its own: calls of all its turns and ways. Pure.

    Example:
        >>> from meshkit.core.targets import every_target
        >>> layout = Layout(dp=4, sp=2)
        >>> cases = [Case("all_reduce", one, 2**18) for one in every_target(layout)]
        >>> [work(layout, case, None) / 2**18 for case in cases]
        [6.0, 10.0, 2.0, 2.0]
    """
    return float(passes(layout, [case], alone) * (EMPTY + case.bytes))


def line(done: float, total: float, seconds: float, what: str) -> str:
    """How far a run has come, in one line. Pure.

    Args:
        done: the work done, above 0.
        total: all of it, in the same unit.
        seconds: that it took so far.
        what: what is measured now.

    Example:
        >>> print(line(25, 100, 30.0, "all_reduce over dp, 1024 bytes"))
        25 %, 1 min 30 s left: all_reduce over dp, 1024 bytes
    """
    left = math.ceil(seconds * (total - done) / done)
    return f"{100 * done / total:.0f} %, {in_words(left)} left: {what}"


def in_words(seconds: int) -> str:
    """A time in its two largest units. Pure.

    Example:
        >>> in_words(59), in_words(90), in_words(7260)
        ('59 s', '1 min 30 s', '2 h 1 min')
    """
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"


class Progress:
    """Tells what is to come, and then each case before it is measured.

    Args:
        layout: the grid.
        cases: all that is to come, in order.
        alone: how many groups are measured alone at the most; None means all.
        calls: of one pass, those to warm up among them.
        stream: where to write; None, as Python has for a stderr that is closed, is nowhere.
        clock: seconds; another one in tests.
    """

    def __init__(
        self,
        layout: Layout,
        cases: Sequence[Case],
        alone: int | None,
        calls: int,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = [work(layout, case, alone) for case in cases]
        self._announced = announced(layout, cases, alone, calls)
        self._stream: TextIO | None = stream
        self._clock = clock
        self._began = self._told = clock()
        self._number = 0
        self._again = stream is not None and stream.isatty()

    def begin(self) -> None:
        """Write a line on all of it, before anything is measured."""
        self._say(f"{self._announced}\n")

    def __call__(self, case: Case) -> None:
        """Write a line, if it is time for one. Nothing is known before the first case is done."""
        done, now = sum(self._work[: self._number]), self._clock()
        self._number += 1
        if not done or not (self._again or now - self._told >= EVERY):
            return
        self._told = now
        said = line(done, sum(self._work), now - self._began, str(case))[:WIDTH]
        self._say(f"\r{said:<{WIDTH}}" if self._again else f"{said}\n")

    def end(self) -> None:
        """Leave an empty line where one was written again."""
        if self._again:
            self._say(f"\r{'':<{WIDTH}}\r")

    def _say(self, text: str) -> None:
        """Write, as long as the stream takes it: figures are worth more than how far they are."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                self._stream = None
