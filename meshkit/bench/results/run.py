"""A whole benchmark run: its cases and passes, its measurements, and comparisons between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.grid.layout import Layout
from .collectives import divisible_size
from .fit import Fit, fit_measurements
from .measurement import Case, Measurement
from .targets import ALONE, CONCURRENT, OVERLAP, Target, num_passes

MIN_CALLS = 2  # that are timed in each pass, however slow they are


@dataclass(frozen=True)
class BenchmarkRun:
    """The results of one run."""

    sizes: Mapping[str, int]  # axis name to size, the outermost first
    launcher: str
    device: str  # device type of the tensors
    backend: str
    torch: str
    hosts: Mapping[int, str]  # rank to its host name, in the order of the grid
    warm_up: int  # requested calls before the timed ones
    iters: int  # requested timed calls; each measurement has the actual number
    measurements: tuple[Measurement, ...]  # in measured order
    planned: int  # measurements of a complete run
    seconds: float

    @property
    def layout(self) -> Layout:
        """The grid."""
        return Layout(ranks=[*self.hosts], **self.sizes)

    @property
    def wrong(self) -> int:
        """Wrong elements in all results; a case counts once, however often it is measured."""
        return sum({row.case: row.wrong for row in self.measurements}.values())

    @property
    def interrupted(self) -> bool:
        """Whether a planned measurement is missing."""
        return len(self.measurements) < self.planned

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The lines through the times."""
        return fit_measurements(self.measurements)


def plan_cases(
    layout: Layout, operations: Sequence[str], targets: Sequence[Target], sizes: Sequence[int]
) -> list[Case]:
    """Return all cases, with sizes rounded down so that every group divides them. Pure."""
    divisible = dict.fromkeys(divisible_size(size, layout.num_ranks) for size in sizes)
    return [Case(op, target, size) for op in operations for target in targets for size in divisible]


def modes(layout: Layout, target: Target) -> tuple[str, ...]:
    """Return the modes in which a target is measured; a single group is always alone. Pure."""
    if len(target.groups) > 1:
        return (OVERLAP,)
    return (ALONE,) if layout.size(*target.span) == layout.num_ranks else (ALONE, CONCURRENT)


def total_passes(layout: Layout, cases: Sequence[Case], max_alone: int | None) -> int:
    """Return the passes of a run, each with all groups at once or one group alone. Pure."""
    return sum(
        num_passes(layout, case.target, mode, max_alone)
        for case in cases
        for mode in modes(layout, case.target)
    )


def num_barriers(layout: Layout, cases: Sequence[Case], max_alone: int | None) -> int:
    """Return how often ranks wait for each other, each time one timeout at most. Pure.

    ::

        per run     4: to join, to build the mesh, to compare requests, to learn the hosts
        per case    3: the barrier, the checked call, the exchange of its result
        per pass    the barrier and MIN_CALLS calls; more are made only if all of them fit
                    into a quarter of the timeout
        per mode    1: the exchange of its times
    """
    exchanges = sum(len(modes(layout, case.target)) for case in cases)
    return 4 + 3 * len(cases) + (1 + MIN_CALLS) * total_passes(layout, cases, max_alone) + exchanges


def slowdowns(measurements: Sequence[Measurement]) -> list[float | None]:
    """Return the slowdown under contention: concurrent median over the isolated one. Pure.

    ``concurrent`` is compared with ``alone``. ``overlap`` is compared with the slower of its two
    axes, each with all its groups at once: 1 means no cost, and 2 means one after the other if both
    take equally long. None if there is nothing to compare with.
    """
    medians = {
        (row.case.op, row.case.target.groups, row.case.bytes, row.mode): row.median
        for row in measurements
        if row.median is not None
    }
    return [_slowdown(row, medians) for row in measurements]


Medians = Mapping[tuple[str, tuple[tuple[str, ...], ...], int, str], float]


def _slowdown(row: Measurement, medians: Medians) -> float | None:
    if row.median is None or row.mode == ALONE:
        return None
    op, size = row.case.op, row.case.bytes
    isolated = CONCURRENT if row.mode == OVERLAP else ALONE
    base = [
        medians.get((op, (axes,), size, isolated), medians.get((op, (axes,), size, ALONE)))
        for axes in row.case.target.groups
    ]
    known = [seconds for seconds in base if seconds is not None]
    return row.median / max(known) if len(known) == len(base) else None
