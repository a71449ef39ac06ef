"""A Megatron block in patterns: the values and gradients of one process, and of megatron-core."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import meshkit
from examples import megatron_block
from examples.megatron_block import MegatronBlock, Weights

DIM, HEADS, VOCABULARY, TOKENS = 16, 4, 32, 8
MESHES: list[dict[str, Any]] = [{"dp": 1, "tp": 4}, {"dp": 2, "tp": 2, "order": "tp dp"}]
CUT_DIM = {"qkv": 1, "out": 1, "up": 0, "down": 1, "head": 0}  # norms are whole on every rank
Case = tuple[Weights, Tensor, Tensor]
needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="megatron-core is not installed: pip install -e '.[interop]'",
)


def make_case() -> Case:
    """Return whole weights, tokens (2, TOKENS, DIM) and targets, equal on all ranks."""
    torch.manual_seed(0)
    weights = megatron_block.draw(DIM, HEADS, VOCABULARY)
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    return weights, x, torch.randint(VOCABULARY, (2, TOKENS))


def plain_loss(w: Weights, x: Tensor, targets: Tensor) -> Tensor:
    """Return the loss by torch's own functions on whole tensors."""
    full = F.layer_norm(x, (DIM,), w["norms"][0])
    q, k, v = (F.linear(full, w["qkv"][i].flatten(0, 1)).view(2, -1, HEADS, 4) for i in range(3))
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + F.linear(mixed, w["out"].flatten(1))
    up = F.gelu(F.linear(F.layer_norm(x, (DIM,), w["norms"][1]), w["up"]))
    x = x + F.linear(up, w["down"])
    logits = F.linear(F.layer_norm(x, (DIM,), w["norms"][2]), w["head"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def differentiate(weights: Weights, x: Tensor, loss: Tensor) -> dict[str, Tensor]:
    """Return the loss and the gradient of each weight and of x."""
    named = {**weights, "x": x}
    gradients = torch.autograd.grad(loss, list(named.values()))
    return {"loss": loss.detach(), **dict(zip(named, gradients, strict=True))}


def run_plain() -> dict[str, Tensor]:
    """Return the loss and gradients of one process."""
    weights, x, targets = make_case()
    leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
    return differentiate(leaves, x.requires_grad_(), plain_loss(leaves, x, targets))


def cut_result(name: str, whole: Tensor, size: int, index: int) -> Tensor:
    """Return the part of a gradient that a rank of tp has."""
    dim = 1 if name == "x" else CUT_DIM.get(name)
    return whole if dim is None else whole.chunk(size, dim)[index]


def compare(sizes: dict[str, Any]) -> dict[str, float]:
    """Return how far the loss and each gradient are from one process, by the largest number."""
    with meshkit.build_mesh(**sizes) as mesh, mesh.checked():
        weights, x, targets = make_case()
        size, index = mesh.size("tp"), mesh.coordinate["tp"]
        block = MegatronBlock(mesh, weights)
        local = x.chunk(size, 1)[index].clone().requires_grad_()
        results = differentiate(block.weights, local, block.loss(local, targets))
        wanted = {name: cut_result(name, y, size, index) for name, y in run_plain().items()}
        return {name: distance(results[name], wanted[name]) for name in wanted}


def distance(x: Tensor, y: Tensor) -> float:
    assert x.shape == y.shape
    return float((x - y).abs().max() / y.abs().max())


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_values_and_gradients_are_those_of_one_process(sizes: dict[str, Any]) -> None:
    for distances in meshkit.spawn(compare, 4, (sizes,), timeout=120):
        assert list(distances) == ["loss", *megatron_block.CUTS, "x"]
        assert max(distances.values()) < 1e-12, distances


# ------------------------------------------------------------------ beside megatron-core


def run_both() -> dict[str, float]:
    """Return how far the block is from the same block of megatron-core's layers."""
    with meshkit.build_mesh(dp=1, tp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")  # where it keeps its buffers
        weights, x, targets = make_case()
        block = MegatronBlock(mesh, weights)
        local = x.chunk(2, 1)[mesh.rank].clone().requires_grad_()
        ours = differentiate(block.weights, local, block.loss(local, targets))
        core = {name: w.detach().clone().requires_grad_() for name, w in block.weights.items()}
        loss = core_loss(mesh, core, local, targets, patch)
        theirs = differentiate(core, local, loss)
        theirs["norms"] = mesh.redistribute(theirs["norms"], "n d +tp -> n d =tp")  # its optimizer
        return {name: distance(ours[name], theirs[name]) for name in ours}


def core_loss(
    mesh: meshkit.Mesh, w: Weights, x: Tensor, targets: Tensor, patch: pytest.MonkeyPatch
) -> Tensor:
    """Return the loss by megatron-core's sequence parallel layers, whose layout is s b d."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import cross_entropy, layers

    group = mesh.group("tp")
    parallel_state._set_global_memory_buffer()
    for name, value in {"group": group, "rank": mesh.rank, "world_size": 2}.items():
        getter = f"get_tensor_model_parallel_{name}"
        patch.setattr(cross_entropy, getter, lambda value=value: value)

    def column(y: Tensor, weight: Tensor) -> Tensor:
        linear = layers.linear_with_grad_accumulation_and_async_allreduce
        return linear(y, weight, None, False, False, True, tp_group=group)

    def row(y: Tensor, weight: Tensor) -> Tensor:
        partial = F.linear(y, weight)
        return layers.reduce_scatter_to_sequence_parallel_region(partial, group=group)

    x = x.transpose(0, 1)
    full = column(F.layer_norm(x, (DIM,), w["norms"][0]), w["qkv"].flatten(0, 2))
    q, k, v = full.unflatten(2, (3, -1, DIM // HEADS)).permute(2, 1, 3, 0, 4)  # three b h s e
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3).flatten(2)
    x = x + row(mixed, w["out"].flatten(1))
    up = F.gelu(column(F.layer_norm(x, (DIM,), w["norms"][1]), w["up"]))
    x = x + row(up, w["down"])
    logits = column(F.layer_norm(x, (DIM,), w["norms"][2]), w["head"])
    return cross_entropy.vocab_parallel_cross_entropy(logits, targets.T.contiguous()).mean()


@needs_megatron
def test_it_is_the_block_of_megatron_cores_layers() -> None:
    """The loss of megatron-core computes in float32."""
    for distances in meshkit.spawn(run_both, 2, timeout=120):
        assert max(distances.values()) < 1e-5, distances
