"""Divide the tokens of a model of Transformers over cp, with an attention of nine lines.

    torchrun --nproc-per-node 4 examples/transformers_attention.py

Needs ``pip install -e '.[interop]'``. The attention exchanges tokens for heads with one all-to-all,
attends to all tokens of some heads, and exchanges back. A tiny Llama with random weights, split
over cp, has the gradient of the whole model on one process; rank 0 prints the largest difference.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

import meshkit

CONFIG = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


def use_mesh(model: LlamaForCausalLM, mesh: meshkit.Mesh) -> None:
    """Let the attention of a model exchange tokens for heads over cp."""

    def attend(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **_: Any
    ) -> tuple[Tensor, None]:
        k, v = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (k, v))
        qkv = torch.stack((q, k, v))  # (3, batch, heads, tokens / cp, d)
        q, k, v = mesh.redistribute(qkv, "three b h s/cp d -> three b h/cp s d")
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return mesh.redistribute(mixed, "b h/cp s d -> b s/cp h d"), None

    AttentionInterface.register("meshkit", attend)
    model.set_attn_implementation("meshkit")


def main() -> float:
    """Compare the gradients; return the largest difference."""
    meshkit.init(seed=0)  # equal weights and tokens on every rank
    with meshkit.build_mesh(dp=1, cp=-1) as mesh:
        model = LlamaForCausalLM(LlamaConfig(**CONFIG, **HEADS)).double().to(mesh.device)
        tokens = torch.randint(0, 64, (2, 33), device=mesh.device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
        model(inputs, labels=inputs, shift_labels=targets).loss.backward()
        whole = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()

        use_mesh(model, mesh)
        shard = mesh.sequence(inputs.shape[1])
        own = shard.take(inputs, dim=1)
        positions = shard.positions.to(mesh.device).expand(len(own), -1)
        targets = shard.take(targets, dim=1).contiguous()
        model(own, position_ids=positions, labels=own, shift_labels=targets).loss.backward()
        difference = 0.0
        for parameter, expected in zip(model.parameters(), whole, strict=True):
            gradient = mesh.redistribute(parameter.grad, "+cp ... -> ... *cp", op="avg")
            difference = max(difference, float((gradient - expected).abs().max()))
        if mesh.rank == 0:
            sys.stdout.write(f"{mesh!r}: largest difference {difference:.0e}\n")
    return difference


if __name__ == "__main__":
    try:
        main()
    finally:
        meshkit.shutdown()
