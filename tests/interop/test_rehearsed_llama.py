"""A Llama of Transformers with FSDP2 and TP, rehearsed on tensors without values."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import meshkit
from meshkit.testing import rehearse

pytest.importorskip("transformers")

PLAN: dict[str, ParallelStyle] = {
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}
TOKENS = 512


def train() -> None:
    """Run a step of two layers of the size of Llama 3 8B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with meshkit.build_mesh(dp=-1, tp=8) as mesh:
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        root = mesh.device_mesh("dp tp")
        for layer in model.model.layers:
            parallelize_module(layer, root["tp"], PLAN)
            fully_shard(layer, mesh=root["dp"])
        fully_shard(model, mesh=root["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        ids = torch.zeros(1, TOKENS, dtype=torch.long, device=mesh.device)
        # with a mask of its own, Transformers does not look at values
        mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16, device=mesh.device)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits.float().mean().backward()
        optimizer.step()


def test_a_llama_of_8192_ranks_is_rehearsed() -> None:
    report = rehearse(train, 8192, nodes=1024, device="meta", ranks=[0, 7, 8184, 8191])
    report.raise_if_mismatched()
    # elements of rank 0: tp splits the layers, then dp splits the rows of each weight, rounded up
    qkv, out, up_gate, down, norms = 3 * 4096, 4 * 512, 2 * 2 * 4096, 4 * 1792, 2 * 4
    layer = qkv + out + up_gate + down + norms
    elements = 2 * layer + 2 * 126 * 4096 + 4
    assert report.traces[0].memory["parameters"] == 2 * elements  # bf16
