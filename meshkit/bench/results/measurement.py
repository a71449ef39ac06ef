"""One measured collective: times over groups and calls, and the slowest group and rank.

::

    seconds       (num_ranks, calls), time of each call on each rank; nan if its group was skipped
    group         the slowest rank of a group, call by call: (num_groups, calls)
    timing        over all groups and calls
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Seconds
from ...core.grid.layout import Layout
from ...core.text import format_sizes
from .collectives import busbw_factor, gigabytes_per_second
from .targets import Target


@dataclass(frozen=True)
class Spread:
    """The median of several values, and the quartiles below and above it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one or more values; a single value is all three."""
        return cls(*np.percentile(values, [25, 50, 75]).tolist())


@dataclass(frozen=True)
class Timing:
    """Seconds per call, over many calls."""

    calls: int
    least: float  # of the fastest call
    spread: Spread
    p99: float  # not exceeded by 99 of 100 calls; the slowest of fewer calls
    most: float  # of the slowest call

    @property
    def median(self) -> float:
        """Seconds of the median call."""
        return self.spread.median

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Return the timing of one call or more."""
        ordered, calls = sorted(seconds), len(seconds)
        p99 = ordered[-(-99 * calls // 100) - 1]
        return cls(calls, ordered[0], Spread.of(ordered), p99, ordered[-1])


@dataclass(frozen=True)
class Case:
    """An operation, its groups and the size of its array."""

    op: str  # one of ``OPERATIONS``
    target: Target
    bytes: int  # size of the total array; of each of the two if two axes run at once

    def __str__(self) -> str:
        return f"{self.op} over {self.target.name}, {self.bytes} bytes"


@dataclass(frozen=True)
class GroupTime:
    """A group and the median of its calls."""

    ranks: tuple[int, ...]
    where: str  # coordinates that all members share; ``"all"`` for the whole mesh
    seconds: float  # median of a call on the slowest rank


@dataclass(frozen=True)
class RankTime:
    """A rank, its coordinate, and the median of its calls."""

    rank: int
    where: str
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """A case measured in one mode."""

    case: Case
    mode: str  # ``"alone"``, ``"concurrent"`` or ``"overlap"``, see sweep.py
    sizes: tuple[int, ...]  # ranks in a group, or in each of two groups if two axes run at once
    wrong: int = 0  # wrong elements in the results of all ranks
    calls: int = 0  # timed calls of each group; 0 if the operation is unsupported
    timing: Timing | None = None  # on the slowest rank of each group; None if unsupported
    slowest: GroupTime | None = None
    fastest: GroupTime | None = None
    rank: RankTime | None = None  # slowest rank of all
    unsupported: str | None = None  # message of a backend that lacks the operation
    groups: int = 0  # number of measured groups; ``"alone"`` measures a sample of many
    num_groups: int = 0  # of the target

    @property
    def algbw(self) -> float | None:
        """Decimal GB/s of the median call; None without a time, and for two axes at once."""
        if self.timing is None or len(self.sizes) > 1:
            return None
        return gigabytes_per_second(self.case.bytes, self.timing.median)

    @property
    def busbw(self) -> float | None:
        """Decimal GB/s of a link, by the factor of nccl-tests; None as for ``algbw``."""
        algbw = self.algbw
        return None if algbw is None else algbw * busbw_factor(self.case.op, self.sizes[0])


def group_sizes(layout: Layout, target: Target) -> tuple[int, ...]:
    """Return the ranks in a group; of each of the two if two axes run at once."""
    return tuple(layout.size(*axes) for axes in target.groups)


def summarize(
    layout: Layout, case: Case, mode: str, seconds: Seconds, wrong: int = 0
) -> Measurement:
    """Return the measurement of a case from ``seconds``, (num_ranks, calls). Pure."""
    groups = layout.groups(*case.target.span)  # (num_groups, group_size)
    position = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    positions = np.array([[position[int(rank)] for rank in group] for group in groups])
    slowest = seconds[positions].max(axis=1)  # (num_groups, calls)
    was_measured = ~np.isnan(slowest).any(axis=1)
    measured, times = groups[was_measured], slowest[was_measured]
    medians = np.median(times, axis=1).tolist()
    group_times = [
        _group_time(layout, case.target, group, median)
        for group, median in zip(measured, medians, strict=True)
    ]
    return Measurement(
        case,
        mode,
        group_sizes(layout, case.target),
        wrong,
        seconds.shape[1],
        Timing.of(times.ravel().tolist()),
        max(group_times, key=lambda group: group.seconds),
        min(group_times, key=lambda group: group.seconds),
        _slowest_rank(layout, np.nan_to_num(seconds)),
        groups=len(measured),
        num_groups=len(groups),
    )


def _group_time(layout: Layout, target: Target, group: Sequence[int], seconds: float) -> GroupTime:
    """Return the time of a group, with the coordinates that its ranks share."""
    ranks = tuple(int(rank) for rank in group)
    if len(ranks) == layout.num_ranks:
        return GroupTime(ranks, "all", seconds)
    coordinate = layout.coordinate(ranks[0])
    shared = {axis: index for axis, index in coordinate.items() if axis not in target.span}
    return GroupTime(ranks, format_sizes(shared), seconds)


def _slowest_rank(layout: Layout, seconds: Seconds) -> RankTime:
    medians = np.median(seconds, axis=1)
    index = int(medians.argmax())
    rank = int(layout.grid.flat[index])
    return RankTime(rank, format_sizes(layout.coordinate(rank)), float(medians[index]))
