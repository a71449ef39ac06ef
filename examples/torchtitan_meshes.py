"""Build every mesh of torchtitan as views of one world, and count the groups that torch creates.

    python examples/torchtitan_meshes.py

The meshes are those of torchtitan's ``ParallelDims.build_mesh``: data loading, loss, dense (with
HSDP), and sparse, in which experts use ranks of dp_shard, cp and tp. 16 local ranks.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit

SIZES = {"pp": 1, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2, "ep": 4, "etp": 1}


def meshes(
    pp: int, dp_replicate: int, dp_shard: int, cp: int, tp: int, ep: int, etp: int
) -> tuple[meshkit.Mesh, meshkit.Mesh, meshkit.Mesh, DeviceMesh, DeviceMesh]:
    """Return three meshes, and the DeviceMeshes for loss and HSDP over their groups."""
    batch, fsdp, efsdp = dp_replicate * dp_shard, dp_shard * cp, dp_shard * cp * tp // (ep * etp)
    loading = meshkit.build_mesh(
        pp=pp, batch=batch, cp=cp, tp=tp, order="pp batch cp tp", groups=["batch cp"]
    )
    dense = loading.view(pp=pp, dp_replicate=dp_replicate, fsdp=fsdp, tp=tp)
    sparse = loading.view(pp=pp, dp_replicate=dp_replicate, efsdp=efsdp, ep=ep, etp=etp)
    loss, hsdp = loading.device_mesh("(batch cp)"), dense.device_mesh("dp_replicate fsdp")
    return loading, dense, sparse, loss, hsdp


def torch_meshes(
    pp: int, dp_replicate: int, dp_shard: int, cp: int, tp: int, ep: int, etp: int
) -> list[DeviceMesh]:
    """Return the same meshes from torch alone, with the private ``_flatten`` as in torchtitan."""
    batch, fsdp, efsdp = dp_replicate * dp_shard, dp_shard * cp, dp_shard * cp * tp // (ep * etp)
    axis_sets = [
        {"pp": pp, "batch": batch, "cp": cp, "tp": tp},
        {"pp": pp, "dp_replicate": dp_replicate, "fsdp": fsdp, "tp": tp},
        {"pp": pp, "dp_replicate": dp_replicate, "efsdp": efsdp, "ep": ep, "etp": etp},
    ]
    roots = [init_device_mesh("cpu", (*w.values(),), mesh_dim_names=(*w,)) for w in axis_sets]
    return [*roots, roots[0]["batch", "cp"]._flatten("loss")]


def groups_of(device_meshes: list[DeviceMesh]) -> list[dist.ProcessGroup]:
    """Return this rank's process groups of some DeviceMeshes, the default group first."""
    names = [(mesh, name) for mesh in device_meshes for name in mesh.mesh_dim_names or ()]
    groups = [dist.group.WORLD, *(mesh.get_group(name) for mesh, name in names)]
    return [group for group in dict.fromkeys(groups) if group is not None]


def main() -> tuple[list[tuple[int, ...]], int]:
    """Return the members of this rank's groups, and the number of groups of torch. Collective."""
    loading, dense, sparse, *_ = meshes(**SIZES)
    report = loading.groups_report()
    for mesh in (sparse, dense, loading):  # a group ends with the last view that uses it
        mesh.close()
    theirs = len(groups_of(torch_meshes(**SIZES)))
    if dist.get_rank() == 5:
        print(f"{report}\ntorch: {theirs} process groups for the same meshes")
    return [group.members for group in report.groups], theirs


if __name__ == "__main__":
    meshkit.spawn(main, 16)
