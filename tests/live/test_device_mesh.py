"""DeviceMeshes over existing groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import meshkit
from meshkit.live.device_mesh import device_mesh
from tests.live.faults import error_of
from tests.live.newer_torch import needs_order
from tests.pool import Pool, start_pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(8) as ranks:
        yield ranks


def make_device_meshes() -> Any:
    """Return names, shape and ranks of the DeviceMesh of each pattern, with pp=2."""
    with meshkit.build_mesh(pp=2, dp=2, sp=2, tp=1, groups=["pp dp"]) as mesh:
        grids = {}
        for pattern in (None, "(dp sp) tp", "dp sp", "tp", "(pp dp) sp", "(pp dp sp tp)", "pp"):
            made = mesh.device_mesh(pattern)
            groups = [dist.get_process_group_ranks(made.get_group(i)) for i in range(made.ndim)]
            grids[pattern] = (made.mesh_dim_names, made.mesh.tolist(), groups)
        return grids


def test_patterns_give_names_ranks_and_groups_that_agree(pool: Pool) -> None:
    grids = pool.run(make_device_meshes)[5]  # pp=1 dp=0 sp=1 tp=0
    assert grids[None] == (
        ("pp", "dp", "sp", "tp"),
        [[[[0], [1]], [[2], [3]]], [[[4], [5]], [[6], [7]]]],
        [[1, 5], [5, 7], [4, 5], [5]],
    )
    # with pp left out, a mesh covers the ranks of this stage
    assert grids["(dp sp) tp"] == (("dp_sp", "tp"), [[4], [5], [6], [7]], [[4, 5, 6, 7], [5]])
    assert grids["dp sp"] == (("dp", "sp"), [[4, 5], [6, 7]], [[5, 7], [4, 5]])
    assert grids["tp"] == (("tp",), [5], [[5]])
    assert grids["pp"] == (("pp",), [1, 5], [[1, 5]])
    assert grids["(pp dp) sp"] == (
        ("pp_dp", "sp"),
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[1, 3, 5, 7], [4, 5]],
    )
    assert grids["(pp dp sp tp)"] == (("pp_dp_sp_tp",), [*range(8)], [[*range(8)]])


def slice_twice() -> list[Any]:
    """Return slices of DeviceMeshes that list their dims in and out of nesting order."""
    with meshkit.build_mesh(
        pp=1, dp=2, tp=2, order="pp tp dp", groups=["dp tp"], ranks=range(4)
    ) as mesh:
        if not mesh.inside:
            return []
        made = [mesh.device_mesh(pattern) for pattern in ("tp pp dp", "dp pp tp", "(dp tp)")]
        slices = [made[0]["tp", "dp"], made[1]["dp", "tp"], made[2]]
        return [sliced.mesh.tolist() for sliced in slices]


@needs_order
def test_a_device_mesh_can_be_sliced_whatever_the_order_of_its_dims(pool: Pool) -> None:
    for slices in pool.run(slice_twice)[:4]:
        assert slices == [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [0, 2, 1, 3]]


def request_patterns(patterns: list[str]) -> list[Any]:
    with meshkit.build_mesh(dp=4, sp=2) as mesh:
        return [error_of(lambda p=pattern: mesh.device_mesh(p)) for pattern in patterns]


def test_invalid_patterns_raise(pool: Pool) -> None:
    patterns = ["", "(dp", "dp)", "dp ((sp))", "()", "dp dp", "(sp dp)", "dp-sp", "dp tq"]
    for errors in pool.run(request_patterns, patterns):
        assert [kind for kind, _ in errors] == ["SpecError"] * 8 + ["UnknownAxisError"]


def swap_groups() -> Any:
    """Pass groups of the wrong axis to the function that makes a DeviceMesh."""
    swap = {("dp",): ("sp",), ("sp",): ("dp",)}
    with meshkit.build_mesh(dp=4, sp=2) as mesh:
        return error_of(
            lambda: device_mesh(mesh._groups, lambda *a: mesh.group(*swap[a]), "cpu", "dp sp")
        )


def test_a_group_of_another_axis_raises_before_torch_gets_it(pool: Pool) -> None:
    assert {error[0] for error in pool.run(swap_groups)} == {"SpecError"}


def run_fsdp_and_dtensor() -> list[float]:
    """Run FSDP2 over (dp sp) and a DTensor over dp, each on a DeviceMesh of the mesh."""
    with meshkit.build_mesh(dp=4, sp=2, tp=1) as mesh:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        whole = torch.nn.Linear(8, 4)
        whole.load_state_dict(model.state_dict())
        fully_shard(model, mesh=mesh.device_mesh("(dp sp)"))
        inputs = torch.arange(64.0).reshape(8, 8) / 64
        model(inputs[mesh.rank : mesh.rank + 1]).sum().backward()
        (whole(inputs).sum() / 8).backward()
        grad = model.weight.grad.full_tensor()
        spread = distribute_tensor(inputs, mesh.device_mesh("dp"), [Shard(0)])
        assert whole.weight.grad is not None
        return [
            float((grad - whole.weight.grad).abs().max()),
            float((spread.full_tensor() - inputs).abs().max()),
            float(spread.to_local().shape[0]),
        ]


def test_fsdp2_and_dtensor_run_on_them(pool: Pool) -> None:
    for gradient, tensor, rows in pool.run(run_fsdp_and_dtensor):
        assert gradient < 1e-6
        assert tensor == 0
        assert rows == 2
