"""A whole run of measurements, and what compares one with another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .bandwidth import fitted
from .fit import Fit, fits
from .layout import Layout
from .measurement import ALONE, CONCURRENT, OVERLAP, Case, GroupTime, Measurement, RankTime
from .targets import Target
from .turns import turns

BEGIN, CHECK, GATE = 4, 2, 1  # waits beside calls, see below


@dataclass(frozen=True)
class Measured:
    """What a run found.

    Attributes:
        sizes: axis name to size, the outermost first.
        launcher: who started the ranks.
        device: what kind they compute on.
        backend: what the collectives ran on.
        torch: its version.
        hosts: rank to its machine, in the order of the grid.
        warm_up: calls asked for before those that count.
        iters: calls asked for that count; each measurement says how many there were.
        graph: whether a CUDA graph held them, and each replay counts by the mean of its calls.
        found: the measurements, in the order in which they were made.
        planned: how many there would be at the end.
        seconds: that all of it took.
    """

    sizes: Mapping[str, int]
    launcher: str
    device: str
    backend: str
    torch: str
    hosts: Mapping[int, str]
    warm_up: int
    iters: int
    graph: bool
    found: tuple[Measurement, ...]
    planned: int
    seconds: float

    @property
    def layout(self) -> Layout:
        """The grid."""
        return Layout(ranks=[*self.hosts], **self.sizes)

    @property
    def wrong(self) -> int:
        """Wrong elements in all results together; a case counts once, however often measured."""
        return sum({one.case: one.wrong for one in self.found}.values())

    @property
    def interrupted(self) -> bool:
        """Whether something that was planned is missing."""
        return len(self.found) < self.planned

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The lines through the times."""
        return fits(self.found, self.sizes)


def cases(
    layout: Layout, operations: Sequence[str], targets: Sequence[Target], sizes: Sequence[int]
) -> list[Case]:
    """All that is measured: operation by operation, target by target, size by size. Pure.

    Sizes are rounded so that every group of the mesh can share them, and equal ones are one.
    """
    shared = dict.fromkeys(fitted(size, layout.num_ranks) for size in sizes)
    return [Case(op, target, size) for op in operations for target in targets for size in shared]


def modes(layout: Layout, target: Target) -> tuple[str, ...]:
    """The ways in which a target is measured; one group is always alone. Pure.

    Example:
        >>> modes(Layout(dp=2, tp=2), Target((("dp",),)))
        ('alone', 'concurrent')
    """
    if len(target.groups) > 1:
        return (OVERLAP,)
    return (ALONE,) if layout.size(*target.span) == layout.num_ranks else (ALONE, CONCURRENT)


def passes(layout: Layout, todo: Sequence[Case], alone: int | None) -> int:
    """How often a run lets groups measure, all at once or one alone. Pure.

    Args:
        layout: the grid.
        todo: what is measured.
        alone: how many groups are measured alone at the most; None means all.

    Example:
        >>> layout, over_tp = Layout(dp=1000, tp=8), Target((("tp",),))
        >>> [passes(layout, [Case("broadcast", over_tp, 64)], n) for n in (16, None)]
        [17, 1001]
    """
    ways = [(case.target, mode) for case in todo for mode in modes(layout, case.target)]
    return sum(turns(layout, target, mode, alone) for target, mode in ways)


def waits(
    layout: Layout, todo: Sequence[Case], alone: int | None, *, calls: int = 2, checks: int = 1
) -> int:
    """How often ranks wait for each other in a run, each time no longer than a deadline. Pure.

    Four times to begin: to join, to build, to compare what is asked for, to hear the hosts. In a
    case at the gate, in each call of the check, and to tell what it found. For all groups at once,
    or for each that is measured alone: at the gate, and in the least calls of a pass, as more are
    made only where there is time for all of them in a quarter of the deadline. Once to tell what a
    way took.

    Args:
        layout: the grid.
        todo: what is measured.
        alone: as for :func:`passes`.
        calls: the least that a pass makes.
        checks: calls of a check.

    Example:
        >>> layout, over_dp = Layout(dp=4, sp=2), Target((("dp",),))
        >>> waits(layout, [Case("broadcast", over_dp, 64)], 16)  # 4 + 3 + 3 * (2 + 1) + (1 + 1)
        18
    """
    told = sum(len(modes(layout, case.target)) for case in todo)
    checked, once = (CHECK + checks) * len(todo), GATE + calls
    return BEGIN + checked + once * passes(layout, todo, alone) + told


def ratios(found: Sequence[Measurement]) -> list[float | None]:
    """What company costs each measurement: its median over that by itself. Pure.

    ``concurrent`` is compared with ``alone``; ``overlap`` with the slower of its two axes, each
    with all its groups at once: 1 is free, and 2 is one after the other where both take as long.
    None where there is nothing to compare with.
    """
    known = {
        (one.case.op, one.case.target.groups, one.case.bytes, one.mode): one.timing.median
        for one in found
        if one.timing is not None
    }
    return [_ratio(one, known) for one in found]


Known = Mapping[tuple[str, tuple[tuple[str, ...], ...], int, str], float]


def _ratio(one: Measurement, known: Known) -> float | None:
    if one.timing is None or one.mode == ALONE:
        return None
    op, groups, size = one.case.op, one.case.target.groups, one.case.bytes
    first = CONCURRENT if one.mode == OVERLAP else ALONE
    base = [known.get((op, (g,), size, first), known.get((op, (g,), size, ALONE))) for g in groups]
    there = [seconds for seconds in base if seconds is not None]
    return one.timing.median / max(there) if len(there) == len(base) else None


@dataclass(frozen=True)
class Slowest:
    """Which group and which rank were the slowest most often, over the rows of a target and way.

    Attributes:
        target: as it is typed.
        mode: how it was measured.
        rows: how many rows there are.
        group: the group that was the slowest in most of them, from the last such row.
        group_rows: in how many.
        factor: the slowest group's time over the fastest's, the median over all rows.
        rank: the rank that was.
        rank_rows: in how many.
    """

    target: str
    mode: str
    rows: int
    group: GroupTime
    group_rows: int
    factor: float
    rank: RankTime
    rank_rows: int


def slowest(found: Sequence[Measurement]) -> tuple[Slowest, ...]:
    """The slow ones of each target and way, in the order in which they were measured. Pure."""
    series: dict[tuple[str, str], list[tuple[GroupTime, GroupTime, RankTime]]] = {}
    for one in found:
        if one.slowest is not None and one.fastest is not None and one.rank is not None:
            rows = series.setdefault((one.case.target.name, one.mode), [])
            rows.append((one.slowest, one.fastest, one.rank))
    return tuple(_slowest(*key, rows) for key, rows in series.items())


def _slowest(
    target: str, mode: str, rows: Sequence[tuple[GroupTime, GroupTime, RankTime]]
) -> Slowest:
    (ranks, group_rows), *_ = Counter(slow.ranks for slow, _, _ in rows).most_common(1)
    (number, rank_rows), *_ = Counter(rank.rank for _, _, rank in rows).most_common(1)
    group = [slow for slow, _, _ in rows if slow.ranks == ranks][-1]
    rank = [one for _, _, one in rows if one.rank == number][-1]
    factor = float(np.median([slow.seconds / fast.seconds for slow, fast, _ in rows]))
    return Slowest(target, mode, len(rows), group, group_rows, factor, rank, rank_rows)
