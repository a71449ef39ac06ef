"""What the ranks of test_overhead run. No pytest here: every child imports this."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from benchmarks import overhead


def measured_and_answered() -> Any:
    """What a rank measures in two repetitions, and what each side answers to each question."""
    asked = overhead.measure(2)
    sizes = overhead.SIZES
    with meshkit.build_mesh(sizes) as mesh:
        theirs = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
        questions = overhead.questions(mesh, theirs)
        answers = {
            names: tuple(plain(side()) for side in sides) for names, sides in questions.items()
        }
        dist.barrier()
    return asked, answers


def plain(answer: object) -> object:
    """A group as its members; anything else as it is."""
    return dist.get_process_group_ranks(answer) if isinstance(answer, dist.ProcessGroup) else answer
