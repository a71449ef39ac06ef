"""One step of a dense decoder with FSDP2, tensor and sequence parallelism. A script to rehearse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import meshkit

POLICY = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


class Attention(nn.Module):
    """Causal attention; its heads are those of the local weights."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.size = hidden // heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, hidden) to the local part of the same."""
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """A gated feed-forward."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, hidden) to the same."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention, self.ffn = Attention(hidden, heads), FeedForward(hidden, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, hidden) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))  # type: ignore[no-any-return]


def whole_input() -> PrepareModuleInput:
    """Return the style of a module whose input is cut along the tokens."""
    return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))


def main(config: dict[str, int], tokens: int, batch: int) -> None:
    """Run a step on the ranks of the job."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    with meshkit.build_mesh(dp=-1, tp=8) as mesh:
        root = mesh.device_mesh("dp tp")
        tp, dp = root["tp"], root["dp"]
        cut = RowwiseParallel(output_layouts=Shard(1))
        plan: dict[str, ParallelStyle] = {
            **{f"norm{n}": SequenceParallel() for n in (1, 2)},
            **{"attention": whole_input(), "ffn": whole_input()},
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
            **{"ffn.gate": ColwiseParallel(), "ffn.up": ColwiseParallel()},
            **{"attention.o": cut, "ffn.down": cut},
        }
        layers = [
            Layer(hidden, heads, config["intermediate_size"])
            for _ in range(config["num_hidden_layers"])
        ]
        model = nn.Sequential(
            nn.Embedding(config["vocab_size"], hidden),
            *layers,
            nn.RMSNorm(hidden),
            nn.Linear(hidden, config["vocab_size"], bias=False),
        )
        ends: dict[str, ParallelStyle] = {
            "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            str(len(layers) + 1): SequenceParallel(),
            str(len(layers) + 2): ColwiseParallel(input_layouts=Shard(1)),
        }
        parallelize_module(model, tp, ends)
        for layer in layers:
            parallelize_module(layer, tp, plan)
            fully_shard(layer, mesh=dp, mp_policy=POLICY)
        fully_shard(model, mesh=dp, mp_policy=POLICY)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        ids = torch.zeros(batch, tokens, dtype=torch.long, device=mesh.device)
        model(ids).float().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), *map(int, sys.argv[2:]))
