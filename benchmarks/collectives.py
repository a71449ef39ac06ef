"""Collectives: each over ``mesh.group(axis)``, beside the same on a group that torch created.

The job has 4 ranks and the mesh dp=2 tp=2. The row is the geometric mean over all operations, axes
and sizes. First each rank makes every call once on each group and compares every element.

A repetition times several calls in a row on meshkit's group, looked up anew each time, and as many
on torch's. Each begins after a barrier on a third group: a gloo call is slower after a barrier on
its own group. The first repetition of all calls comes before the second of any, since threads that
share cores disturb a call for a stretch of time. The time is that of the slowest rank.

A group of meshkit is a plain ``ProcessGroup``. A ratio that stays away from 1 over several runs is
a bug.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

import meshkit
from meshkit.bench.calls import PreparedCall, prepare_call
from meshkit.bench.calls import run_calls as call
from meshkit.bench.results import OPERATIONS

from .harness import Goal, Row, compare, turn
from .maps import numpy_groups

RANKS = 4
CALLS = {4 * 1024: 50, 1024 * 1024: 5}  # bytes of the whole array -> calls in a row
WITHIN_NOISE = Goal("low", "<=", 1)


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
    return [meshkit.spawn(measure, RANKS, (3 if quick else 25,), timeout=600)[0]]


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
