"""Collectives: each over ``mesh.group(axis)``, beside the same on a group that torch created.

The job has 4 ranks and the mesh dp=2 tp=2. The row is the geometric mean over all operations, axes
and sizes. First each rank makes every call once on each group and compares every element.

A repetition times several calls in a row on meshkit's group, looked up anew each time, and as many
on torch's. Each begins after a barrier on a third group: a gloo call is slower after a barrier on
its own group. The first repetition of all calls comes before the second of any, since threads that
share cores disturb a call for a stretch of time. The time is that of the slowest rank.

The second row is the figure of ``meshkit bench`` for two ranks, beside that of a plain loop around
``dist.all_reduce`` on the default group: sizes, rounds, calls and the median over the slowest ranks
are the same. Each repetition measures both, in turns. ``meshkit bench`` measures inside a guard,
which the loop does not have.

A group of meshkit is a plain ``ProcessGroup``. A ratio that stays away from 1 over several runs is
a bug.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median

import torch
import torch.distributed as dist

import meshkit
from meshkit.bench.calls import PreparedCall, prepare_call
from meshkit.bench.calls import run_calls as call
from meshkit.bench.measure import Sweep, SweepOptions
from meshkit.bench.results import (
    OPERATIONS,
    Case,
    parse_targets,
    plan_cases,
    split_calls,
)
from meshkit.launch.log import Progress

from .harness import Figures, Goal, Row, compare, turn
from .maps import numpy_groups

RANKS = 4
CALLS = {4 * 1024: 50, 1024 * 1024: 5}  # bytes of the whole array -> calls in a row
WITHIN_NOISE = Goal("low", "<=", 1)
EQUAL = Goal("ratio", "<=", 1.03)
BENCH_RANKS = 2  # of the second row: on a small machine, each has a core
BENCH_CALLS, WARM_UP = 200, 3  # timed calls of a size, and calls before those of its first round


@dataclass(frozen=True)
class Pair:
    """One collective over one axis, on two groups of the same ranks: meshkit's and torch's."""

    op: str
    axis: str
    size: int  # bytes of the whole array
    members: tuple[int, ...]  # computed without meshkit
    groups: tuple[Callable[[], dist.ProcessGroup], Callable[[], dist.ProcessGroup]]

    def prepare(self, side: int, *, checked: bool) -> PreparedCall:
        """Return the call on one of the groups, with its float32 tensors."""
        group = self.groups[side]()
        device = torch.device("cpu")
        return prepare_call(self.op, self.members, self.size // 4, group, device, checked=checked)


def run(quick: bool) -> list[Row]:
    """Return the row of all collectives together."""
    repeats = (3 if quick else 25,)
    return [
        meshkit.spawn(measure, RANKS, repeats, timeout=600)[0],
        meshkit.spawn(measure_bench, BENCH_RANKS, repeats, timeout=600)[0],
    ]


def measure_bench(repeats: int) -> Row:
    """Return the row of ``meshkit bench`` beside a plain loop, equal on every rank. Collective."""
    meshkit.init(device="cpu")
    figures: Figures = ([], [])
    with meshkit.build_mesh(dp=BENCH_RANKS) as mesh:
        targets = parse_targets(mesh.layout, ["dp"])
        cases = plan_cases(mesh.layout, ["all_reduce"], targets, [*CALLS])
        for repeat in range(1 + repeats):
            for side in turn(repeat):
                took = loop_microseconds(cases) if side else bench_microseconds(mesh, cases)
                figures[side].append(took)
    what = "all_reduce by meshkit bench, geometric mean of two sizes"
    measured = figures[0][1:], figures[1][1:]  # the first is a warm-up
    return compare(what, BENCH_RANKS, "a loop around dist.all_reduce", "us", measured, EQUAL)


def bench_microseconds(mesh: meshkit.Mesh, cases: Sequence[Case]) -> float:
    """Return the mean over the sizes of the median call as ``meshkit bench`` has it. Collective."""
    options = SweepOptions(WARM_UP, BENCH_CALLS, 60.0, max_alone=1)
    rows = Sweep(mesh, torch.device("cpu"), options, Progress("", None)).run(cases)
    return geometric_mean([row.median * 1e6 for row in rows])


def loop_microseconds(cases: Sequence[Case]) -> float:
    """Return the same of a plain loop. Collective."""
    rounds = split_calls(BENCH_CALLS)
    seconds: dict[int, list[float]] = {case.bytes: [] for case in cases}
    for number, calls in enumerate(rounds):
        for size, own in seconds.items():
            array, taken = torch.zeros(size // 4), []
            dist.all_gather([*torch.zeros(BENCH_RANKS, 1)], torch.zeros(1))
            for _ in range(1 if number else WARM_UP):
                dist.all_reduce(array)
            for _ in range(calls):
                began = time.perf_counter()
                dist.all_reduce(array)
                taken.append(time.perf_counter() - began)
            slowest = torch.tensor(taken, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            own += slowest.tolist()
    medians = [median(own) for own in seconds.values()]
    return geometric_mean([value * 1e6 for value in medians])


def measure(repeats: int) -> Row:
    """Check every call, then time it; return the row, the same on every rank. Collective.

    Raises:
        RuntimeError: if an element of a result is wrong, on either group.
    """
    meshkit.init(device="cpu")
    with meshkit.build_mesh(tp=2) as mesh:
        barrier_group = dist.new_group()
        supported = [pair for pair in pairs_of(mesh) if check(pair, mesh.rank)]
        times = time_pairs(supported, repeats, barrier_group)
        dist.all_reduce(times, dist.ReduceOp.MAX, group=barrier_group)
    return mean_row(times)


def mean_row(times: torch.Tensor) -> Row:
    """Return the row of the geometric mean over pairs, from seconds (pairs, 2, repeats)."""
    ours, theirs = times.log().mean(dim=0).exp().tolist()
    what = "collectives over mesh.group, geometric mean"
    return compare(what, RANKS, "torch new_group", "s", (ours, theirs), WITHIN_NOISE)


def pairs_of(mesh: meshkit.Mesh) -> list[Pair]:
    """Create torch's groups, and return every pair of this rank. Collective."""
    pairs = []
    for index, axis in enumerate(mesh.layout.axes):
        groups = numpy_groups(mesh.layout.sizes)()[index].tolist()
        created = [dist.new_group(ranks) for ranks in groups]  # every rank takes part in all
        own_index = next(i for i, ranks in enumerate(groups) if mesh.rank in ranks)
        sides = (lambda axis=axis: mesh.group(axis)), (lambda group=created[own_index]: group)
        members = tuple(groups[own_index])
        pairs += [Pair(op, axis, size, members, sides) for op in OPERATIONS for size in CALLS]
    return pairs


def check(pair: Pair, rank: int) -> bool:
    """Return whether the backend supports the operation. Collective.

    Raises:
        RuntimeError: if a result is wrong on this rank.
    """
    for side, owner in enumerate(("meshkit", "torch")):
        ready = pair.prepare(side, checked=True)
        try:
            call([ready])
        except RuntimeError as error:
            if not re.search("support|implement", str(error)):
                raise
            return False
        if wrong := ready.num_wrong(rank):
            raise RuntimeError(f"{pair.op} over {pair.axis}: {wrong} wrong elements by {owner}")
    return True


def time_pairs(pairs: list[Pair], repeats: int, barrier_group: dist.ProcessGroup) -> torch.Tensor:
    """Return the seconds of one call on this rank, (pairs, 2, repeats). Collective."""
    times = torch.zeros(len(pairs), 2, 1 + repeats, dtype=torch.float64)  # the first is a warm-up
    for repeat in range(1 + repeats):
        for pair, row in zip(pairs, times, strict=True):
            for side in turn(repeat):
                row[side, repeat] = seconds(pair, side, barrier_group)
    return times[:, :, 1:].contiguous()


def seconds(pair: Pair, side: int, barrier_group: dist.ProcessGroup) -> float:
    """Return the seconds of one call, from several that all ranks begin together. Collective."""
    ready, group, calls = pair.prepare(side, checked=False), pair.groups[side], CALLS[pair.size]
    call([ready])  # touches the memory
    dist.barrier(barrier_group)
    began = time.perf_counter()
    for _ in range(calls):
        call([replace(ready, group=group())])
    return (time.perf_counter() - began) / calls
