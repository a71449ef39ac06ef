"""Groups: how many process groups a rank holds for the same meshes, by meshkit and by torch.

Two sets: the views of the README on 8 ranks, and torchtitan's meshes on 16. Both sides hold groups
of the same members; torch makes one for each axis of each mesh, meshkit one for each list of
members. Counted is the rank that holds the most, the default group included.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from examples import torchtitan_meshes as torchtitan

from .rows import Goal, Row, compared

VIEWS = ({"dp": 4, "sp": 2, "tp": 1}, {"replicate": 2, "shard": 4}, {"efsdp": 2, "ep": 2, "tp": 2})
FEWER = Goal("ratio", "<=", 1)
DEVICE_MESH = "DeviceMesh"

Members = list[tuple[int, ...]]  # of each group of a rank


def run(quick: bool) -> list[Row]:
    """Both sets; ``quick`` counts the same."""
    readme = meshkit.spawn(readme_set, 8)
    titan = meshkit.spawn(torchtitan_set, 16, timeout=300)
    return [
        row("groups of a rank, the README's views", 8, readme),
        row("groups of a rank, torchtitan's meshes", 16, titan),
    ]


def row(what: str, ranks: int, held: list[tuple[Members, Members]]) -> Row:
    """The counts of the rank that holds the most.

    Raises:
        RuntimeError: where the two sides do not hold groups of the same members.
    """
    for rank, (ours, theirs) in enumerate(held):
        if set(ours) != set(theirs):
            raise RuntimeError(f"{what}: rank {rank} holds {ours} and {theirs}")
    counts = (max(len(ours) for ours, _ in held), max(len(theirs) for _, theirs in held))
    return compared(what, ranks, DEVICE_MESH, "groups", ([counts[0]], [counts[1]]), FEWER)


def readme_set() -> tuple[Members, Members]:
    """The README's mesh and its two views, by both. Collective."""
    first, *others = VIEWS
    with meshkit.build_mesh(first) as mesh:
        views = [mesh.view(sizes) for sizes in others]
        ours = [group.members for group in mesh.groups_report().groups]
        for view in views:
            view.close()
    made = [init_device_mesh("cpu", (*v.values(),), mesh_dim_names=(*v,)) for v in VIEWS]
    return ours, [members(group) for group in torchtitan.groups_of(made)]


def torchtitan_set() -> tuple[Members, Members]:
    """Torchtitan's meshes, by both. Collective."""
    loading, dense, sparse, *_ = torchtitan.meshes(**torchtitan.SIZES)
    ours = [group.members for group in loading.groups_report().groups]
    for mesh in (sparse, dense, loading):
        mesh.close()
    made = torchtitan.torchs(**torchtitan.SIZES)
    return ours, [members(group) for group in torchtitan.groups_of(made)]


def members(group: dist.ProcessGroup) -> tuple[int, ...]:
    """The global ranks of a group, in order."""
    return tuple(dist.get_process_group_ranks(group))
