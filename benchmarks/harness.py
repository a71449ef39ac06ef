"""Rows that compare meshkit with a peer, and the timing that fills them.

The ratio of a row is meshkit / peer, taken repetition by repetition, as median and quartiles.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

INSTALL = "pip install -c constraints.txt -e '.[bench]'"
ITSELF = "itself on 8 ranks"  # the peer of a figure that must not grow with the ranks

Work = Callable[[], object]
Clock = Callable[[], float]  # does the work and returns its own figure, usually seconds
Figures = tuple[list[float], list[float]]  # meshkit's and the peer's, one a repetition


def figure_text(value: float | None) -> str:
    """Format a figure with three significant digits, or as a whole number from 1,000 on."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class Ratio:
    """The median of meshkit / peer over repetitions, and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        """Return the quartiles of one or more ratios."""
        return cls(*np.percentile(values, [25, 50, 75]).tolist())

    def __str__(self) -> str:
        return f"{figure_text(self.median)} ({figure_text(self.low)}-{figure_text(self.high)})"


@dataclass(frozen=True)
class Goal:
    """A bound on one figure of a row.

    ``"ratio"`` is the median ratio, and ``"ours"`` the figure of meshkit. ``"low"`` is the lower
    quartile of the ratio, for two sides that may differ by noise alone.
    """

    figure: str
    sense: str  # "<=" or ">="
    bound: float

    def excess(self, ours: float | None, ratio: Ratio | None) -> float | None:
        """Return the figure relative to the bound, or None if the row has no such figure.

        At most 1 meets the goal; 1.3 misses it by 30 %.

        Example:
            >>> Goal("ours", "<=", 10).excess(13, None), Goal("ours", ">=", 4).excess(2, None)
            (1.3, 2.0)
        """
        figures = {"ours": ours}
        if ratio is not None:
            figures |= {"ratio": ratio.median, "low": ratio.low}
        figure = figures.get(self.figure)
        if figure is None:
            return None
        return figure / self.bound if self.sense == "<=" else self.bound / figure

    def __str__(self) -> str:
        return f"{self.figure} {self.sense} {self.bound:g}"


@dataclass(frozen=True)
class Row:
    """One kind of work on one number of ranks, done by meshkit and by one peer."""

    what: str  # the work, in the words of the table
    scale: int  # number of ranks; 1 for work of one process
    peer: str  # the library or call that does the same work; "-" if there is none
    unit: str  # of both figures
    ours: float | None = None
    theirs: float | None = None
    ratio: Ratio | None = None  # ours / theirs over repetitions
    goal: Goal | None = None
    missing: str | None = None  # why the peer has no figure, and the command that brings it

    @property
    def excess(self) -> float | None:
        """Return the distance from the goal, see :meth:`Goal.excess`; None without a goal."""
        return None if self.goal is None else self.goal.excess(self.ours, self.ratio)

    @property
    def met(self) -> bool | None:
        """Return whether the goal is met; None without a goal or without its figure."""
        return None if self.excess is None else self.excess <= 1


def compare(
    what: str, scale: int, peer: str, unit: str, figures: Figures, goal: Goal | None = None
) -> Row:
    """Return the row of figures of both sides, which were taken in pairs, one a repetition."""
    ours, theirs = figures
    ratio = Ratio.of([mine / other for mine, other in zip(ours, theirs, strict=True)])
    return Row(what, scale, peer, unit, median(ours), median(theirs), ratio, goal)


def single(
    what: str, scale: int, unit: str, figures: Sequence[float], goal: Goal | None = None
) -> Row:
    """Return the row of work that no peer does."""
    return Row(what, scale, "-", unit, ours=median(figures), goal=goal)


def mesh_sizes(ranks: int) -> dict[str, int]:
    """Return the sizes of the mesh that jobs of an even number of ranks build."""
    tp = 4 if ranks % 4 == 0 else 2
    return {"dp": ranks // tp, "tp": tp}


def time_in_turns(ours: Work, theirs: Work, repeats: int, *, min_seconds: float = 0.005) -> Figures:
    """Return the seconds of one call of each side, repetition by repetition.

    Each repetition times as many calls in a row as take ``min_seconds``. Garbage is collected
    before the first repetition, and not again until the last one has ended.
    """
    gc.collect()
    gc.disable()
    try:
        calls, their_calls = (_num_calls(work, min_seconds) for work in (ours, theirs))
        return alternate(
            lambda: _seconds(ours, calls), lambda: _seconds(theirs, their_calls), repeats, warm_up=0
        )
    finally:
        gc.enable()


def alternate(ours: Clock, theirs: Clock, repeats: int, *, warm_up: int = 1) -> Figures:
    """Return the figures of both sides, repetition by repetition, after some that do not count.

    The side that goes first changes with each repetition, so that a machine that slows down slows
    both sides down.
    """
    figures: Figures = ([], [])
    for repeat in range(warm_up + repeats):
        for side in turn(repeat):
            figures[side].append((ours, theirs)[side]())
    return figures[0][warm_up:], figures[1][warm_up:]


def turn(repeat: int) -> tuple[int, int]:
    """Return the order of the two sides in a repetition."""
    return (0, 1) if repeat % 2 == 0 else (1, 0)


def _num_calls(work: Work, min_seconds: float) -> int:
    _seconds(work, 1)
    return max(1, round(min_seconds / max(_seconds(work, 1), 1e-7)))


def _seconds(work: Work, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls
