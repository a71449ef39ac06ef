"""What the ranks run that compare meshkit with init_device_mesh. No pytest here."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit
from meshkit.launch.inside import timeout_of

from .jobs import descriptors, live_groups


def timeouts() -> Any:
    meshkit.init(timeout=60)
    theirs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    with meshkit.build_mesh(dp=2, sp=2) as ours:
        return (
            [timeout_of(theirs.get_group(name)) for name in ("dp", "sp")],
            [timeout_of(ours.group(name)) for name in ("dp", "sp")],
        )


def groups_of_three_axes_of_one() -> tuple[int, int]:
    meshkit.init()
    start = live_groups()
    init_device_mesh("cpu", (2, 1, 1, 1), mesh_dim_names=("dp", "pp", "sp", "tp"))
    after_theirs = live_groups()
    with meshkit.build_mesh(dp=2, pp=1, sp=1, tp=1):
        # dp spans the world: on both sides it is the default group, which was there
        return after_theirs - start, live_groups() - after_theirs


def left_by_ten() -> Any:
    meshkit.init()
    found = []
    for build in (_theirs, _ours):
        build()  # what the first one loads is not counted
        groups, files = live_groups(), descriptors()
        for _ in range(10):
            build()
        dist.barrier()
        found.append((live_groups() - groups, descriptors() - files))
    return found


def _theirs() -> None:
    made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    del made


def _ours() -> None:
    with meshkit.build_mesh(dp=2, sp=2):
        pass


def permuted() -> Any:
    """Ranks 0 3 2 1 in one row: where am I, and at which place in the group?"""
    meshkit.init()
    ranks = [0, 3, 2, 1]
    theirs = DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=("dp",))
    coordinate = theirs.get_coordinate()
    assert coordinate is not None
    with meshkit.build_mesh(dp=4, ranks=ranks) as ours:
        return (
            (coordinate[0], theirs.get_group("dp").rank()),
            (ours.coordinate["dp"], ours.group("dp").rank()),
        )


def six_for_eight(method: str) -> Any:
    """The error, and whether the job had been joined by then. Both start from nothing."""
    try:
        meshkit.build_mesh(dp=4, sp=2, tp=1)
    except meshkit.SpecError as error:
        ours = (type(error).__name__, dist.is_initialized())
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = method.split(":")  # it joins by env://
    try:
        init_device_mesh("cpu", (4, 2, 1), mesh_dim_names=("dp", "sp", "tp"))
    except RuntimeError as error:
        theirs = (type(error).__name__, dist.is_initialized())
    dist.destroy_process_group()
    return theirs, ours


def dtensor_after_an_equal_mesh() -> tuple[list[Any], list[Any]]:
    """DTensor over an axis of a mesh, and over that of an equal one after the first's end."""
    from torch.distributed.tensor import Shard, distribute_tensor

    def total(mesh: DeviceMesh) -> Any:
        try:
            return float(distribute_tensor(torch.ones(4), mesh, [Shard(0)]).sum().full_tensor())
        except RuntimeError as error:
            return str(error).partition(" under")[0]

    def theirs() -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        found = total(mesh["tp"])
        for name in ("dp", "tp"):
            dist.destroy_process_group(mesh.get_group(name))
        return found

    def ours() -> Any:
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            return total(mesh.device_mesh("tp"))

    meshkit.init()
    mine = [ours(), ours()]
    return mine, [theirs(), theirs()]
