"""Collectives over the axes of a mesh, beside the same calls on groups that torch made itself.

``python -m benchmarks.collectives -n 8`` starts eight local ranks; under a launcher such as
torchrun, leave ``-n`` out. Bandwidths follow nccl-tests' ``doc/PERFORMANCE.md``, see
:mod:`meshkit.core.bandwidth`. How a row comes about:

1. The call is made once on each group, and every element of the result is compared.
2. A repetition times a few calls in a row on meshkit's group and as many on torch's, after a
   barrier of all ranks each, on a group of its own; which goes first alternates. All groups of an
   axis run at once, as in training; the row is that of rank 0's group.
3. The first repetition of all rows comes before the second of any: where ranks share cores, a row
   measured in one go would report where the threads happened to be at that moment.
4. A repetition's time is that of the slowest rank of the group. The ratio is taken repetition by
   repetition, then its median and quartiles.

A group of meshkit is a plain ``ProcessGroup``, so a ratio that stays away from 1 over several runs
is a bug. Where ranks share cores, a single row scatters widely; the line under the table, over all
rows, scatters less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import meshkit
from meshkit.core.bandwidth import fitted, sweep_sizes
from meshkit.core.operations import OPERATIONS

from .measure import CALLS, Bench, Case, Pair
from .table import Report, table

AXES = ("pp", "dp", "ep", "cp", "sp", "tp")
RANKS = 8  # started where neither -n nor a launcher says how many


@dataclass(frozen=True)
class Sweep:
    """What to measure: a mesh, the sizes in bytes, and how many repetitions."""

    axes: dict[str, int]
    sizes: tuple[int, ...]
    repeats: int


def default_sizes(world_size: int) -> dict[str, int]:
    """A mesh with as many axes as there is room for: dp is left to be inferred.

    Example:
        >>> default_sizes(8), default_sizes(12), default_sizes(6)
        ({'sp': 2, 'tp': 2}, {'sp': 2}, {})
    """
    pairs = (("sp", 4), ("tp", 8))
    return {axis: 2 for axis, ranks in pairs if world_size % ranks == 0}


def axis_groups(shape: Sequence[int], axis: int) -> list[list[int]]:
    """The groups of one axis of a row-major grid, by numpy alone, (num_groups, group_size)."""
    grid = np.arange(np.prod(shape)).reshape(shape)
    return np.moveaxis(grid, axis, -1).reshape(-1, shape[axis]).tolist()


@contextmanager
def paired(mesh: meshkit.Mesh) -> Iterator[list[Pair]]:
    """Each axis's group beside one that torch makes of the same ranks. Collective."""
    layout = mesh.layout
    pairs = [_pair(mesh, axis, axis_groups(layout.shape, i)) for i, axis in enumerate(layout.axes)]
    try:
        yield pairs
    finally:
        for pair in pairs:
            dist.destroy_process_group(pair.raw)


def _pair(mesh: meshkit.Mesh, axis: str, groups: list[list[int]]) -> Pair:
    """One axis's pair, of which torch's group is among ``groups``, (num_groups, group_size)."""
    made = [dist.new_group(ranks) for ranks in groups]  # every rank takes part in all of them
    mine = next(i for i, ranks in enumerate(groups) if mesh.rank in ranks)
    return Pair(axis, groups[mine], mesh.group(axis), made[mine])


@contextmanager
def gated() -> Iterator[dist.ProcessGroup]:
    """A group of all ranks, on which nothing is measured. Collective."""
    gate = dist.new_group()
    try:
        yield gate
    finally:
        dist.destroy_process_group(gate)


def cases(pairs: Sequence[Pair], sizes: Sequence[int]) -> list[Case]:
    """All that is measured: operation by operation, axis by axis, size by size."""
    return [
        Case(op, pair, fitted(size, len(pair.members)))
        for op in OPERATIONS
        for pair in pairs
        for size in sizes
    ]


def run(sweep: Sweep) -> Report | None:
    """Measure all of it. Collective; the report is rank 0's, the others get None."""
    world = meshkit.init()
    device = world.device or torch.device("cpu")
    sizes = sweep.axes or default_sizes(world.world_size)
    with meshkit.build_mesh(sizes) as mesh, paired(mesh) as pairs, gated() as gate:
        rows = Bench(mesh, device, gate).rows(cases(pairs, sweep.sizes), sweep.repeats)
        mesh.barrier()
        about = (os.cpu_count() or 1, torch.__version__, str(world.backend), device.type)
        report = Report(*about, mesh.layout.sizes, sweep.repeats, CALLS, tuple(rows))
    return report if world.rank == 0 else None


def positive(text: str) -> int:
    """An option's value as a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The options."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks.collectives", description=about)
    options.add_argument("-n", type=positive, help=f"local ranks to start (default {RANKS})")
    for axis in AXES:
        options.add_argument(f"--{axis}", type=positive, metavar="SIZE", help=f"the axis {axis}")
    options.add_argument("--min-bytes", type=positive, default=1024, help="smallest array")
    options.add_argument("--max-bytes", type=positive, default=2**20, help="largest array")
    options.add_argument("--factor", type=positive, default=32, help="from one size to the next")
    options.add_argument("--repeats", type=positive, default=10, help="repetitions of each row")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the report here too")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 where a collective gave wrong elements, else 0."""
    options = parser()
    asked = options.parse_args(arguments)
    launched = meshkit.detect().launcher != "single"
    sweep = _sweep(options, asked, launched)
    report = run(sweep) if launched else meshkit.spawn(run, asked.n or RANKS, (sweep,))[0]
    meshkit.shutdown()
    if report is not None:
        print(table(report), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    return 1 if report is not None and report.wrong else 0


def _sweep(options: argparse.ArgumentParser, asked: argparse.Namespace, launched: bool) -> Sweep:
    """The options checked before any process is started."""
    axes = {axis: getattr(asked, axis) for axis in AXES if getattr(asked, axis)}
    if launched and asked.n:
        options.error("-n starts local ranks, but a launcher has started this one already")
    if asked.json and not asked.json.absolute().parent.is_dir():
        options.error(f"--json {asked.json}: no such folder")
    try:
        sizes = sweep_sizes(asked.min_bytes, asked.max_bytes, asked.factor)
        meshkit.factor_world(meshkit.detect().world_size if launched else asked.n or RANKS, **axes)
    except meshkit.MeshkitError as error:
        options.error(str(error))
    return Sweep(axes, sizes, asked.repeats)


if __name__ == "__main__":
    sys.exit(main())
