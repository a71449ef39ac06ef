"""Name the groups of a benchmark that are slow. Pure: no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..layout.layout import Layout
from ..text import format_figure, format_sizes, name_ranks, summarize
from .results import ALONE, BenchmarkRun, Measurement, Target
from .slow import GroupTime


@dataclass(frozen=True)
class NamedGroup:
    """A group of a target in one row of a run."""

    row: Measurement
    time: GroupTime
    coordinate: str  # on the axes outside the target: sp=1
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # each once

    def __str__(self) -> str:
        return f"{self.row.case.target.name} at {self.coordinate} ({name_ranks(self.ranks)})"

    def describe(self) -> str:
        """Return the sentence about a slow group."""
        case, time = self.row.case, self.time
        return (
            f"SLOW: {self} on {summarize(self.hosts)}: {case.op} of {case.bytes} bytes "
            f"takes {format_us(time.median)} us, {time.factor:.2f} times the median of its peers."
        )


def format_us(seconds: float) -> str:
    """Return seconds as microseconds with three digits."""
    return format_figure(seconds * 1e6)


def name_group(run: BenchmarkRun, row: Measurement, time: GroupTime) -> NamedGroup:
    """Return a measured group with its coordinate, ranks and hosts."""
    layout, span = Layout.of(run.sizes), row.case.target.span
    ranks = layout.groups(*span)[time.index].tolist()
    coordinate = layout.coordinate(ranks[0])
    outside = {
        axis: i for axis, i in coordinate.items() if axis not in span and run.sizes[axis] > 1
    }
    hosts = tuple(dict.fromkeys(run.hosts[rank] for rank in ranks))
    return NamedGroup(row, time, format_sizes(outside) or "all", tuple(sorted(ranks)), hosts)


def all_at_once(run: BenchmarkRun) -> list[Measurement]:
    """Return the rows with all groups of a target at once; those of one group are always so."""
    return [row for row in run.measurements if row.mode != ALONE or row.num_groups == 1]


def slow_groups(run: BenchmarkRun) -> list[NamedGroup]:
    """Return each slow group of each operation and target once: its row with the largest factor."""
    slowest: dict[tuple[str, Target, int], NamedGroup] = {}
    for row in all_at_once(run):
        for time in row.by_group:
            key = row.case.op, row.case.target, time.index
            if time.is_slow and not (key in slowest and slowest[key].time.factor >= time.factor):
                slowest[key] = name_group(run, row, time)
    return list(slowest.values())
