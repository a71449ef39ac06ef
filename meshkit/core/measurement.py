"""One measured collective: times over groups and calls, and which group and rank are slow.

::

    seconds       (num_ranks, calls), what each call took on each rank; nan where it had no turn
    group         the slowest rank of a group, call by call: (num_groups, calls)
    timing        over all groups and calls
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bandwidth import busbw_factor, gigabytes_per_second
from .layout import Layout
from .targets import Target
from .timing import Timing
from .verification import Seconds
from .words import format_sizes

ALONE, CONCURRENT, OVERLAP = "alone", "concurrent", "overlap"


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        op: one of ``operations.OPERATIONS``.
        target: over which groups.
        bytes: of the total array; of each of the two where two run at once.
    """

    op: str
    target: Target
    bytes: int

    def __str__(self) -> str:
        return f"{self.op} over {self.target.name}, {self.bytes} bytes"


@dataclass(frozen=True)
class GroupTime:
    """A group and the median of its calls.

    Attributes:
        ranks: its members.
        where: the coordinates that they share; ``"all"`` for the whole mesh.
        seconds: of one call on its slowest rank.
    """

    ranks: tuple[int, ...]
    where: str
    seconds: float


@dataclass(frozen=True)
class RankTime:
    """A rank, where it sits, and the median of its calls."""

    rank: int
    where: str
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """A case, measured in one way.

    Attributes:
        case: what.
        mode: ``"alone"``, one group at a time; ``"concurrent"``, all groups at once; ``"overlap"``,
            all groups of both axes at once.
        sizes: ranks in a group; of each of the two where two run at once.
        wrong: how many elements of the result were wrong, over all ranks of the mesh.
        calls: how many calls of each group count; 0 where the backend has no such operation.
        timing: of a call on the slowest rank of its group, over all groups; None where the backend
            has no such operation, and so are the next three.
        slowest: the slowest group.
        fastest: the fastest.
        rank: the slowest rank of all: that whose calls took longest.
        lacks: what the backend said, where it has no such operation.
        groups: how many groups were measured; of many only some are, where each is alone.
        num_groups: how many there are.
        per_replay: calls that a CUDA graph held; ``calls`` are then its replays, and each counts by
            the mean of the calls in it. None where each call counts.
    """

    case: Case
    mode: str
    sizes: tuple[int, ...]
    wrong: int = 0
    calls: int = 0
    timing: Timing | None = None
    slowest: GroupTime | None = None
    fastest: GroupTime | None = None
    rank: RankTime | None = None
    lacks: str | None = None
    groups: int = 0
    num_groups: int = 0
    per_replay: int | None = None

    @property
    def algbw(self) -> float | None:
        """Decimal GB/s of the median; None for two at once, and where nothing was measured."""
        if self.timing is None or len(self.sizes) > 1:
            return None
        return gigabytes_per_second(self.case.bytes, self.timing.median)

    @property
    def busbw(self) -> float | None:
        """What a wire sees of it."""
        speed = self.algbw
        return None if speed is None else speed * busbw_factor(self.case.op, self.sizes[0])


def sizes_of(layout: Layout, target: Target) -> tuple[int, ...]:
    """How many ranks a group has; of each of the two where two run at once."""
    return tuple(layout.size(*axes) for axes in target.groups)


def measurement(
    layout: Layout, case: Case, mode: str, seconds: Seconds, wrong: int = 0
) -> Measurement:
    """What the times of all ranks say. Pure, O(ranks x calls).

    Args:
        layout: the grid.
        case: what was measured.
        mode: in which way.
        seconds: (num_ranks, calls), of each call on each rank, by position in the grid; nan on the
            ranks of groups that had no turn.
        wrong: how many elements were wrong.

    Example:
        >>> case = Case("all_reduce", Target((("tp",),)), 1024)
        >>> took = np.array([[1.0], [2.0], [3.0], [3.0]])
        >>> found = measurement(Layout(dp=2, tp=2), case, CONCURRENT, took)
        >>> found.slowest, found.fastest.seconds
        (GroupTime(ranks=(2, 3), where='dp=1', seconds=3.0), 2.0)
    """
    every = layout.groups(*case.target.span)
    place = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    at = np.array([[place[int(rank)] for rank in row] for row in every])
    slow = seconds[at].max(axis=1)  # (num_groups, calls)
    had_turn = ~np.isnan(slow).any(axis=1)
    rows, took = every[had_turn], slow[had_turn]
    middles = np.median(took, axis=1).tolist()
    groups = [_group(layout, case.target, *one) for one in zip(rows, middles, strict=True)]
    return Measurement(
        case,
        mode,
        sizes_of(layout, case.target),
        wrong,
        seconds.shape[1],
        Timing.of(took.ravel().tolist()),
        max(groups, key=lambda one: one.seconds),
        min(groups, key=lambda one: one.seconds),
        _slowest_rank(layout, np.nan_to_num(seconds)),
        groups=len(rows),
        num_groups=len(every),
    )


def _group(layout: Layout, target: Target, row: Sequence[int], seconds: float) -> GroupTime:
    """A group, named by the coordinates that its ranks share; the whole mesh shares none."""
    ranks = tuple(int(rank) for rank in row)
    if len(ranks) == layout.num_ranks:
        return GroupTime(ranks, "all", seconds)
    here = layout.coordinate(ranks[0])
    shared = {axis: at for axis, at in here.items() if axis not in target.span}
    return GroupTime(ranks, format_sizes(shared), seconds)


def _slowest_rank(layout: Layout, seconds: Seconds) -> RankTime:
    middles = np.median(seconds, axis=1)
    index = int(middles.argmax())
    rank = int(layout.grid.flat[index])
    return RankTime(rank, format_sizes(layout.coordinate(rank)), float(middles[index]))
