"""First guesses on a live mesh: names of DeviceMesh, absent axes, and slices of one root."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.live.habits import COUNTERPARTS
from tests.live.newer_torch import needs_slices

OTHERS = [*COUNTERPARTS, "dp_size", "dp_group", "dp", "_flatten", "nothing"]


def error_text(mesh: meshkit.Mesh, name: str) -> str:
    try:
        getattr(mesh, name)
    except AttributeError as error:
        return str(error)
    return "no error"


def raised(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def raises_unknown(mesh: meshkit.Mesh) -> bool:
    try:
        mesh.group("tq")
    except meshkit.UnknownAxisError:
        return True
    return False


def use_habits() -> dict[str, Any]:
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        created = dist.get_pg_count()
        return {
            "same": (mesh.shape, mesh.ndim, mesh.mesh_dim_names, str(mesh.device)),  # type: ignore[attr-defined]
            "calls": (mesh.get_rank(), mesh.get_local_rank("dp"), mesh.device_type),  # type: ignore[attr-defined]
            "group": mesh.get_group("dp") is mesh.group("dp"),  # type: ignore[attr-defined]
            "mesh_dim": mesh.get_group(mesh_dim="dp") is mesh.group("dp"),  # type: ignore[attr-defined]
            "local_rank": mesh.get_local_rank(mesh_dim="dp"),  # type: ignore[attr-defined]
            "no_axis": raised(mesh.get_local_rank),  # type: ignore[attr-defined]
            "unknown_slice": raised(lambda: mesh["tq"]),
            "contains": ("dp" in mesh, "tq" in mesh, raised(lambda: list(mesh))),  # type: ignore[call-overload]
            "slice": (mesh["dp"].mesh_dim_names, mesh["dp", "sp"].mesh.tolist()),
            "errors": {name: error_text(mesh, name) for name in OTHERS},
            "grammar": [
                mesh.group(axes) is mesh.group("dp", "sp")
                for axes in ("dp sp", "dp,sp", ("dp", "sp"), "(dp sp)", ["dp", "sp"])
            ],
            "absent": dist.get_process_group_ranks(mesh.group("tp")),
            "shared": mesh.group("tp") is mesh.group("pp") is mesh.group("cp tp"),
            "beside": mesh.group("dp", "tp") is mesh.group("dp"),
            "size": (mesh.size("tp"), mesh.size("dp tp"), mesh.group_rank("tp")),
            "seed": mesh.seed(1, vary="dp tp")
            == meshkit.stream_seed(1, dp=mesh.coordinate["dp"], tp=0),
            "created": dist.get_pg_count() - created,
            "unknown": raises_unknown(mesh),
            "copied": hasattr(copy.copy(mesh), "layout"),
            "report": raised(lambda: (mesh.close(), mesh.groups_report())),  # last, as it closes
        }


def test_names_of_device_mesh_and_absent_axes() -> None:
    for rank, found in enumerate(meshkit.spawn(use_habits, 4, timeout=60)):
        assert found["same"] == ((2, 2), 2, ("dp", "sp"), "cpu")
        assert found["calls"] == (rank, rank // 2, "cpu")
        assert found["slice"] == (("dp",), [[0, 1], [2, 3]])
        assert found["grammar"] == [True] * 5
        assert found["absent"] == [rank]
        assert found["size"] == (1, 2, 0)
        for name in ("group", "mesh_dim", "shared", "beside", "seed", "unknown", "copied"):
            assert found[name], name
        assert found["created"] == 0
        assert found["local_rank"] == rank // 2
        assert found["no_axis"].startswith(
            "SpecError: mesh.get_local_rank() names no axis of dp sp"
        )
        assert found["unknown_slice"].startswith("UnknownAxisError: mesh.device_mesh('tq')")
        assert found["contains"][:2] == (True, False)
        assert found["contains"][2].startswith("TypeError")
        assert found["report"].startswith("MeshkitError: mesh.groups_report(): the mesh is closed")
        errors = found["errors"]
        for name, counterpart in COUNTERPARTS.items():
            assert counterpart in errors[name]
        assert "use mesh.size('dp')" in errors["dp_size"]
        assert "use mesh.group('dp')" in errors["dp_group"]
        assert errors["nothing"] == "a Mesh has no attribute 'nothing'."


def train_on_slices() -> list[float]:
    """Compare FSDP2 over one slice and tensor parallelism over another with one process."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

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
            for mine, theirs in zip(model.parameters(), whole.parameters(), strict=True):
                gaps.append(float((mine.grad.full_tensor() - theirs.grad).abs().max()))  # type: ignore[union-attr]
            root = mesh.device_mesh()
            assert root is mesh.device_mesh()
            assert mesh.device_mesh("tp")._get_root_mesh() is root
            absent = mesh.device_mesh("tp cp")
            assert (absent.mesh_dim_names, absent.mesh.shape) == (("tp", "cp"), (2, 1))
    return gaps


@needs_slices
def test_fsdp2_over_one_slice_and_tensor_parallelism_over_another() -> None:
    for gaps in meshkit.spawn(train_on_slices, 4, timeout=120):
        assert len(gaps) == 12
        assert max(gaps) < 1e-12
