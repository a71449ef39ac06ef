"""Collectives: each over ``mesh.group(axis)``, beside the same on a group that torch created.

The job has 4 ranks on the host and the mesh dp=2 tp=2. The row is the geometric mean over all
operations, axes and sizes. It comes about in four steps:

1. Each rank makes the call once on each group and compares every element of the result.
2. A repetition times several calls in a row on meshkit's group, looked up anew each time, and as
   many on torch's. Both follow a barrier of all ranks. All groups of an axis run at once, as in
   training. The barrier has a group of its own: a gloo call is slower after a barrier on its group.
3. The first repetition of all calls comes before the second of any. If ranks share cores, a call
   that is measured at one stretch shows the threads' positions at that moment.
4. The time of a repetition is that of the slowest rank.

A group of meshkit is a plain ``ProcessGroup``. A ratio that stays away from 1 over several runs is a
bug. ``meshkit bench`` measures the speed of each axis of any mesh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

import meshkit
from meshkit.bench.calls import Prepared, checkable, lacking, prepared
from meshkit.bench.calls import run as call
from meshkit.core.operations import OPERATIONS

from .harness import Goal, Row, compare, turn

RANKS = 4
CALLS = {4 * 1024: 50, 1024 * 1024: 5}  # bytes of the whole array -> calls in a row
WARM_UP = 1  # repetitions that do not count
WITHIN_NOISE = Goal("low", "<=", 1)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pair:
    """One collective over one axis, on two groups of the same ranks: meshkit's and torch's.

    Attributes:
        op: a key of ``OPERATIONS``.
        axis: of the mesh.
        members: ranks of torch's group, computed without meshkit.
        size: bytes of the whole array.
        groups: functions that return the two groups.
    """

    op: str
    axis: str
    members: tuple[int, ...]
    size: int
    groups: tuple[Callable[[], dist.ProcessGroup], Callable[[], dist.ProcessGroup]]

    def __str__(self) -> str:
        return f"{self.op} of {self.size // 1024} KiB over {self.axis}"

    def prepare(self, make: Callable[..., Prepared], side: int) -> Prepared:
        """Return the call on one of the groups, with its float32 tensors."""
        return make(self.op, self.members, self.size // 4, self.groups[side](), CPU)


def run(quick: bool) -> list[Row]:
    """Return the row of all collectives together."""
    return [meshkit.spawn(measure, RANKS, (3 if quick else 25,), timeout=600)[0]]


def measure(repeats: int) -> Row:
    """Check every call, then time it; return the row, the same on every rank. Collective.

    Raises:
        RuntimeError: if an element of a result is wrong, on either group.
    """
    meshkit.init(device="cpu")
    with meshkit.build_mesh(tp=2) as mesh, pairs_of(mesh) as pairs:
        barrier_group = dist.new_group()
        rank = dist.get_rank()
        supported = [pair for pair in pairs if check(pair, rank)]
        times = slowest(time_pairs(supported, repeats, barrier_group), barrier_group)
        dist.destroy_process_group(barrier_group)
    return mean_row(times)


def mean_row(times: torch.Tensor) -> Row:
    """Return the row of the geometric mean over pairs, which weighs each pair the same.

    Args:
        times: seconds, (pairs, 2, repeats).
    """
    ours, theirs = times.log().mean(dim=0).exp().tolist()
    what = "collectives over mesh.group, geometric mean"
    return compare(what, RANKS, "torch new_group", "s", (ours, theirs), WITHIN_NOISE)


# --- groups --------------------------------------------------------------------------------------


@contextmanager
def pairs_of(mesh: meshkit.Mesh) -> Iterator[list[Pair]]:
    """Create torch's groups, and yield every pair of this rank. Collective."""
    axes, shape = mesh.layout.axes, mesh.layout.shape
    raw = {axis: raw_group(axis_groups(shape, i), mesh.rank) for i, axis in enumerate(axes)}

    def pair(op: str, axis: str, size: int) -> Pair:
        group, members = raw[axis]
        return Pair(op, axis, members, size, (lambda: mesh.group(axis), lambda: group))

    try:
        yield [pair(op, axis, size) for op in OPERATIONS for axis in axes for size in CALLS]
    finally:
        for group, _ in raw.values():
            dist.destroy_process_group(group)


def axis_groups(shape: Sequence[int], axis: int) -> list[list[int]]:
    """Return the groups of one axis of a row-major grid, by numpy alone, (num_groups, size)."""
    grid = np.arange(np.prod(shape)).reshape(shape)
    return np.moveaxis(grid, axis, -1).reshape(-1, shape[axis]).tolist()


def raw_group(groups: list[list[int]], rank: int) -> tuple[dist.ProcessGroup, tuple[int, ...]]:
    """Create groups by torch, and return this rank's with its members. Collective."""
    created = [dist.new_group(ranks) for ranks in groups]  # every rank takes part in all of them
    index = next(i for i, ranks in enumerate(groups) if rank in ranks)
    return created[index], tuple(groups[index])


# --- calls ---------------------------------------------------------------------------------------


def check(pair: Pair, rank: int) -> bool:
    """Return whether the backend supports the operation. Collective.

    Raises:
        RuntimeError: on every rank, if a result is wrong on one of them.
    """
    wrong = []
    for side in (0, 1):
        ready = pair.prepare(checkable, side)
        try:
            call([ready])
        except RuntimeError as error:
            lacking(error)  # raises any other error
            return False
        wrong.append(ready.wrong(rank))
    counts = torch.tensor(wrong)
    dist.all_reduce(counts)
    if counts.any():
        numbers = " and ".join(map(str, counts.tolist()))
        raise RuntimeError(f"{pair}: {numbers} wrong elements on meshkit's group and torch's")
    return True


def time_pairs(
    pairs: Sequence[Pair], repeats: int, barrier_group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the seconds of one call on this rank, (pairs, 2, repeats). Collective."""
    times = torch.zeros(len(pairs), 2, WARM_UP + repeats, dtype=torch.float64)
    for repeat in range(WARM_UP + repeats):
        for pair, row in zip(pairs, times, strict=True):
            for side in turn(repeat):
                row[side, repeat] = seconds(pair, side, barrier_group)
    return times[:, :, WARM_UP:]


def seconds(pair: Pair, side: int, barrier_group: dist.ProcessGroup) -> float:
    """Return the seconds of one call, from several that all ranks begin together. Collective."""
    ready, group, calls = pair.prepare(prepared, side), pair.groups[side], CALLS[pair.size]
    call([ready])  # touches the memory
    dist.barrier(barrier_group)
    began = time.perf_counter()
    for _ in range(calls):
        call([replace(ready, group=group())])
    return (time.perf_counter() - began) / calls


def slowest(times: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the largest time over ranks, element by element. Collective."""
    largest = times.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest
