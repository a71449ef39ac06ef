"""Judge which groups of a run miss a limit: a given figure, or their own time in a saved run. Pure.

All groups of a target run at once, as in training, and each is judged by its own median call::

    --min-busbw     the busbw at the largest measured size
    --max-latency   the time at the smallest size
    --against       at every size: the median is WORTH times that of the saved run or more, and
                    nine of ten rounds took longer than nine of ten rounds of the saved run

The last condition is the noise, as for slow groups: a run that only varies more is not slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from ..errors import MeshkitError, SpecError
from ..layout.layout import Layout
from ..text import count_noun, format_sizes
from .report import Miss, name_group, rows_at_once
from .results import OPERATIONS, BenchmarkRun, Case, Measurement, Target, is_at_once, parse_targets
from .slow import MIN_JUDGED, WORTH

INVALID = LookupError, TypeError, ValueError, ArithmeticError, AttributeError, MeshkitError
Ranks = tuple[int, ...]  # of a group, ascending
NOT_SAVED = "the file of --against is not one that --save has written."
SAVE_AGAIN = "save a run of this version of meshkit with --save."


@dataclass(frozen=True)
class SavedTime:
    """The time of one group in a saved run, in microseconds."""

    median: float
    high: float  # nine of ten rounds took this long at most


@dataclass(frozen=True)
class SavedRun:
    """The times of a saved run, with all groups of a target at once."""

    device: str
    backend: str
    times: Mapping[Case, Mapping[Ranks, SavedTime]]

    @property
    def operations(self) -> tuple[str, ...]:
        """The measured operations, each once."""
        return tuple(dict.fromkeys(case.op for case in self.times))

    @property
    def targets(self) -> tuple[Target, ...]:
        """The measured targets, each once."""
        return tuple(dict.fromkeys(case.target for case in self.times))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The measured sizes in bytes, ascending."""
        return tuple(sorted({case.bytes for case in self.times}))

    def check_measures(self, cases: Sequence[Case]) -> None:
        """Check that the run has all cases of another run."""
        missing = [str(case) for case in cases if case not in self.times]
        if missing:
            summary = f"the file of --against has no {missing[0]}."
            raise SpecError(summary, fix="leave out --ops, --axes and --sizes: the file has them.")

    def check_device(self, run: BenchmarkRun) -> None:
        """Check that the run used the same kind of device as another, and the same backend."""
        if (self.device, self.backend) != (run.device, run.backend):
            summary = f"the file of --against is of {self.backend} on {self.device}"
            fix = f"--device {self.device}, or save a run on {run.device} with --save."
            raise SpecError(f"{summary}, this run of {run.backend} on {run.device}.", fix=fix)


@dataclass(frozen=True)
class Limits:
    """The limits that each group of a run must keep."""

    min_busbw: Mapping[Target, float]  # decimal GB/s
    max_latency: Mapping[Target, float]  # microseconds
    saved: SavedRun | None = None


def resolve_limits(
    layout: Layout, targets: Sequence[Target], option: str, given: Sequence[tuple[str, float]]
) -> dict[Target, float]:
    """Return the limit of each target from pairs of its name and a number."""
    limits: dict[Target, float] = {}
    for name, number in given:
        (target,) = parse_targets(layout, [name])
        if target not in targets:
            measured = ",".join(known.name for known in targets)
            summary = f"{option} is for {target.name}, and this run measures {measured}."
            raise SpecError(summary, fix=f"--axes '{measured},{target.name}'.")
        if target in limits:
            raise SpecError(f"{option} has {target.name} twice.", fix="one number for each.")
        if option == "--min-busbw" and len(target.groups) > 1:
            summary = f"{target.name} is two collectives at once, which have no busbw."
            raise SpecError(summary, fix=f"--max-latency '{target.name}=MICROSECONDS'.")
        limits[target] = number
    return limits


def parse_saved(layout: Layout, saved: Mapping[str, Any]) -> SavedRun:
    """Return a run from the JSON that ``--save`` has written."""
    try:
        sizes = {str(axis): int(size) for axis, size in saved["sizes"].items()}
        is_of_layout = [*sizes.items()] == [*layout.sizes.items()]
        rows = [
            _parse_row(layout, row)
            for row in saved["measurements"]
            if is_of_layout and is_at_once(row["mode"], row["num_groups"])
        ]
        device, backend = str(saved["device"]), str(saved["backend"])
    except INVALID as error:
        line = f"{type(error).__name__}: {error}."
        raise SpecError(NOT_SAVED, line, fix=SAVE_AGAIN) from error
    if not is_of_layout:
        summary = f"the file of --against is of {format_sizes(sizes)}"
        fix = f"{format_sizes(sizes)}, or a file of {format_sizes(layout.sizes)}."
        raise SpecError(f"{summary}, this mesh is {format_sizes(layout.sizes)}.", fix=fix)
    if not rows:
        raise SpecError(NOT_SAVED, "It has no measurements.", fix=SAVE_AGAIN)
    for case, number, times in rows:
        if not _is_whole(layout, case, number, times):
            raise SpecError(NOT_SAVED, f"{case} has not one time for each group.", fix=SAVE_AGAIN)
    rounds = min(number for _, number, _ in rows)
    if rounds < MIN_JUDGED:
        summary = f"the file of --against has {count_noun(rounds, 'round')} of calls."
        line = f"Fewer than {MIN_JUDGED} say nothing about the noise."
        raise SpecError(summary, line, fix=SAVE_AGAIN)
    return SavedRun(device, backend, {case: times for case, _, times in rows})


def _parse_row(layout: Layout, row: Mapping[str, Any]) -> tuple[Case, int, dict[Ranks, SavedTime]]:
    """Return a row of the JSON as its case, its number of rounds, and the times of its groups."""
    op = str(row["op"])
    (target,) = parse_targets(layout, [row["axes"]])
    times = {
        tuple(map(int, group["ranks"])): SavedTime(float(group["us"]), float(group["high"]))
        for group in row["by_group"]
    }
    return Case(op, target, int(row["bytes"])), int(row["rounds"]), times


def _is_whole(layout: Layout, case: Case, rounds: int, times: Mapping[Ranks, SavedTime]) -> bool:
    """Return whether a row of the JSON has a known operation and a possible time of each group."""
    groups = {tuple(sorted(ranks)) for ranks in layout.groups(*case.target.span).tolist()}
    numbers = [number for time in times.values() for number in (time.median, time.high)]
    is_possible = all(0 < number < math.inf for number in (*numbers, case.bytes, rounds))
    return case.op in OPERATIONS and times.keys() == groups and is_possible


def find_misses(run: BenchmarkRun, limits: Limits) -> list[Miss]:
    """Return each group that misses a limit, once for each operation, target and kind of limit."""
    misses: list[Miss] = []
    for _, group in groupby(rows_at_once(run), attrgetter("case.op", "case.target")):
        rows = sorted(group, key=lambda row: row.case.bytes)
        misses += _miss_figures(run, rows, limits)
        if limits.saved is not None:
            misses += _miss_saved_times(run, rows, limits.saved)
    return misses


def _miss_figures(run: BenchmarkRun, rows: Sequence[Measurement], limits: Limits) -> Iterator[Miss]:
    """Yield the groups of a target that miss a figure, from its rows by ascending size."""
    least, most = rows[0], rows[-1]
    target = least.case.target
    for time in most.by_group:
        busbw = most.busbw_of(time.median)
        if target in limits.min_busbw and busbw is not None and busbw < limits.min_busbw[target]:
            group = name_group(run, most, time)
            yield Miss("min-busbw", group, busbw, limits.min_busbw[target])
    for time in least.by_group:
        latency = time.median * 1e6
        if latency > limits.max_latency.get(target, latency):
            group = name_group(run, least, time)
            yield Miss("max-latency", group, latency, limits.max_latency[target])


def _miss_saved_times(
    run: BenchmarkRun, rows: Sequence[Measurement], saved: SavedRun
) -> list[Miss]:
    """Return each group of a target that became slower, at the size with the largest factor."""
    slower: dict[Ranks, Miss] = {}
    for row in rows:
        for group in (name_group(run, row, time) for time in row.by_group):
            if not (before := saved.times.get(row.case, {}).get(group.ranks)):
                continue
            miss = Miss("against", group, group.time.median * 1e6, before.median)
            is_clear = row.rounds >= MIN_JUDGED and group.time.low * 1e6 > before.high
            known = slower.get(group.ranks)
            if is_clear and miss.factor >= WORTH and (not known or miss.factor > known.factor):
                slower[group.ranks] = miss
    return [*slower.values()]
