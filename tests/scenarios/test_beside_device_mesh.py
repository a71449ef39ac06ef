"""meshkit and torch's init_device_mesh compared on real processes: a table of the docs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit
from meshkit.launch.torch_aborts import timeout_of
from meshkit.launch.torch_groups import KEEPS_ORDER
from tests.preloaded_python import run_python
from tests.resources import descriptors, live_groups

pytestmark = pytest.mark.skipif(not KEEPS_ORDER, reason="the table speaks of torch 2.13")


def compare_timeouts() -> Any:
    theirs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    with meshkit.build_mesh(dp=2, sp=2) as ours:
        groups = theirs.get_group("dp"), ours.group("dp")
        return [timeout_of(group) for group in groups]


def count_groups_of_size_one() -> tuple[int, int]:
    start = live_groups()
    init_device_mesh("cpu", (4, 1, 1, 1), mesh_dim_names=("dp", "pp", "sp", "tp"))
    after_theirs = live_groups()
    with meshkit.build_mesh(dp=4, pp=1, sp=1, tp=1):
        # dp spans the world: on both sides it is the default group, which was there
        return after_theirs - start, live_groups() - after_theirs


def build_theirs() -> None:
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))


def build_ours() -> None:
    meshkit.build_mesh(dp=2, sp=2).close()


def build_ten_meshes() -> Any:
    """Return the groups and the descriptors that ten meshes of each leave."""
    left = []
    for build in (build_theirs, build_ours):
        build()  # what the first one loads is not counted
        groups, files = live_groups(), descriptors()
        for _ in range(10):
            build()
        dist.barrier()
        left.append((live_groups() - groups, descriptors() - files))
    return left


def permute_ranks() -> Any:
    """Return coordinate and group rank of this rank in a mesh of ranks 0, 3, 2, 1."""
    ranks = [0, 3, 2, 1]
    theirs = DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=("dp",))
    coordinate = theirs.get_coordinate()
    assert coordinate is not None
    with meshkit.build_mesh(dp=4, ranks=ranks) as ours:
        return (
            (coordinate[0], theirs.get_group("dp").rank()),
            (ours.coordinate["dp"], ours.group("dp").rank()),
        )


def compare_all() -> dict[str, Any]:
    """Return what both do on four ranks of one job."""
    meshkit.init(timeout=60)
    comparisons = (
        compare_timeouts,
        count_groups_of_size_one,
        build_ten_meshes,
        permute_ranks,
        rebuild_equal_mesh,
    )
    return {compare.__name__: compare() for compare in comparisons}


def test_timeouts_groups_group_ranks_and_dtensors_on_four_ranks() -> None:
    results = meshkit.spawn(compare_all, 4, timeout=120)
    assert any(len({*of_rank["permute_ranks"][0]}) == 2 for of_rank in results)
    for of_rank in results:
        assert of_rank["compare_timeouts"] == [timedelta(minutes=30), timedelta(seconds=60)]
        assert of_rank["count_groups_of_size_one"] == (3, 1)
        (groups, files), ours = of_rank["build_ten_meshes"]
        assert (groups, files > 20, ours) == (20, True, (0, 0))
        coordinate, group_rank = of_rank["permute_ranks"][1]
        assert coordinate == group_rank
        ours, theirs = of_rank["rebuild_equal_mesh"]
        assert ours == [4, 4, 4, 4]
        assert theirs == [4, "Could not resolve the process group registered"]


def request_too_many_ranks(method: str) -> Any:
    """Return the error of each, and whether it had initialised the job by then."""
    try:
        meshkit.build_mesh(dp=4, sp=2, tp=1)
    except meshkit.SpecError as error:
        ours = (type(error).__name__, dist.is_initialized())
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = method.split(":")  # it joins by env://
    try:
        init_device_mesh("cpu", (4, 2, 1), mesh_dim_names=("dp", "sp", "tp"))
    except RuntimeError as error:
        theirs = (type(error).__name__, dist.is_initialized())
    dist.barrier()  # a rank that leaves breaks off the ranks that still connect
    dist.destroy_process_group()
    return theirs, ours


def test_six_ranks_for_a_mesh_of_eight() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        method = f"127.0.0.1:{probe.getsockname()[1]}"
    for theirs, ours in meshkit.spawn(request_too_many_ranks, 6, (method,), timeout=60):
        assert theirs == ("RuntimeError", True)  # the job has been joined
        assert ours == ("SpecError", False)


def rebuild_equal_mesh() -> tuple[list[Any], list[Any]]:
    """Sum a DTensor over an axis of a mesh, and of equal meshes after the first is gone."""
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

    def ours_left_open() -> Any:
        return total(meshkit.build_mesh(dp=2, tp=2).device_mesh("tp"))

    own = [ours(), ours(), ours_left_open()]
    meshkit.shutdown()
    meshkit.init()
    return [*own, ours()], [theirs(), theirs()]


def test_a_layout_without_a_job() -> None:
    """A layout needs no job; init_device_mesh needs the environment variables of a job."""
    ours = "import sys, meshkit as m; print(m.factor_world(8, sp=2), 'torch' in sys.modules)"
    theirs = "from torch.distributed.device_mesh import init_device_mesh as i; i('cpu', (4, 2))"
    command = [sys.executable, "-c", ours]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert printed.endswith("dp=3     6     7 False\n")
    done = run_python(theirs)
    assert done.returncode != 0
    assert "RANK" in done.stderr
