"""Groups: how many process groups a rank holds for the same meshes, with meshkit and with torch.

Torch makes one group for each axis of each mesh, meshkit one for each list of members. The count is
that of the rank that holds the most groups, the default group included.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit
from examples import torchtitan_meshes as torchtitan

from .harness import Goal, Row, compare

VIEWS = ({"dp": 4, "sp": 2, "tp": 1}, {"replicate": 2, "shard": 4}, {"efsdp": 2, "ep": 2, "tp": 2})
FEWER = Goal("ratio", "<=", 1)

Members = list[tuple[int, ...]]  # the global ranks of each group that a rank holds


def run(quick: bool) -> list[Row]:
    """Return a row for each set; ``quick`` changes nothing."""
    held = meshkit.spawn(view_groups, 8)
    titan = meshkit.spawn(torchtitan_groups, 16, timeout=300)
    return [
        count_row("groups of a rank, a mesh + two views", held),
        count_row("groups of a rank, torchtitan's meshes", titan),
    ]


def count_row(what: str, held: list[tuple[Members, Members]]) -> Row:
    """Return the counts of the rank that holds the most groups.

    Raises:
        RuntimeError: if the two sides of a rank do not hold groups of the same members.
    """
    for rank, (ours, theirs) in enumerate(held):
        if set(ours) != set(theirs):
            raise RuntimeError(f"{what}: rank {rank} holds {ours} and {theirs}")
    counts = [[float(max(map(len, side)))] for side in zip(*held, strict=True)]
    return compare(what, len(held), "DeviceMesh", "groups", (counts[0], counts[1]), FEWER)


def view_groups() -> tuple[Members, Members]:
    """Build a mesh and two views of it with both libraries. Collective."""
    first, *others = VIEWS
    with meshkit.build_mesh(first) as mesh:
        views = [mesh.view(sizes) for sizes in others]
        ours = [group.members for group in mesh.groups_report().groups]
        for view in views:
            view.close()
    meshes = [init_device_mesh("cpu", (*v.values(),), mesh_dim_names=(*v,)) for v in VIEWS]
    return ours, members_of(meshes)


def torchtitan_groups() -> tuple[Members, Members]:
    """Build torchtitan's meshes with both libraries. Collective."""
    loading, dense, sparse, *_ = torchtitan.meshes(**torchtitan.SIZES)
    ours = [group.members for group in loading.groups_report().groups]
    for mesh in (sparse, dense, loading):
        mesh.close()
    return ours, members_of(torchtitan.torch_meshes(**torchtitan.SIZES))


def members_of(meshes: list[DeviceMesh]) -> Members:
    """Return the global ranks of the groups that this rank holds for some meshes."""
    return [tuple(dist.get_process_group_ranks(g)) for g in torchtitan.groups_of(meshes)]
