"""A default group that splits, played on gloo: what the ranks of test_split run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.live import create


class Splitting:
    """torch.distributed as it is where the default group is NCCL's, bound to a device.

    Each split is played by new_group, part after part, and recorded.
    """

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []
        self.descriptions: list[str] = []
        self.timeouts: list[timedelta | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def get_backend(self, group: Any = None) -> str:
        return "nccl"

    def split_group(
        self, *, split_ranks: list[list[int]], timeout: timedelta | None, group_desc: str
    ) -> dist.ProcessGroup | None:
        self.calls.append(split_ranks)
        self.descriptions.append(group_desc)
        self.timeouts.append(timeout)
        groups = [dist.new_group(ranks, timeout=timeout) for ranks in split_ranks]
        dist.barrier()  # gloo's groups, unlike NCCL's, must not be closed while a peer connects
        mine = [dist.get_rank() in ranks for ranks in split_ranks]
        return groups[mine.index(True)] if True in mine else None


def split(sizes: dict[str, int], options: dict[str, Any]) -> Any:
    """Build a mesh on a default group that splits; what was split, and what the groups meet."""
    meshkit.init(timeout=60)
    played = Splitting()
    create.dist = played
    create._bound = lambda: "cuda:0"
    with meshkit.build_mesh(sizes, **options) as mesh:
        inside = mesh.rank in mesh.layout
        sums = {axis: met(mesh.group(axis)) for axis in sizes} if inside else {}
        ranks = {axis: mesh.peers(axis).tolist() for axis in sizes} if inside else {}
    return played.calls, played.descriptions, played.timeouts, sums, ranks


def met(group: dist.ProcessGroup) -> list[int]:
    """Which ranks a gather over a group finds, in its order."""
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(found, torch.tensor([dist.get_rank()]), group=group)
    return [int(rank) for rank in found]
