"""Overhead: what it costs to go through the mesh.

A collective over ``mesh.group(axis)``, asked for anew each time, beside the same over a group that
torch made of the same ranks: the time of the slowest rank, all ranks at once. The questions a rank
asks at each step, beside those that ``DeviceMesh`` answers: on one rank, the others idle. What
agreement costs in ``build_mesh`` is measured where a job starts: see :mod:`benchmarks.startup`.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit

from .clock import Times, Work, in_turns
from .rows import Goal, Row, compared

RANKS, SIZES = 4, {"dp": 2, "tp": 2}
BYTES = (4 * 1024, 1024 * 1024)  # of an array of float32
CALLS = 50  # in a row
WITHIN_NOISE, FASTER = Goal("low", "<=", 1), Goal("ratio", "<=", 1)


def run(quick: bool) -> list[Row]:
    """Collectives, questions."""
    found = meshkit.spawn(measure, RANKS, (5 if quick else 25,))
    rows = [collective_row(size, [times[size] for times, _ in found]) for size in BYTES]
    return rows + [
        compared(ours, RANKS, theirs, "s", times, FASTER)
        for (ours, theirs), times in found[0][1].items()
    ]


def measure(repeats: int) -> tuple[dict[int, Times], dict[tuple[str, str], Times]]:
    """What one rank measures: its times of the collectives, and on rank 0 of the questions."""
    with meshkit.build_mesh(SIZES) as mesh:
        raw = raw_group(mesh.rank)
        if (held := dist.get_process_group_ranks(raw)) != mesh.peers("dp").tolist():
            raise RuntimeError(f"torch's group is {held}, meshkit's {mesh.peers('dp')}")
        collectives = {size: collective_times(mesh, raw, size, repeats) for size in BYTES}
        theirs = init_device_mesh("cpu", (*SIZES.values(),), mesh_dim_names=(*SIZES,))
        asked = question_times(mesh, theirs, repeats) if mesh.rank == 0 else {}
        dist.barrier()
        return collectives, asked


def raw_group(rank: int) -> dist.ProcessGroup:
    """This rank's group over dp by torch alone. Collective."""
    lists = np.arange(RANKS).reshape(*SIZES.values()).T.tolist()
    made: list[dist.ProcessGroup] = [dist.new_group(ranks) for ranks in lists]
    return next(group for group, ranks in zip(made, lists, strict=True) if rank in ranks)


# --- collectives ---------------------------------------------------------------------------------


def collective_times(mesh: meshkit.Mesh, raw: dist.ProcessGroup, size: int, repeats: int) -> Times:
    """Seconds of one all-reduce on this rank, in turns. Collective."""
    mine, other = torch.zeros(size // 4), torch.zeros(size // 4)
    sides: tuple[Work, Work] = (
        lambda: dist.all_reduce(mine, group=mesh.group("dp")),
        lambda: dist.all_reduce(other, group=raw),
    )
    times: Times = ([], [])
    for repeat in range(1 + repeats):
        for which in (0, 1) if repeat % 2 == 0 else (1, 0):
            times[which].append(after_barrier(sides[which]))
    return times[0][1:], times[1][1:]


def after_barrier(work: Work) -> float:
    """Seconds of one call, from several in a row that all ranks begin together. Collective."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(CALLS):
        work()
    return (time.perf_counter() - began) / CALLS


def collective_row(size: int, by_rank: list[Times]) -> Row:
    """The times of the slowest rank."""
    ours, theirs = np.max(by_rank, axis=0).tolist()
    what = f"all_reduce of {size // 1024} KiB over mesh.group"
    return compared(what, RANKS, "torch new_group", "s", (ours, theirs), WITHIN_NOISE)


# --- questions -----------------------------------------------------------------------------------


def question_times(
    mesh: meshkit.Mesh, theirs: DeviceMesh, repeats: int
) -> dict[tuple[str, str], Times]:
    """Ours and theirs to seconds of a call, on one rank alone."""
    pairs = questions(mesh, theirs)
    return {names: in_turns(ours, other, repeats) for names, (ours, other) in pairs.items()}


def questions(mesh: meshkit.Mesh, theirs: DeviceMesh) -> dict[tuple[str, str], tuple[Work, Work]]:
    """What is typed on either side, and the calls.

    ``get_coordinate`` hands out the tuple that it keeps; ``mesh.coordinate`` a dict by axis, new
    each time, so it is also set beside the dict made of that tuple. ``DeviceMesh`` has no question
    for a neighbour, which is set beside the way to it by hand, and beside ``get_local_rank``.
    """

    def named() -> dict[str, int]:
        return dict(zip(theirs.mesh_dim_names or (), theirs.get_coordinate() or (), strict=True))

    def next_rank() -> int:
        ranks = dist.get_process_group_ranks(theirs.get_group("dp"))
        return ranks[(theirs.get_local_rank("dp") + 1) % len(ranks)]

    pairs: dict[tuple[str, str], tuple[Work, Work]] = {
        ("mesh.group", "get_group"): (lambda: mesh.group("dp"), lambda: theirs.get_group("dp")),
        ("mesh.coordinate", "get_coordinate"): (lambda: mesh.coordinate, theirs.get_coordinate),
        ("mesh.coordinate", "get_coordinate, named"): (lambda: mesh.coordinate, named),
        ("mesh.coordinate[axis]", "get_local_rank"): (
            lambda: mesh.coordinate["dp"],
            lambda: theirs.get_local_rank("dp"),
        ),
        ("mesh.neighbor", "get_local_rank"): (
            lambda: mesh.neighbor("dp"),
            lambda: theirs.get_local_rank("dp"),
        ),
        ("mesh.neighbor", "the same by hand"): (lambda: mesh.neighbor("dp"), next_rank),
    }
    return pairs
