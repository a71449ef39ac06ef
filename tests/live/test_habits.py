"""First guesses on a live mesh: names of DeviceMesh, absent axes, and slices of one root."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import meshkit
from meshkit.live.habits import COUNTERPARTS
from tests.live.newer_torch import needs_slices
from tests.pool import Pool, start_pool

OTHERS = [*COUNTERPARTS, "dp_size", "dp_group", "dp", "nothing"]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
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


def test_names_of_device_mesh_and_absent_axes(pool: Pool) -> None:
    pool.run(use_habits)


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
def test_fsdp2_over_one_slice_and_tensor_parallelism_over_another(pool: Pool) -> None:
    for gaps in pool.run(train_on_slices):
        assert len(gaps) == 12
        assert max(gaps) < 1e-12
