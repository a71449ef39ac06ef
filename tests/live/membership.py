"""The members of process groups, as collectives over these groups show them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import meshkit


def all_reduce_members(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """Return the ranks that take part in an all-reduce over a group, in ascending order."""
    seen = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    seen[mesh.rank] = 1
    dist.all_reduce(seen, group=mesh.group(*axes))
    return [int(rank) for rank in seen.nonzero()]


def gather_members(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """Return the ranks of a group by their rank in the group."""
    group = mesh.group(*axes)
    ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(ranks, torch.tensor([mesh.rank]), group=group)
    return [int(rank) for rank in ranks]


def collect_members(mesh: meshkit.Mesh) -> dict[tuple[str, ...], Any]:
    """Return the members of the whole mesh and of each axis: by all-reduce, and by gather."""
    groups = [(), *((axis,) for axis in mesh.layout.axes)]
    return {axes: (all_reduce_members(mesh, *axes), gather_members(mesh, *axes)) for axes in groups}
