"""What repeated measurements of one thing say: their middle, their quartiles and their tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """The middle of several values, and the quartiles below and above it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one or more values; a single one is all three.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0, 4.0, 9.0])
            Spread(low=2.0, median=3.0, high=4.0)
        """
        return cls(*np.percentile(values, [25, 50, 75]).tolist())


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, over many.

    Attributes:
        calls: how many.
        least: of the fastest.
        spread: the median and the quartiles.
        p99: the least that 99 of 100 calls do not exceed; with fewer than 100 that of the slowest.
        most: of the slowest.
    """

    calls: int
    least: float
    spread: Spread
    p99: float
    most: float

    @property
    def median(self) -> float:
        """Of the middle call."""
        return self.spread.median

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """The timing of one call or more.

        Example:
            >>> Timing.of([3.0, 1.0, 2.0]).p99
            3.0
        """
        ordered, number = sorted(seconds), len(seconds)
        p99 = ordered[-(-99 * number // 100) - 1]
        return cls(number, ordered[0], Spread.of(ordered), p99, ordered[-1])
