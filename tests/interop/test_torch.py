"""DeviceMeshes of a mesh in torch itself: FSDP2, HSDP, TP, DDP, DTensor, compile.

Each full gradient is compared with the gradient of one process over all samples, in float64. For
torch.distributed.checkpoint between two meshes see tests/examples/test_fsdp_tp.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import meshkit

SAMPLES = 8


def live_groups() -> int:
    """Return the number of process groups of torch, with those of one rank. No public name does."""
    return len(dist.distributed_c10d._world.pg_names)


class Model(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu()).square().mean()


def model_and_samples() -> tuple[Model, Tensor]:
    """Return a model and samples in float64, equal on every rank."""
    torch.manual_seed(7)
    return Model().double(), torch.randn(SAMPLES, 8, dtype=torch.float64)


def reference_gradients() -> dict[str, Tensor]:
    """Return the gradients of one process over all samples."""
    model, samples = model_and_samples()
    model(samples).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def use_equal_meshes() -> Any:
    """Use DTensor on equal DeviceMeshes of successive meshes with other groups."""
    from torch.distributed.tensor import Shard, distribute_tensor

    def total() -> float:
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            distributed = distribute_tensor(torch.ones(4), mesh.device_mesh("tp"), [Shard(0)])
            return float(distributed.sum().full_tensor())

    first = total()
    dist.new_group([0, 1])  # so that later groups have other names
    sums = [first, total()]
    meshkit.shutdown()
    return [*sums, total()]


def difference(model: nn.Module) -> float:
    """Return the largest difference between full gradients and those of one process."""
    expected, parameters = reference_gradients(), dict(model.named_parameters())
    assert parameters.keys() == expected.keys()
    gaps = []
    for name, p in parameters.items():
        grad = p.grad
        assert grad is not None
        whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        gaps.append(float((whole - expected[name]).abs().max()))
    return max(gaps)


def gradient_difference(
    mesh: meshkit.Mesh, axis: str, wrap: Callable[[nn.Module], nn.Module]
) -> float:
    """Run backward on this rank's share of the samples along an axis; return the difference."""
    model, samples = model_and_samples()
    wrapped = wrap(model)
    share = samples.chunk(mesh.size(axis))[mesh.coordinate[axis]]
    wrapped(share).backward()
    return difference(model)


def shards() -> dict[str, Any]:
    """Compare fully_shard on one axis, two (HSDP) and beside tp, and DDP, with one process."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.nn.parallel import DistributedDataParallel

    mesh = meshkit.build_mesh(dp=4, tp=2)
    data = mesh.view(dp=8)
    hsdp = mesh.view(replicate=2, shard=2, tp=2)
    staged = mesh.view(pp=2, dp=2, tp=2)
    before = live_groups()
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def shard_beside_tp(mesh: meshkit.Mesh) -> Callable[[nn.Module], nn.Module]:
        root = mesh.device_mesh("dp tp")

        def wrap(model: nn.Module) -> nn.Module:
            parallelize_module(model, root["tp"], styles)
            return fully_shard(model, mesh=root["dp"])

        return wrap

    gaps = {
        "1-D": gradient_difference(
            data, "dp", lambda m: fully_shard(m, mesh=data.device_mesh("dp"))
        ),
        "with tp": gradient_difference(mesh, "dp", shard_beside_tp(mesh)),
        "in a stage": gradient_difference(staged, "dp", shard_beside_tp(staged)),
        "DDP": gradient_difference(
            mesh, "dp", lambda m: DistributedDataParallel(m, device_mesh=mesh.device_mesh("dp"))
        ),
    }
    model, samples = model_and_samples()
    fully_shard(model, mesh=hsdp.device_mesh("replicate shard"))
    index = hsdp.coordinate["replicate"] * 2 + hsdp.coordinate["shard"]
    model(samples.chunk(4)[index]).backward()
    gaps["HSDP"] = difference(model)
    placements = [repr(p) for p in model.up.weight.placements]
    return {"gaps": gaps, "placements": placements, "created": live_groups() - before}


def test_fsdp2_on_one_axis_on_two_and_beside_tp_and_ddp() -> None:
    for results in meshkit.spawn(shards, 8, timeout=120):
        assert set(results["gaps"]) == {"1-D", "with tp", "in a stage", "DDP", "HSDP"}
        assert max(results["gaps"].values()) < 1e-12, results
        assert results["placements"] == ["Replicate()", "Shard(dim=0)"]
        assert results["created"] == 0  # views and DeviceMeshes create no group


def tensors() -> dict[str, Any]:
    """Distribute and redistribute a DTensor on a root and on slices."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = meshkit.build_mesh(dp=2, sp=2, tp=2)
    whole = torch.arange(64.0).reshape(8, 8)
    root = mesh.device_mesh("(dp sp) tp")
    before = live_groups()
    distributed = distribute_tensor(whole, root, [Shard(0), Shard(1)])
    moved = distributed.redistribute(root, [Replicate(), Shard(0)])
    row, column = mesh.coordinate["dp"] * 2 + mesh.coordinate["sp"], mesh.coordinate["tp"]
    slices = distribute_tensor(whole, mesh.device_mesh("dp sp tp")["tp"], [Shard(0)])
    return {
        "spread": torch.equal(distributed.to_local(), whole[2 * row :][:2, 4 * column :][:, :4]),
        "moved": torch.equal(moved.to_local(), whole[4 * column :][:4]),
        "slice": torch.equal(slices.to_local(), whole[4 * column :][:4]),
        "whole": torch.equal(moved.full_tensor(), whole),
        "sum": float((distributed @ moved).sum().full_tensor() - (whole @ whole).sum()),
        "created": live_groups() - before,
    }


def test_dtensor_on_a_root_and_on_slices() -> None:
    for results in meshkit.spawn(tensors, 8, timeout=120):
        assert results == {
            "spread": True,
            "moved": True,
            "slice": True,
            "whole": True,
            "sum": 0,
            "created": 0,
        }


def context() -> dict[str, Any]:
    """Cut buffers along cp with context_parallel, whose attention has no kernel for the CPU."""
    from torch.distributed.tensor.experimental import context_parallel

    mesh = meshkit.build_mesh(dp=2, cp=2)
    tokens, (q, k, v) = torch.arange(8), (torch.randn(2, 4, 8, 8) for _ in range(3))
    with context_parallel(
        mesh.device_mesh("cp"), buffers=[tokens, q, k, v], buffer_seq_dims=[0, 2, 2, 2]
    ):
        local = tokens.tolist()
        try:
            F.scaled_dot_product_attention(q, k, v, is_causal=True)  # patched by name, in F
            error_text = "no error"
        except NotImplementedError as error:
            error_text = str(error)
    return {"local": local, "error": error_text, "after": tokens.tolist()}


def test_context_parallel_cuts_along_the_axis() -> None:
    halves = []
    for results in meshkit.spawn(context, 4, timeout=120):
        halves.append(results["local"])
        assert results["after"] == [*range(8)]
        assert "scaled_dot_product_flash_attention_for_cpu" in results["error"]  # never run here
    # balanced for causal attention: the first and the last part, then those between
    assert halves == [[0, 1, 6, 7], [2, 3, 4, 5]] * 2


def head_tail(length: int) -> list[bool]:
    """Return whether context_parallel cuts buffers as zigzag does, for several dims."""
    from torch.distributed.tensor.experimental import context_parallel

    with meshkit.build_mesh(dp=1, cp=4) as mesh:
        shard = mesh.sequence(length, axes="cp", order="zigzag")
        wide = torch.randn(2, 3, length, generator=torch.Generator().manual_seed(0))
        tokens, local = torch.arange(length), shard.take(wide, dim=-1).clone()
        buffers = [tokens, wide]  # context_parallel overwrites them
        with context_parallel(mesh.device_mesh("cp"), buffers=buffers, buffer_seq_dims=[0, 2]):
            return [torch.equal(tokens, shard.positions), torch.equal(wide, local)]


def test_zigzag_is_context_parallels_head_and_tail() -> None:
    assert meshkit.spawn(head_tail, 4, (24,), timeout=120) == [[True, True]] * 4


def test_a_mesh_after_an_equal_one_does_not_use_its_groups() -> None:
    assert meshkit.spawn(use_equal_meshes, 4, timeout=120) == [[4.0, 4.0, 4.0]] * 4


def compile_step(backend: str) -> tuple[float, float]:
    """Return the differences of loss and gradients between a compiled step and one process."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = meshkit.build_mesh(dp=1, tp=2)
    model, samples = model_and_samples()
    whole = float(model(samples))
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh.device_mesh("tp"), styles)
    loss = torch.compile(model, backend=backend)(samples)
    loss.backward()
    return abs(float(loss.detach()) - whole), difference(model)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_step(backend: str) -> None:
    for loss, gap in meshkit.spawn(compile_step, 2, (backend,), timeout=300):
        assert loss < 1e-12
        assert gap < 1e-12
