"""DeviceMeshes over existing groups."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import meshkit
from meshkit.groups.device_mesh import device_mesh
from tests.faults import error_of
from tests.newer_torch import needs_order, needs_slices
from tests.pool import Pool

RANKS = 8  # of the pool


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


def slice_in_any_order_of_dims() -> None:
    """Slice DeviceMeshes that list their dims in and out of nesting order."""
    with meshkit.build_mesh(
        pp=1, dp=2, tp=2, order="pp tp dp", groups=["dp tp"], ranks=range(4)
    ) as mesh:
        if mesh.inside:
            made = [mesh.device_mesh(pattern) for pattern in ("tp pp dp", "dp pp tp", "(dp tp)")]
            slices = [made[0]["tp", "dp"], made[1]["dp", "tp"], made[2]]
            ranks = [sliced.mesh.tolist() for sliced in slices]
            assert ranks == [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [0, 2, 1, 3]]


def refuse_patterns_and_groups_of_another_axis() -> None:
    patterns = ["", "(dp", "dp)", "dp ((sp))", "()", "dp dp", "(sp dp)", "dp-sp", "dp tq"]
    swap = {("dp",): ("sp",), ("sp",): ("dp",)}
    with meshkit.build_mesh(dp=4, sp=2) as mesh:
        errors = [error_of(lambda p=pattern: mesh.device_mesh(p)) for pattern in patterns]
        # before torch gets the groups
        swapped = lambda *axes: mesh.group(*swap[axes])  # noqa: E731
        errors.insert(0, error_of(lambda: device_mesh(mesh._groups, swapped, "cpu", "dp sp")))
    assert [(error or "")[0] for error in errors] == ["SpecError"] * 9 + ["UnknownAxisError"]


OTHERS = {
    "dp_size": "use mesh.size('dp')",
    "dp_group": "use mesh.group('dp')",
    "data_parallel_rank": "use mesh.group_rank('dp')",
    "get_data_parallel_world_size": "use mesh.size('dp')",
    "get_tensor_model_parallel_group": "use mesh.group('tp')",
    "tp_mesh": "use mesh.device_mesh('tp')",
    "batch_plan": "did you mean mesh.batch?",
    "destroy": "did you mean mesh.close?",
    "get_all_groups": "did you mean mesh.groups_report?",
    "is_main_process": "did you mean mesh.rank == 0?",
    "mesh": "did you mean mesh.layout.grid?",
    "grid": "did you mean mesh.layout.grid?",
    "barier": "did you mean mesh.barrier?",
    "coord": "did you mean mesh.coordinate?",
    "get_coordinate": "did you mean mesh.coordinate?",
    "groups": "did you mean mesh.group?",
    "process_group": "did you mean mesh.group?",
    "local_rank": "meshkit.init().local_rank is that of the job",
    "world_size": "meshkit.init().world_size is that of the job, mesh.size() that of the mesh",
    "all_reduce": "use torch.distributed.all_reduce(..., group=mesh.group('dp'))",
}


def describe_error(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # its class is in the text
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def use_habits() -> None:
    mesh: Any = meshkit.build_mesh(dp=4, sp=2)  # whose type does not have these names
    with mesh:
        created, rank = dist.get_pg_count(), dist.get_rank()
        assert (mesh.shape, mesh.ndim, mesh.mesh_dim_names) == ((4, 2), 2, ("dp", "sp"))
        assert (mesh.axis_names, mesh.get_rank(), mesh.device_type) == (("dp", "sp"), rank, "cpu")
        assert mesh.get_group("dp") is mesh.get_group(mesh_dim="dp") is mesh.group("dp")
        assert mesh.get_local_rank("dp") == mesh.get_local_rank(mesh_dim="dp") == rank // 2
        assert mesh.get_local_rank("sp") == rank % 2
        assert describe_error(mesh.get_local_rank).startswith("SpecError")
        assert describe_error(lambda: mesh["tq"]).startswith("UnknownAxisError")
        assert ("dp" in mesh, "tq" in mesh) == (True, False)
        assert describe_error(lambda: list(mesh)).startswith("TypeError")
        assert mesh["dp"].mesh_dim_names == ("dp",)
        assert mesh["dp", "sp"].mesh.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        for axes in ("dp sp", "dp,sp", ("dp", "sp"), "(dp sp)", ["dp", "sp"]):
            assert mesh.group(axes) is mesh.group("dp", "sp")
        assert dist.get_process_group_ranks(mesh.group("tp")) == [rank]
        assert mesh.group("tp") is mesh.group("pp") is mesh.group("cp tp")
        assert mesh.group("dp", "tp") is mesh.group("dp")
        assert (mesh.size("tp"), mesh.size("dp tp"), mesh.group_rank("tp")) == (1, 4, 0)
        assert mesh.seed(1, vary="dp tp") == meshkit.stream_seed(1, dp=mesh.coordinate["dp"], tp=0)
        assert dist.get_pg_count() == created
        assert describe_error(lambda: mesh.group("tq")).startswith("UnknownAxisError")
        assert hasattr(copy.copy(mesh), "layout")
        names = [*OTHERS, "dp", "nothing", "save"]
        errors = {name: describe_error(lambda n=name: getattr(mesh, n)) for name in names}
        of_axis = describe_error(lambda: mesh.get_rank("dp"))
        of_seconds = describe_error(lambda: mesh.barrier("10"))
    text = "AttributeError: a Mesh has no attribute"
    assert {name: errors[name] for name in OTHERS} == {
        name: f"{text} {name!r}; {hint}" for name, hint in OTHERS.items()
    }
    assert errors["dp"].count("('dp')") == 4
    assert [errors[name] for name in names[-2:]] == [f"{text} {name!r}" for name in names[-2:]]
    assert of_seconds.endswith("Fix: timeout=10.")
    assert of_axis.startswith("SpecError: mesh.get_rank('dp'): ")
    assert of_axis.endswith("Fix: mesh.get_local_rank('dp').")


def train_on_slices() -> None:
    """Compare FSDP2 over one slice and tensor parallelism over another with one process."""
    torch.manual_seed(0)
    samples = torch.randn(8, 8, dtype=torch.float64)
    for pattern, sizes in (
        ("dp", {"dp": 4}),
        ("(dp sp)", {"sp": 4}),
        ("dp sp", {"dp": 4}),
        ("(dp sp)", {"dp": 2, "sp": 2}),
    ):
        with meshkit.build_mesh(tp=2, **sizes) as mesh:
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).double()
            whole = copy.deepcopy(model)
            styles = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            parallelize_module(model, mesh.device_mesh("tp"), styles)
            index, count = mesh.group_rank("dp sp"), mesh.size("dp sp")
            fully_shard(model, mesh=mesh.device_mesh(pattern))  # dp or sp may be absent
            model(samples.chunk(count)[index]).square().mean().backward()
            whole(samples).square().mean().backward()
            for sharded, plain in zip(model.parameters(), whole.parameters(), strict=True):
                gradient = sharded.grad.full_tensor()  # type: ignore[union-attr]
                torch.testing.assert_close(gradient, plain.grad, rtol=0, atol=1e-12)
            root = mesh.device_mesh()
            assert root is mesh.device_mesh()
            assert mesh.device_mesh("tp")._get_root_mesh() is root
            absent = mesh.device_mesh("tp cp")
            assert (absent.mesh_dim_names, absent.mesh.shape) == (("tp", "cp"), (2, 1))


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(slice_in_any_order_of_dims, marks=needs_order),
        refuse_patterns_and_groups_of_another_axis,
        use_habits,
        pytest.param(train_on_slices, marks=needs_slices),
    ],
)
def test_device_meshes_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)
