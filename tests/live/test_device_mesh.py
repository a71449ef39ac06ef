"""DeviceMeshes over existing groups."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import meshkit
from meshkit.live.device_mesh import COUNTERPARTS, device_mesh
from tests.live.faults import error_of
from tests.live.newer_torch import needs_order, needs_slices
from tests.pool import Pool, start_pool

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


OTHERS = [*COUNTERPARTS, "dp_size", "dp_group", "dp", "nothing"]


@pytest.fixture(scope="module")
def pool_of_4() -> Iterator[Pool]:
    with start_pool(4) as ranks:
        yield ranks


def describe_error(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # its class is in the text
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def use_habits() -> None:
    mesh: Any = meshkit.build_mesh(dp=2, sp=2)  # whose type does not have these names
    with mesh:
        created, rank = dist.get_pg_count(), dist.get_rank()
        assert (mesh.shape, mesh.ndim, mesh.mesh_dim_names) == ((2, 2), 2, ("dp", "sp"))
        assert (mesh.axis_names, mesh.get_rank(), mesh.device_type) == (("dp", "sp"), rank, "cpu")
        assert mesh.get_group("dp") is mesh.get_group(mesh_dim="dp") is mesh.group("dp")
        assert mesh.get_local_rank("dp") == mesh.get_local_rank(mesh_dim="dp") == rank // 2
        assert describe_error(mesh.get_local_rank).startswith("SpecError")
        assert describe_error(lambda: mesh["tq"]).startswith("UnknownAxisError")
        assert ("dp" in mesh, "tq" in mesh) == (True, False)
        assert describe_error(lambda: list(mesh)).startswith("TypeError")
        assert mesh["dp"].mesh_dim_names == ("dp",)
        assert mesh["dp", "sp"].mesh.tolist() == [[0, 1], [2, 3]]
        for axes in ("dp sp", "dp,sp", ("dp", "sp"), "(dp sp)", ["dp", "sp"]):
            assert mesh.group(axes) is mesh.group("dp", "sp")
        assert dist.get_process_group_ranks(mesh.group("tp")) == [rank]
        assert mesh.group("tp") is mesh.group("pp") is mesh.group("cp tp")
        assert mesh.group("dp", "tp") is mesh.group("dp")
        assert (mesh.size("tp"), mesh.size("dp tp"), mesh.group_rank("tp")) == (1, 2, 0)
        assert mesh.seed(1, vary="dp tp") == meshkit.stream_seed(1, dp=mesh.coordinate["dp"], tp=0)
        assert dist.get_pg_count() == created
        assert describe_error(lambda: mesh.group("tq")).startswith("UnknownAxisError")
        assert hasattr(copy.copy(mesh), "layout")
        errors = {name: describe_error(lambda n=name: getattr(mesh, n)) for name in OTHERS}
    assert all(hint in errors[name] for name, hint in COUNTERPARTS.items())
    assert errors["dp_size"].endswith("use mesh.size('dp').")
    assert errors["dp_group"].endswith("use mesh.group('dp').")
    assert errors["dp"].count("('dp')") == 4
    assert errors["nothing"] == "AttributeError: a Mesh has no attribute 'nothing'."


def test_names_of_device_mesh_and_absent_axes(pool_of_4: Pool) -> None:
    pool_of_4.run(use_habits)


def train_on_slices() -> list[float]:
    """Compare FSDP2 over one slice and tensor parallelism over another with one process."""
    torch.manual_seed(0)
    samples = torch.randn(8, 8, dtype=torch.float64)
    gaps = []
    for pattern, sizes in (("dp", {"dp": 2}), ("(dp sp)", {"sp": 2}), ("dp sp", {"dp": 2})):
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
                gaps.append(float((sharded.grad.full_tensor() - plain.grad).abs().max()))  # type: ignore[union-attr]
            root = mesh.device_mesh()
            assert root is mesh.device_mesh()
            assert mesh.device_mesh("tp")._get_root_mesh() is root
            absent = mesh.device_mesh("tp cp")
            assert (absent.mesh_dim_names, absent.mesh.shape) == (("tp", "cp"), (2, 1))
    return gaps


@needs_slices
def test_fsdp2_over_one_slice_and_tensor_parallelism_over_another(pool_of_4: Pool) -> None:
    for gaps in pool_of_4.run(train_on_slices):
        assert len(gaps) == 12
        assert max(gaps) < 1e-12
