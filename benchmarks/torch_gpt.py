"""The model of ``examples/train.py``, trained by torch alone: no meshkit here.

A ``DeviceMesh`` of dp and sp, Ulysses over sp by torch's differentiable all-to-all (its own context
parallel attention does not run on a CPU), ``nn.Linear`` and ``nn.Embedding``, and DDP or FSDP2 over
all ranks. Weights are handed over, and so are the samples of each micro batch, so that both sides
train on the same from the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 256  # bytes
Samples = list[list[list[int]]]  # of this rank: step by step, micro batch by micro batch


def traded(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Block i of dim 0 goes to rank i."""
    sent = x.contiguous()
    move: Callable[..., Tensor] = collective.all_to_all_single
    return move(torch.empty_like(sent), sent, group=group)


class Attention(nn.Module):
    """Causal attention; ranks of sp trade slices of tokens for slices of heads."""

    def __init__(self, dim: int, heads: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.heads, self.group = heads, group
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens / sp, dim) to the same."""
        (b, s, dim), n, h = x.shape, self.group.size(), self.heads
        d = dim // h
        qkv = self.qkv(x).view(b, s, n, h // n, 3, d).permute(2, 4, 0, 1, 3, 5)  # n 3 b s h d
        qkv = traded(qkv, self.group).permute(1, 2, 4, 0, 3, 5).reshape(3, b, h // n, n * s, d)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        mixed = mixed.view(b, h // n, n, s, d).permute(2, 0, 3, 1, 4)  # n b s h d
        mixed = traded(mixed, self.group).permute(1, 2, 0, 3, 4).reshape(b, s, dim)
        out: Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    """Attention, then two linear layers, each on a normalised residual stream."""

    def __init__(self, dim: int, heads: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, group)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens / sp, dim) to the same."""
        x = x + self.attention(self.norms[0](x))
        more: Tensor = self.down(F.gelu(self.up(self.norms[1](x))))
        return x + more


class GPT(nn.Module):
    """Next-byte logits for this rank's slice of the sequence."""

    def __init__(self, seq: int, dim: int, heads: int, layers: int, mesh: DeviceMesh) -> None:
        super().__init__()
        self.here, group = mesh.get_local_rank("sp"), mesh.get_group("sp")
        self.bytes = nn.Embedding(VOCABULARY, dim)
        self.places = nn.Embedding(seq, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, group) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens / sp) to (batch, tokens / sp, 256)."""
        length = tokens.shape[1]
        at = torch.arange(length, device=tokens.device) + self.here * length
        logits: Tensor = self.head(self.norm(self.blocks(self.bytes(tokens) + self.places(at))))
        return logits


def load(model: GPT, weights: dict[str, Tensor]) -> None:
    """The weights of the example's model at tp=1, whose embeddings and head are bare parameters."""
    names = {"bytes": "bytes.weight", "places": "places.weight", "head": "head.weight"}
    model.load_state_dict({names.get(name, name): value for name, value in weights.items()})


class Trainer:
    """The model on torch's own stack.

    Args:
        dp: how many ranks share out the samples.
        sp: how many share out each sequence.
        sizes: seq, dim, heads and layers of the model.
        weights: what it begins with.
        data: the windows.
        samples: this rank's, to be read in order.
        lr: of AdamW.
        wrapper: ``"DDP"`` or ``"FSDP2"``.
    """

    def __init__(
        self,
        dp: int,
        sp: int,
        sizes: dict[str, int],
        weights: dict[str, Tensor],
        data: Dataset[Tensor],
        samples: Samples,
        lr: float,
        wrapper: str,
    ) -> None:
        self.mesh = init_device_mesh("cpu", (dp, sp), mesh_dim_names=("dp", "sp"))
        self.accumulation_steps, self.seq = len(samples[0]), sizes["seq"]
        model = GPT(**sizes, mesh=self.mesh)
        load(model, weights)
        self.model = wrapped(model, wrapper)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.batches = iter(DataLoader(data, batch_sampler=[m for step in samples for m in step]))

    def slices(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's tokens of some windows, and those that follow them."""
        length = self.seq // self.mesh.size(1)
        begin = self.mesh.get_local_rank("sp") * length
        return windows[:, begin : begin + length], windows[:, begin + 1 : begin + length + 1]

    def step(self) -> float:
        """One optimizer step; the mean loss of all ranks before it. Collective."""
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(self.accumulation_steps):
            with synced(self.model, micro == self.accumulation_steps - 1):
                tokens, following = self.slices(next(self.batches))
                logits = self.model(tokens).flatten(0, 1)
                loss = F.cross_entropy(logits, following.flatten()) / self.accumulation_steps
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


def wrapped(model: GPT, wrapper: str) -> nn.Module:
    """The model over all ranks: gradients are averaged over dp and sp together."""
    if wrapper == "DDP":
        return DistributedDataParallel(model)
    world = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=world)
    fully_shard(model, mesh=world)
    return model


def synced(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Communicate gradients in the last micro batch alone."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()
