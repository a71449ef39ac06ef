"""What the ranks of test_collectives run. No pytest here: every child imports this."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import meshkit
from benchmarks import collectives


def measured() -> Any:
    """The rows, the members of both groups of each axis, if they are two, and who is slowest."""
    collectives.CALLS = dict.fromkeys(collectives.CALLS, 1)  # in this process alone
    rows = collectives.measure(1)
    with meshkit.build_mesh(tp=2) as mesh, collectives.paired(mesh) as pairs:
        groups = {
            (pair.axis, *pair.members): [dist.get_process_group_ranks(g()) for g in pair.groups]
            for pair in pairs
        }
        distinct = all(pair.groups[0]() is not pair.groups[1]() for pair in pairs)
        mine = torch.tensor([1.0 + mesh.rank, 9.0 - mesh.rank])
        slowest = collectives.slowest(mine, torch.device("cpu"), mesh.group()).tolist()
        dist.barrier()
    return rows, groups, distinct, slowest
