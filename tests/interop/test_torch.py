"""DeviceMeshes of a mesh under torch's own stack: FSDP2, HSDP, TP, DDP, DTensor, compile.

Each gradient, put together again, is compared with that of one process over all samples, in
float64. torch.distributed.checkpoint from one mesh to another: tests/examples/test_fsdp_tp.py.
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
from meshkit.live.groups import create

pytestmark = pytest.mark.skipif(not create.KEEPS_ORDER, reason="FSDP2 on the cpu: not in torch 2.6")
SAMPLES = 8


def live_groups() -> int:
    """Count the process groups of torch, those of one rank included. No public name does."""
    return len(dist.distributed_c10d._world.pg_names)


class Model(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu()).square().mean()


def model_and_samples() -> tuple[Model, Tensor]:
    """The same on every rank, in float64."""
    torch.manual_seed(7)
    return Model().double(), torch.randn(SAMPLES, 8, dtype=torch.float64)


def alone() -> dict[str, Tensor]:
    """The gradients of one process over all samples."""
    model, samples = model_and_samples()
    model(samples).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def again() -> Any:
    """DTensor over equal DeviceMeshes of two meshes, one after the other, with other groups."""
    from torch.distributed.tensor import Shard, distribute_tensor

    def total() -> float:
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            spread = distribute_tensor(torch.ones(4), mesh.device_mesh("tp"), [Shard(0)])
            return float(spread.sum().full_tensor())

    first = total()
    dist.new_group([0, 1])  # so that groups made later have other names
    found = [first, total()]
    meshkit.shutdown()
    return [*found, total()]


def difference(model: nn.Module) -> float:
    """How far gradients, put together again, are from those of one process."""
    expected, found = alone(), dict(model.named_parameters())
    assert found.keys() == expected.keys()
    gaps = []
    for name, p in found.items():
        grad = p.grad
        assert grad is not None
        whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        gaps.append(float((whole - expected[name]).abs().max()))
    return max(gaps)


def trained(mesh: meshkit.Mesh, axis: str, wrap: Callable[[nn.Module], nn.Module]) -> float:
    """One backward over this rank's share of the samples along an axis; the difference."""
    model, samples = model_and_samples()
    wrapped = wrap(model)
    mine = samples.chunk(mesh.size(axis))[mesh.coordinate[axis]]
    wrapped(mine).backward()
    return difference(model)


def shards() -> dict[str, Any]:
    """fully_shard on one axis, on two (HSDP), on a slice beside tp, and DDP; groups made: none."""
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
    made = live_groups()
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def sharded_beside_tp(one: meshkit.Mesh) -> Callable[[nn.Module], nn.Module]:
        root = one.device_mesh("dp tp")

        def wrap(model: nn.Module) -> nn.Module:
            parallelize_module(model, root["tp"], styles)
            return fully_shard(model, mesh=root["dp"])

        return wrap

    gaps = {
        "1-D": trained(data, "dp", lambda m: fully_shard(m, mesh=data.device_mesh("dp"))),
        "with tp": trained(mesh, "dp", sharded_beside_tp(mesh)),
        "in a stage": trained(staged, "dp", sharded_beside_tp(staged)),
        "DDP": trained(
            mesh, "dp", lambda m: DistributedDataParallel(m, device_mesh=mesh.device_mesh("dp"))
        ),
    }
    model, samples = model_and_samples()
    fully_shard(model, mesh=hsdp.device_mesh("replicate shard"))
    place = hsdp.coordinate["replicate"] * 2 + hsdp.coordinate["shard"]
    model(samples.chunk(4)[place]).backward()
    gaps["HSDP"] = difference(model)
    placements = [repr(p) for p in model.up.weight.placements]
    return {"gaps": gaps, "placements": placements, "made": live_groups() - made}


def test_fsdp2_on_one_axis_on_two_and_beside_tp_and_ddp() -> None:
    for found in meshkit.spawn(shards, 8, timeout=120):
        assert set(found["gaps"]) == {"1-D", "with tp", "in a stage", "DDP", "HSDP"}
        assert max(found["gaps"].values()) < 1e-12, found
        assert found["placements"] == ["Replicate()", "Shard(dim=0)"]
        assert found["made"] == 0  # views and DeviceMeshes cost no group


def tensors() -> dict[str, Any]:
    """DTensor on a root and on slices: distributed, redistributed, put together again."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = meshkit.build_mesh(dp=2, sp=2, tp=2)
    whole = torch.arange(64.0).reshape(8, 8)
    root = mesh.device_mesh("(dp sp) tp")
    made = live_groups()
    spread = distribute_tensor(whole, root, [Shard(0), Shard(1)])
    turned = spread.redistribute(root, [Replicate(), Shard(0)])
    row, column = mesh.coordinate["dp"] * 2 + mesh.coordinate["sp"], mesh.coordinate["tp"]
    slices = distribute_tensor(whole, mesh.device_mesh("dp sp tp")["tp"], [Shard(0)])
    return {
        "spread": torch.equal(spread.to_local(), whole[2 * row :][:2, 4 * column :][:, :4]),
        "turned": torch.equal(turned.to_local(), whole[4 * column :][:4]),
        "slice": torch.equal(slices.to_local(), whole[4 * column :][:4]),
        "whole": torch.equal(turned.full_tensor(), whole),
        "sum": float((spread @ turned).sum().full_tensor() - (whole @ whole).sum()),
        "made": live_groups() - made,
    }


def test_dtensor_on_a_root_and_on_slices() -> None:
    for found in meshkit.spawn(tensors, 8, timeout=120):
        assert found == {
            "spread": True,
            "turned": True,
            "slice": True,
            "whole": True,
            "sum": 0,
            "made": 0,
        }


def context() -> dict[str, Any]:
    """context_parallel cuts buffers along cp; its attention has no kernel for the CPU."""
    from torch.distributed.tensor.experimental import context_parallel

    mesh = meshkit.build_mesh(dp=2, cp=2)
    tokens, (q, k, v) = torch.arange(8), (torch.randn(2, 4, 8, 8) for _ in range(3))
    with context_parallel(
        mesh.device_mesh("cp"), buffers=[tokens, q, k, v], buffer_seq_dims=[0, 2, 2, 2]
    ):
        mine = tokens.tolist()
        try:
            F.scaled_dot_product_attention(q, k, v, is_causal=True)  # patched by name, in F
            said = "ran"
        except NotImplementedError as error:
            said = str(error)
    return {"mine": mine, "said": said, "after": tokens.tolist()}


def test_context_parallel_cuts_along_the_axis() -> None:
    halves = []
    for found in meshkit.spawn(context, 4, timeout=120):
        halves.append(found["mine"])
        assert found["after"] == [*range(8)]
        assert "scaled_dot_product_flash_attention_for_cpu" in found["said"]  # never run here
    # balanced for causal attention: the first and the last part, then those between
    assert halves == [[0, 1, 6, 7], [2, 3, 4, 5]] * 2


def head_tail(length: int) -> list[bool]:
    """Whether context_parallel's cut of buffers is that of zigzag, for buffers of any dims."""
    from torch.distributed.tensor.experimental import context_parallel

    with meshkit.build_mesh(dp=1, cp=4) as mesh:
        shard = mesh.sequence(length, axes="cp", order="zigzag")
        wide = torch.randn(2, 3, length, generator=torch.Generator().manual_seed(0))
        tokens, mine = torch.arange(length), shard.take(wide, dim=-1).clone()
        buffers = [tokens, wide]  # which it overwrites
        with context_parallel(mesh.device_mesh("cp"), buffers=buffers, buffer_seq_dims=[0, 2]):
            return [torch.equal(tokens, shard.positions), torch.equal(wide, mine)]


def test_zigzag_is_context_parallels_head_and_tail() -> None:
    assert meshkit.spawn(head_tail, 4, (24,), timeout=120) == [[True, True]] * 4


def test_a_mesh_after_an_equal_one_does_not_meet_its_groups() -> None:
    assert meshkit.spawn(again, 4, timeout=120) == [[4.0, 4.0, 4.0]] * 4


def compiled(backend: str) -> tuple[float, float]:
    """A compiled step over tp: its loss and gradients against those of one process."""
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
    for loss, gap in meshkit.spawn(compiled, 2, (backend,), timeout=300):
        assert loss < 1e-12
        assert gap < 1e-12
