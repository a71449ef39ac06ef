"""Collectives: each through ``mesh.group(axis)``, beside the same on a group that torch made.

``python -m benchmarks.collectives -n 8`` starts eight local ranks; under a launcher such as
torchrun, leave ``-n`` out. The mesh is dp=-1 tp=2. How fast each axis of any mesh is, says
``meshkit bench``. How a row comes about:

1. The call is made once on each group, and every element of the result is compared.
2. A repetition times some calls in a row on meshkit's group, asked for anew each time, and as many
   on torch's, after a barrier of all ranks each; which goes first alternates. All groups of an axis
   run at once, as in training. The barrier is on a group of its own, as on gloo a call is slower
   right after a barrier on the same group.
3. The first repetition of all rows comes before the second of any: where ranks share cores, a row
   measured in one go would report where the threads happened to be at that moment.
4. A repetition's time is that of the slowest rank of all. The ratio is taken repetition by
   repetition, then its median and quartiles.

A group of meshkit is a plain ``ProcessGroup``, so a ratio that stays away from 1 over several runs
is a bug. Where ranks share cores a single row scatters widely; the last one, of the geometric mean
over all, scatters less, and carries the goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

import meshkit
from meshkit.bench.collectives import PreparedCall, checked_call, timed_call, unsupported_reason
from meshkit.bench.collectives import run_calls as call
from meshkit.bench.results.collectives import ITEM_BYTES, OPERATIONS, divisible_size
from meshkit.bench.stopwatch import synchronize

from .jobs import even
from .rows import Goal, Row, compared, rows_table

RANKS = 4
CALLS = {4 * 1024: 50, 1024 * 1024: 5}  # bytes of the total array: how many calls in a row
WARM_UP = 1  # repetitions that are not counted
PEER, UNIT = "torch new_group", "s"
ALL = "collectives over mesh.group, geometric mean"
WITHIN_NOISE = Goal("low", "<=", 1)


@dataclass(frozen=True)
class Pair:
    """One collective over one axis, on two groups of the same ranks: meshkit's, and torch's own.

    Attributes:
        op: one of ``OPERATIONS``.
        axis: of the mesh.
        members: what torch's group was made of, computed without meshkit.
        size: bytes of the total array.
        groups: what hands out the two groups.
    """

    op: str
    axis: str
    members: tuple[int, ...]
    size: int
    groups: tuple[Callable[[], dist.ProcessGroup], Callable[[], dist.ProcessGroup]]

    def __str__(self) -> str:
        return f"{self.op} of {self.size // 1024} KiB over {self.axis}"

    def on(
        self, make: Callable[..., PreparedCall], which: int, device: torch.device
    ) -> PreparedCall:
        """The call on one of the groups."""
        items = divisible_size(self.size, len(self.members)) // ITEM_BYTES
        return make(self.op, self.members, items, self.groups[which](), device)


def run(quick: bool) -> list[Row]:
    """A row for each operation, axis and size, then one for all."""
    return meshkit.spawn(measure, RANKS, (3 if quick else 25,), timeout=600)[0]


def measure(repeats: int) -> list[Row]:
    """Check, then time; the rows, the same on every rank. Collective.

    Raises:
        RuntimeError: where an element was wrong, on either group.
    """
    device = meshkit.init().device or torch.device("cpu")
    with meshkit.build_mesh(tp=2) as mesh, paired(mesh) as pairs, torch_group() as gate:
        return rows_of(pairs, repeats, device, gate)


def rows_of(
    pairs: Sequence[Pair], repeats: int, device: torch.device, gate: dist.ProcessGroup
) -> list[Row]:
    """A row a pair, and one for all that the backend has. Collective."""
    ranks = gate.size()
    said = {pair: checked(pair, dist.get_rank(), device) for pair in pairs}
    able = [pair for pair in pairs if said[pair] is None]
    times = slowest(timed(able, repeats, device, gate), device, gate)
    figures = dict(zip(able, times.tolist(), strict=True))
    rows = [
        compared(str(pair), ranks, PEER, UNIT, figures[pair])
        if pair in figures
        else Row(str(pair), ranks, PEER, UNIT, lacks=lacks)
        for pair, lacks in said.items()
    ]
    return [*rows, mean_row(ranks, times)]


# --- the groups ----------------------------------------------------------------------------------


@contextmanager
def paired(mesh: meshkit.Mesh) -> Iterator[list[Pair]]:
    """Everything that is measured on this rank: operation, axis, size. Collective."""
    axes, shape = mesh.layout.axes, mesh.layout.shape
    raw = {axis: raw_group(axis_groups(shape, i), mesh.rank) for i, axis in enumerate(axes)}
    pairs = [
        pair(mesh, op, axis, size, *raw[axis])
        for op in OPERATIONS
        for axis in axes
        for size in CALLS
    ]
    try:
        yield pairs
    finally:
        for group, _ in raw.values():
            dist.destroy_process_group(group)


def pair(
    mesh: meshkit.Mesh,
    op: str,
    axis: str,
    size: int,
    raw: dist.ProcessGroup,
    members: tuple[int, ...],
) -> Pair:
    """One of them: meshkit's group is asked for anew at each call."""
    return Pair(op, axis, members, size, (lambda: mesh.group(axis), lambda: raw))


def axis_groups(shape: Sequence[int], axis: int) -> list[list[int]]:
    """The groups of one axis of a row-major grid, by numpy alone, (num_groups, group_size)."""
    grid = np.arange(np.prod(shape)).reshape(shape)
    return np.moveaxis(grid, axis, -1).reshape(-1, shape[axis]).tolist()


def raw_group(groups: list[list[int]], rank: int) -> tuple[dist.ProcessGroup, tuple[int, ...]]:
    """This rank's of some groups that torch makes, and its members. Collective."""
    made = [dist.new_group(ranks) for ranks in groups]  # every rank takes part in all of them
    mine = next(i for i, ranks in enumerate(groups) if rank in ranks)
    return made[mine], tuple(groups[mine])


@contextmanager
def torch_group() -> Iterator[dist.ProcessGroup]:
    """A group of all ranks, on which nothing is measured. Collective."""
    group = dist.new_group()
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


# --- the calls -----------------------------------------------------------------------------------


def checked(pair: Pair, rank: int, device: torch.device) -> str | None:
    """What the backend says where it has no such operation. Collective.

    Raises:
        RuntimeError: on every rank, where a result was wrong on one of them.
    """
    wrong = []
    for which in (0, 1):
        ready = pair.on(checked_call, which, device)
        try:
            call([ready])
        except RuntimeError as error:
            return unsupported_reason(error)
        wrong.append(ready.num_wrong(rank))
    found = torch.tensor(wrong, device=device)
    dist.all_reduce(found)
    if found.any():
        told = " and ".join(map(str, found.tolist()))
        raise RuntimeError(f"{pair}: {told} wrong elements by meshkit's group and torch's")
    return None


def timed(
    pairs: Sequence[Pair], repeats: int, device: torch.device, gate: dist.ProcessGroup
) -> torch.Tensor:
    """Seconds of one call on this rank: (pairs, 2, repeats), meshkit's and torch's. Collective."""
    times = torch.zeros(len(pairs), 2, WARM_UP + repeats, dtype=torch.float64)
    for repeat in range(WARM_UP + repeats):
        order = (0, 1) if repeat % 2 == 0 else (1, 0)
        for pair, row in zip(pairs, times, strict=True):
            for which in order:
                row[which, repeat] = seconds(pair, which, device, gate)
    return times[:, :, WARM_UP:]


def seconds(pair: Pair, which: int, device: torch.device, gate: dist.ProcessGroup) -> float:
    """Seconds of one call, from several in a row that all ranks begin together. Collective."""
    ready, group, calls = pair.on(timed_call, which, device), pair.groups[which], CALLS[pair.size]
    call([ready])  # touches the memory
    dist.barrier(gate, device_ids=None if device.index is None else [device.index])
    synchronize(device)
    began = time.perf_counter()
    for _ in range(calls):
        call([replace(ready, group=group())])
    synchronize(device)
    return (time.perf_counter() - began) / calls


def slowest(times: torch.Tensor, device: torch.device, gate: dist.ProcessGroup) -> torch.Tensor:
    """Elementwise the largest of all ranks' times. Collective."""
    largest = times.to(device, copy=True)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=gate)
    return largest.cpu()


def mean_row(ranks: int, times: torch.Tensor) -> Row:
    """The row of all: the geometric mean over pairs, so that each weighs the same."""
    ours, theirs = times.log().mean(dim=0).exp().tolist()
    return compared(ALL, ranks, PEER, UNIT, (ours, theirs), WITHIN_NOISE)


# --- by itself -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks.collectives", description=about)
    options.add_argument("-n", type=even, help=f"local ranks to start (default {RANKS})")
    asked = options.parse_args(arguments)
    launched = meshkit.detect().launcher != "single"
    if launched and asked.n:
        options.error("-n starts local ranks, but a launcher has started this one already")
    rows = measure(25) if launched else meshkit.spawn(measure, asked.n or RANKS, (25,))[0]
    first = not launched or dist.get_rank() == 0
    meshkit.shutdown()
    if first:
        print(rows_table(rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
