"""Overhead: what it costs to go through the mesh.

The questions a rank asks at each step, beside those that ``DeviceMesh`` answers: on one rank, the
others idle. A collective through ``mesh.group(axis)`` is measured in :mod:`benchmarks.collectives`,
and what agreement costs in ``build_mesh`` where a job starts, in :mod:`benchmarks.startup`.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit

from .clock import Times, Work, in_turns
from .rows import Goal, Row, compared

RANKS, SIZES = 4, {"dp": 2, "tp": 2}
FASTER = Goal("ratio", "<=", 1)


def run(quick: bool) -> list[Row]:
    """A row a question."""
    asked = meshkit.spawn(measure, RANKS, (5 if quick else 25,))[0]
    return [
        compared(ours, RANKS, theirs, "s", times, FASTER) for (ours, theirs), times in asked.items()
    ]


def measure(repeats: int) -> dict[tuple[str, str], Times]:
    """What rank 0 measures; the others answer nothing meanwhile. Collective."""
    with meshkit.build_mesh(SIZES) as mesh:
        theirs = init_device_mesh("cpu", (*SIZES.values(),), mesh_dim_names=(*SIZES,))
        asked = question_times(mesh, theirs, repeats) if mesh.rank == 0 else {}
        dist.barrier()
        return asked


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
