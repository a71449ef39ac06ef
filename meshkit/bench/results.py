"""The plan of a benchmark and its results. Pure: without torch.

Conventions are those of nccl-tests, ``doc/PERFORMANCE.md`` of github.com/NVIDIA/nccl-tests. S is
the size of the total array in bytes, t the time, n the number of ranks. GB are decimal::

    algbw = S / t                       bandwidth that the caller sees
    busbw = algbw * factor              bandwidth of a link, comparable between numbers of ranks
    factor: all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all (n-1)/n
            broadcast, send_recv 1

A target is the groups of one axis (``dp``) or several (``dp sp``), the group of all ranks
(``world``), or two at once (``dp+sp``): in training the gradients of dp are reduced while tp, sp,
cp and ep still communicate. Those four wait for each other, and do not overlap.

Measuring alone takes one pass a group, while all others wait. If there are many groups, only some
at equal distances are measured alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..call import quotes_call
from ..errors import SpecError
from ..layout.axes import check_axes_exist, parse_axes
from ..layout.group_plan import Axes
from ..layout.layout import Layout
from ..text import Seconds
from .slow import GroupTime, Rounds, judge_groups

ITEM_BYTES = 4  # of a float32
MAX_BYTES = 2**40  # of the largest array
MIN_CALLS = 2  # that are timed in each pass, however slow they are
MAX_ROUNDS = 20  # over which a fixed number of calls is spread
ALONE, CONCURRENT, OVERLAP = "alone", "concurrent", "overlap"
DEFAULT_ALONE = 16  # groups of a target that are measured alone at most, by default
COMPUTE_ROUNDS = 10  # at most, of a collective beside a matrix product
PRODUCT_SIDES = tuple(2**n for n in range(6, 13))  # of the matrices that are tried
WORLD = "world"  # all axes, unless an axis has this name
SEQUENTIAL = frozenset({"ep", "cp", "sp", "tp"})  # one after the other inside a layer


@dataclass(frozen=True)
class CollectiveKind:
    """Properties of one collective."""

    ring_passes: int = 0  # of the array round a ring, (n - 1) / n of its bytes each; 0: no ring
    in_place: bool = False  # whether the output starts as the source, and no other source is read
    source_is_part: bool = False  # whether the source is one part, rather than the whole array
    output_is_part: bool = False  # whether the output is one part


OPERATIONS = {
    "all_reduce": CollectiveKind(ring_passes=2, in_place=True),
    "all_gather": CollectiveKind(ring_passes=1, source_is_part=True),
    "reduce_scatter": CollectiveKind(ring_passes=1, output_is_part=True),
    "all_to_all": CollectiveKind(ring_passes=1),
    "broadcast": CollectiveKind(in_place=True),
    "send_recv": CollectiveKind(),
}


@dataclass(frozen=True)
class Target:
    """Groups that a collective runs over."""

    groups: tuple[Axes, ...]  # axes of each; two entries if collectives run on both at once

    @property
    def name(self) -> str:
        """The target as typed: ``dp``, ``dp sp`` or ``dp+sp``."""
        return "+".join(" ".join(axes) for axes in self.groups)

    @property
    def span(self) -> Axes:
        """All axes; ranks that differ in no others depend on each other."""
        return tuple(axis for axes in self.groups for axis in axes)


@dataclass(frozen=True)
class Case:
    """An operation, its groups and the size of its array."""

    op: str  # one of ``OPERATIONS``
    target: Target
    bytes: int  # size of the total array; of each of the two if two axes run at once

    def __str__(self) -> str:
        return f"{self.op} over {self.target.name}, {self.bytes} bytes"


@dataclass(frozen=True)
class Measurement:
    """A case measured in one mode."""

    case: Case
    mode: str  # ``"alone"``, ``"concurrent"`` or ``"overlap"``
    sizes: tuple[int, ...]  # ranks in a group, or in each of two groups if two axes run at once
    wrong: int  # wrong elements in the results of all ranks
    calls: int  # timed calls of each group
    rounds: int  # over which they were spread
    median: float  # seconds of a call, on the slowest rank of its group
    p99: float  # not exceeded by 99 of 100 calls; the slowest of fewer calls
    num_groups: int  # of the target
    by_group: tuple[GroupTime, ...]  # the measured groups; ``"alone"`` measures some of many

    @property
    def groups(self) -> int:
        """The number of measured groups."""
        return len(self.by_group)

    @property
    def algbw(self) -> float | None:
        """Decimal GB/s of the median call; None for two axes at once."""
        return self.case.bytes / self.median / 1e9 if len(self.sizes) == 1 else None

    @property
    def busbw(self) -> float | None:
        """Decimal GB/s of a link, by the factor of nccl-tests; None as for ``algbw``."""
        return self.busbw_of(self.median)

    def busbw_of(self, seconds: float) -> float | None:
        """Return the busbw of a call of so many seconds; None for two axes at once."""
        if len(self.sizes) > 1:
            return None
        return self.case.bytes / seconds / 1e9 * busbw_factor(self.case.op, self.sizes[0])


@dataclass(frozen=True)
class FirstCall:
    """The first collective of the groups of some axes, in which a backend may connect them."""

    axes: Axes
    seconds: tuple[float, ...]  # of each group, on its slowest rank
    memory: tuple[int, ...] | None  # bytes that it took on the device of each rank; None: no CUDA


@dataclass(frozen=True)
class Beside:
    """A collective of all groups of a target beside a matrix product on each rank.

    The seconds are of the median call, on the slowest rank of its group.
    """

    case: Case
    collective: float  # by itself
    product: float  # by itself
    both: float  # the collective begun, the product, the wait

    @property
    def in_turn(self) -> float:
        """Seconds of one after the other, with nothing hidden."""
        return self.collective + self.product

    @property
    def hidden(self) -> float:
        """The share of the shorter one that the longer one hides, from 0 to 1."""
        share = (self.in_turn - self.both) / min(self.collective, self.product)
        return min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class BenchmarkRun:
    """The results of one run."""

    sizes: Mapping[str, int]  # axis name to size, the outermost first
    launcher: str
    device: str  # device type of the tensors
    backend: str
    torch: str
    hosts: tuple[str, ...]  # the host name of each rank
    warm_up: int  # requested calls before the timed ones
    iters: int | None  # requested timed calls; None: as many as the time allowed
    first_calls: tuple[FirstCall, ...]
    measurements: tuple[Measurement, ...]  # in the order of the plan
    seconds: float
    beside: tuple[Beside, ...] = ()  # with ``--overlap-compute``

    @property
    def wrong(self) -> int:
        """Wrong elements in all results; a case counts once, however often it is measured."""
        return sum({row.case: row.wrong for row in self.measurements}.values())


def busbw_factor(operation: str, num_ranks: int) -> float:
    """Return the factor from algbw to busbw."""
    ring_passes = OPERATIONS[operation].ring_passes
    return ring_passes * (num_ranks - 1) / num_ranks if ring_passes else float(num_ranks > 1)


@quotes_call("sweep_sizes")
def sweep_sizes(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from ``least`` in steps of a factor, up to ``most`` or just below."""
    if not 1 <= least <= most <= MAX_BYTES or factor < 2:
        summary = f"there are no sizes from {least} to {most} bytes by a factor of {factor}."
        rule = f"The least is 1 or more, the most {MAX_BYTES} or less, and the factor 2 or more."
        raise SpecError(summary, rule, fix="for example sweep_sizes(1024, 65536, 4).")
    series = []
    while least <= most:
        series.append(least)
        least *= factor
    return tuple(series)


def default_targets(layout: Layout) -> tuple[Target, ...]:
    """Return each axis of several ranks, each two, the world, and each two that overlap."""
    axes = tuple(axis for axis in layout.axes if layout.size(axis) > 1)
    two = list(combinations(axes, 2))
    sets = dict.fromkeys([*((axis,) for axis in axes), *two, *([axes] if axes else [])])
    overlapping = [Target(((a,), (b,))) for a, b in two if not {a, b} <= SEQUENTIAL]
    return (*(Target((axes,)) for axes in sets), *overlapping)


def parse_targets(layout: Layout, names: Sequence[str]) -> tuple[Target, ...]:
    """Return targets from their names, each once: sp+dp is dp+sp, world is all axes."""
    targets: dict[tuple[Axes, ...], Target] = {}
    for name in names:
        text = name
        if name.strip() == WORLD and WORLD not in layout.axes:
            text = " ".join([a for a in layout.axes if layout.size(a) > 1] or layout.axes)
        target = Target(tuple(parse_axes(part) for part in text.split("+")))
        check_axes_exist(target.span, layout.axes)
        if not all(target.groups) or len(target.groups) > 2:
            summary = f"{name!r} is not a target: axes, or two sets of axes joined by '+'."
            fix = "axes such as dp, 'dp sp' for groups over both, or dp+sp for both at once."
            raise SpecError(summary, fix=fix)
        for axes in target.groups:
            if layout.size(*axes) == 1:
                summary = f"a group over {' '.join(axes)} has 1 rank, so no data moves in it."
                several = [axis for axis in layout.axes if layout.size(axis) > 1]
                fix = f"axes of 2 ranks or more: {', '.join(several)}."
                raise SpecError(summary, fix=fix if several else "a mesh of 2 ranks or more.")
        targets.setdefault(tuple(sorted(target.groups)), target)
    return tuple(targets.values())


def plan_cases(
    layout: Layout, operations: Sequence[str], targets: Sequence[Target], sizes: Sequence[int]
) -> list[Case]:
    """Return all cases, with sizes rounded down so that every group divides them."""
    step = ITEM_BYTES * layout.num_ranks
    divisible = dict.fromkeys(max(size // step, 1) * step for size in sizes)
    return [Case(op, target, size) for op in operations for target in targets for size in divisible]


def modes(layout: Layout, target: Target) -> tuple[str, ...]:
    """Return the modes in which a target is measured; a single group is always alone."""
    if len(target.groups) > 1:
        return (OVERLAP,)
    return (ALONE,) if layout.size(*target.span) == layout.num_ranks else (ALONE, CONCURRENT)


def sample_groups(num_groups: int, max_alone: int | None) -> list[int]:
    """Return the indices of the groups to measure alone, with the first and the last one."""
    size = num_groups if max_alone is None else min(num_groups, max_alone)
    return [i * (num_groups - 1) // max(size - 1, 1) for i in range(size)]


def total_passes(layout: Layout, cases: Sequence[Case], max_alone: int | None) -> int:
    """Return the passes of a run, each with all groups at once or one group alone."""
    passes = 0
    for case in cases:
        num_groups = layout.num_ranks // layout.size(*case.target.span)
        alone = len(sample_groups(num_groups, max_alone))
        passes += sum(alone if mode == ALONE else 1 for mode in modes(layout, case.target))
    return passes


def split_calls(iters: int) -> list[int]:
    """Return the timed calls of each round, ``MIN_CALLS`` or more."""
    rounds = min(MAX_ROUNDS, max(1, iters // MIN_CALLS))
    return [iters // rounds + (number < iters % rounds) for number in range(rounds)]


def num_barriers(
    layout: Layout,
    cases: Sequence[Case],
    max_alone: int | None,
    rounds: int = 1,
    *,
    overlap_compute: bool = False,
) -> int:
    """Return how often ranks wait for each other, each time one timeout at most.

    ::

        per run             6: to join, to build the mesh, to compare requests, to learn the
                            hosts, to connect, and to decide on more rounds
        per case            5: the barrier, the checked call and the next, their two exchanges
        per pass and round  the barrier and MIN_CALLS calls; more are made only if all of them
                            fit into a quarter of the timeout
        per mode and round  1: the exchange of its times
        beside a product    per operation and target: the exchange for each side, and per round
                            one, and the barrier and 1 + MIN_CALLS calls of each of three
    """
    exchanges = sum(len(modes(layout, case.target)) for case in cases)
    passes = (1 + MIN_CALLS) * total_passes(layout, cases, max_alone)
    targets = {(case.op, case.target) for case in cases if len(case.target.groups) == 1}
    beside = len(PRODUCT_SIDES) + COMPUTE_ROUNDS * (1 + 3 * (2 + MIN_CALLS))
    more = beside * len(targets) if overlap_compute else 0
    return 6 + 5 * len(cases) + rounds * (passes + exchanges) + more


def rounds_by_group(layout: Layout, rounds: Mapping[Case, Rounds]) -> list[Rounds]:
    """Return the rounds of each case, (num_groups, calls), from those of the ranks by position."""
    return [
        [slowest_of_groups(layout, case.target.span, seconds) for seconds in of_case]
        for case, of_case in rounds.items()
    ]


def summarize_target(
    layout: Layout, mode: str, rounds: Mapping[Case, Rounds], wrong: Mapping[Case, int]
) -> list[Measurement]:
    """Return the measurement of each case of a target, from the time of each call on each rank.

    Each round is (num_ranks, calls), nan if the group of the rank was skipped. A call takes as
    long as on the slowest rank of its group; median and p99 are those of all groups and calls.
    """
    by_group, rows = rounds_by_group(layout, rounds), []
    for case, slowest, judged in zip(rounds, by_group, judge_groups(by_group), strict=True):
        all_calls = np.hstack(slowest)  # (num_groups, calls)
        times = np.sort(all_calls[~np.isnan(all_calls)], axis=None)
        rows.append(
            Measurement(
                case,
                mode,
                tuple(layout.size(*axes) for axes in case.target.groups),
                wrong[case],
                all_calls.shape[1],
                len(slowest),
                float(np.median(times)),
                float(times[-(-99 * len(times) // 100) - 1]),
                len(all_calls),
                judged,
            )
        )
    return rows


def is_at_once(mode: str, num_groups: int) -> bool:
    """Return whether all groups of a target run at once; a single one always does."""
    return mode != ALONE or num_groups == 1


def slowest_of_groups(layout: Layout, axes: Axes, seconds: Seconds) -> Seconds:
    """Return (num_groups, calls) from (num_ranks, calls) by position: the slowest rank of each."""
    groups = layout.groups(*axes)  # (num_groups, group_size)
    position = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    positions = np.array([[position[int(rank)] for rank in group] for group in groups])
    return np.asarray(seconds[positions].max(axis=1))


def slowdowns(measurements: Sequence[Measurement]) -> list[float | None]:
    """Return the slowdown under contention: concurrent median over the isolated one.

    ``concurrent`` is compared with ``alone``. ``overlap`` is compared with the slower of its two
    axes, each with all its groups at once: 1 means no cost, and 2 means one after the other if both
    take equally long. None if there is nothing to compare with.
    """
    medians = {
        (row.case.op, row.case.target.groups, row.case.bytes, row.mode): row.median
        for row in measurements
    }

    def slowdown(row: Measurement) -> float | None:
        if row.mode == ALONE:
            return None
        bases = []
        for axes in row.case.target.groups:
            key = row.case.op, (axes,), row.case.bytes
            alone = medians.get((*key, ALONE))
            bases.append(medians.get((*key, CONCURRENT), alone) if row.mode == OVERLAP else alone)
        known = [seconds for seconds in bases if seconds is not None]
        return row.median / max(known) if len(known) == len(bases) else None

    return [slowdown(row) for row in measurements]
