"""Overhead: the questions that a rank asks at every step, beside those that ``DeviceMesh`` answers.

Rank 0 measures while the others are idle.
"""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit

from .harness import Figures, Goal, Row, Work, compare, time_in_turns

RANKS, SIZES = 4, {"dp": 2, "tp": 2}
FASTER = Goal("ratio", "<=", 1)


def run(quick: bool) -> list[Row]:
    """Return a row for each question."""
    times = meshkit.spawn(measure, RANKS, (5 if quick else 25,))[0]
    return [
        compare(ours, RANKS, theirs, "s", figures, FASTER)
        for (ours, theirs), figures in times.items()
    ]


def measure(repeats: int) -> dict[tuple[str, str], Figures]:
    """Time all questions on rank 0; the other ranks return nothing. Collective."""
    with meshkit.build_mesh(SIZES) as mesh:
        theirs = init_device_mesh("cpu", (*SIZES.values(),), mesh_dim_names=(*SIZES,))
        pairs = questions(mesh, theirs) if mesh.rank == 0 else {}
        times = {names: time_in_turns(*sides, repeats) for names, sides in pairs.items()}
        dist.barrier()
        return times


def questions(mesh: meshkit.Mesh, theirs: DeviceMesh) -> dict[tuple[str, str], tuple[Work, Work]]:
    """Return the names and the calls of both sides.

    ``get_coordinate`` returns the tuple that it keeps. ``mesh.coordinate`` returns a new dict, so
    it is compared with a dict made of that tuple too. ``DeviceMesh`` has no call for a neighbor, so
    ``mesh.neighbor`` is compared with the same by hand, and with ``get_local_rank``.
    """

    def named() -> dict[str, int]:
        return dict(zip(theirs.mesh_dim_names or (), theirs.get_coordinate() or (), strict=True))

    def next_rank() -> int:
        ranks = dist.get_process_group_ranks(theirs.get_group("dp"))
        return ranks[(theirs.get_local_rank("dp") + 1) % len(ranks)]

    rank, neighbor = partial(theirs.get_local_rank, "dp"), partial(mesh.neighbor, "dp")
    return {
        ("mesh.group", "get_group"): (lambda: mesh.group("dp"), lambda: theirs.get_group("dp")),
        ("mesh.coordinate", "get_coordinate"): (lambda: mesh.coordinate, theirs.get_coordinate),
        ("mesh.coordinate", "get_coordinate, named"): (lambda: mesh.coordinate, named),
        ("mesh.coordinate[axis]", "get_local_rank"): (lambda: mesh.coordinate["dp"], rank),
        ("mesh.neighbor", "get_local_rank"): (neighbor, rank),
        ("mesh.neighbor", "the same by hand"): (neighbor, next_rank),
    }
