"""Overhead: both sides of a row give the same answer."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from benchmarks import overhead


def measure_and_answer() -> Any:
    """Return the times of this rank, and the answers of each side to each question."""
    times, sizes = overhead.measure(2), overhead.SIZES
    with meshkit.build_mesh(sizes) as mesh:
        theirs = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
        pairs = overhead.questions(mesh, theirs)
        answers = {names: tuple(plain(side()) for side in sides) for names, sides in pairs.items()}
        dist.barrier()
    return times, answers


def plain(answer: object) -> object:
    """Return the members of a group; anything else as it is."""
    return dist.get_process_group_ranks(answer) if isinstance(answer, dist.ProcessGroup) else answer


def test_questions_on_four_ranks() -> None:
    results = meshkit.spawn(measure_and_answer, overhead.RANKS, timeout=120)
    for rank, (times, answers) in enumerate(results):
        assert len(times) == (6 if rank == 0 else 0)
        assert all(len(side) == 2 for figures in times.values() for side in figures)
        dp, tp = divmod(rank, 2)
        neighbor = (1 - dp) * 2 + tp
        members = sorted([rank, neighbor])
        assert answers == {
            ("mesh.group", "get_group"): (members, members),
            ("mesh.coordinate", "get_coordinate"): ({"dp": dp, "tp": tp}, (dp, tp)),
            ("mesh.coordinate", "get_coordinate, named"): ({"dp": dp, "tp": tp},) * 2,
            ("mesh.coordinate[axis]", "get_local_rank"): (dp, dp),
            ("mesh.neighbor", "get_local_rank"): (neighbor, dp),
            ("mesh.neighbor", "the same by hand"): (neighbor, neighbor),
        }
