"""The members of process groups, as collectives over these groups show them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import meshkit


def members_of(group: dist.ProcessGroup) -> list[int]:
    """Return the ranks that an all-reduce of one-hot vectors reaches, in ascending order."""
    seen = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    seen[dist.get_rank()] = 1
    dist.all_reduce(seen, group=group)
    return [int(rank) for rank in seen.nonzero()]


def gather_ranks(group: dist.ProcessGroup) -> list[int]:
    """Return the ranks of a group by their rank in the group."""
    ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(ranks, torch.tensor([dist.get_rank()]), group=group)
    return [int(rank) for rank in ranks]


def all_reduce_members(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """Return the ranks that take part in an all-reduce over a group, in ascending order."""
    return members_of(mesh.group(*axes))


def gather_members(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """Return the ranks of a group by their rank in the group."""
    return gather_ranks(mesh.group(*axes))


def collect_members(mesh: meshkit.Mesh) -> dict[tuple[str, ...], Any]:
    """Return the members of the whole mesh and of each axis: by all-reduce, and by gather."""
    groups = [(), *((axis,) for axis in mesh.layout.axes)]
    return {axes: (all_reduce_members(mesh, *axes), gather_members(mesh, *axes)) for axes in groups}
