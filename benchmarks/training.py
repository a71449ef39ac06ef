"""Training: tokens/s of ``examples/train.py`` at dp=4 sp=2 tp=1, beside torch's own stack.

Both sides train the same model from the same weights on the same samples, in one job of 8 ranks:
some steps of meshkit's, some of torch's, in turns. All ranks begin a turn together, and its time is
that of the slowest rank. Both sides must report the same losses. Torch's side is a ``DeviceMesh``,
DDP over all ranks, and Ulysses over sp by torch's differentiable all-to-all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import meshkit
from examples import train as example
from examples.text import Windows, read_text

from .harness import Figures, Goal, Row, compare, turn

SIZES = {"dp": 4, "sp": 2, "tp": 1}
RANKS = 8
PEER = "torch DDP + all_to_all"
AT_LEAST = Goal("ratio", ">=", 1)
TOLERANCE = 1e-4  # relative, of a loss: float32, summed in another order

Losses = list[float]


def run(quick: bool) -> list[Row]:
    """Return the row of tokens/s."""
    steps, repeats = (1, 2) if quick else (4, 15)
    by_rank = meshkit.spawn(train_both, RANKS, (SIZES, steps, repeats), timeout=600)
    check_losses(*by_rank[0][:2])
    return [tokens_row([times for _, _, times in by_rank], steps)]


def check_losses(ours: Losses, theirs: Losses) -> None:
    """Raise RuntimeError if the two sides report different losses."""
    if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=0):
        raise RuntimeError(f"meshkit and {PEER} report different losses: {ours} and {theirs}")


def tokens_row(by_rank: list[Figures], steps: int) -> Row:
    """Return the tokens/s of the slowest rank, from the seconds of ``steps`` steps on each."""
    args = options(SIZES)
    tokens = steps * args.global_batch * args.seq
    ours, theirs = (tokens / np.max(by_rank, axis=0)).tolist()
    return compare("training, dp=4 sp=2 tp=1", RANKS, PEER, "tokens/s", (ours, theirs), AT_LEAST)


def options(sizes: dict[str, int]) -> argparse.Namespace:
    """Return the options of the example, on the host."""
    return example.parse(["--device=cpu", *(f"--{axis}={size}" for axis, size in sizes.items())])


def train_both(sizes: dict[str, int], steps: int, repeats: int) -> tuple[Losses, Losses, Figures]:
    """Return the losses of both sides, and the seconds of ``steps`` of each in turns. Collective.

    The first turn of each side does not count.
    """
    args = options(sizes)
    meshkit.init(device=args.device, seed=args.seed)
    with meshkit.build_mesh(sizes) as mesh:
        data = Windows(read_text(None), args.seq)
        ours = example.Trainer(mesh, args, data)
        theirs = TorchTrainer(args, ours, data, steps * (1 + repeats))
        sides = (lambda: ours.step()[0]), theirs.step
        losses: tuple[Losses, Losses] = ([], [])
        times: Figures = ([], [])
        for repeat in range(1 + repeats):
            for side in turn(repeat):
                with (mesh.guard, nullcontext)[side]():  # the example trains inside a guard
                    times[side].append(seconds(sides[side], steps, losses[side]))
        dist.barrier()
    return *losses, (times[0][1:], times[1][1:])


def seconds(step: Callable[[], float], steps: int, losses: Losses) -> float:
    """Return the seconds of some steps, and append their losses. Collective."""
    dist.barrier()
    began = time.perf_counter()
    losses += [step() for _ in range(steps)]
    return time.perf_counter() - began


class TorchTrainer:
    """The model of the example on torch's own stack, with the weights and samples of ours."""

    def __init__(
        self, args: argparse.Namespace, ours: example.Trainer, data: Windows, steps: int
    ) -> None:
        self.mesh = init_device_mesh("cpu", (args.dp, args.sp), mesh_dim_names=("dp", "sp"))
        order = {"shuffle": True, "seed": args.seed, "tail": "drop"}
        sampler = ours.mesh.sampler(data, ours.plan, **order)
        samples = [  # (steps, micro batches, samples)
            [micro.samples.tolist() for micro in sampler.micro_batches(step)]
            for step in range(steps)
        ]
        self.num_micro_batches, self.length = len(samples[0]), args.seq // args.sp
        self.begin = self.mesh.get_local_rank("sp") * self.length
        model = _GPT(args, self.mesh)
        weights = {name.removeprefix("module."): w for name, w in ours.model.state_dict().items()}
        bare = {name for name in weights if "norm" not in name}  # parameters without a layer
        model.load_state_dict({f"{n}.weight" if n in bare else n: w for n, w in weights.items()})
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.batches = iter(DataLoader(data, batch_sampler=[m for step in samples for m in step]))

    def step(self) -> float:
        """Run one optimizer step, and return the mean loss of all ranks before it. Collective."""
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(self.num_micro_batches):
            last = micro == self.num_micro_batches - 1
            with nullcontext() if last else self.model.no_sync():
                windows = next(self.batches)[:, self.begin :]
                logits = self.model(windows[:, : self.length]).flatten(0, 1)
                following = windows[:, 1 : self.length + 1].flatten()
                loss = F.cross_entropy(logits, following) / self.num_micro_batches
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


class _GPT(nn.Module):
    """Map this rank's tokens, (batch, tokens / sp), to next-byte logits, (..., 256)."""

    def __init__(self, args: argparse.Namespace, mesh: DeviceMesh) -> None:
        super().__init__()
        self.sp_rank, self.group = mesh.get_local_rank("sp"), mesh.get_group("sp")
        self.heads = args.heads
        self.bytes, self.positions = nn.Embedding(256, args.dim), nn.Embedding(args.seq, args.dim)
        self.blocks = nn.ModuleList([_block(args.dim) for _ in range(args.layers)])
        self.norm, self.head = nn.LayerNorm(args.dim), nn.Linear(args.dim, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.bytes(tokens) + self.positions(torch.arange(length) + self.sp_rank * length)
        block: Any  # a ModuleDict
        for block in self.blocks:
            x = x + block.out(self.mix(block.qkv(block.norms[0](x))))
            x = x + block.down(F.gelu(block.up(block.norms[1](x))))
        logits: Tensor = self.head(self.norm(x))
        return logits

    def mix(self, qkv: Tensor) -> Tensor:
        """Run causal attention; ranks of sp exchange slices of tokens for slices of heads."""
        (b, s, width), n, h = qkv.shape, self.group.size(), self.heads
        d = width // (3 * h)
        qkv = qkv.view(b, s, n, h // n, 3, d).permute(2, 4, 0, 1, 3, 5)  # n 3 b s h d
        qkv = exchange(qkv, self.group).permute(1, 2, 4, 0, 3, 5).reshape(3, b, h // n, n * s, d)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        mixed = mixed.view(b, h // n, n, s, d).permute(2, 0, 3, 1, 4)  # n b s h d
        return exchange(mixed, self.group).permute(1, 2, 0, 3, 4).reshape(b, s, width // 3)


def _block(dim: int) -> nn.ModuleDict:
    linear = partial(nn.Linear, bias=False)
    norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
    attention = {"qkv": linear(dim, 3 * dim), "out": linear(dim, dim)}
    layers = {"up": linear(dim, 4 * dim), "down": linear(4 * dim, dim)}
    return nn.ModuleDict({"norms": norms, **attention, **layers})


def exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send block i of dim 0 to rank i of the group. Collective, differentiable."""
    all_to_all: Callable[..., Tensor] = collective.all_to_all_single
    return all_to_all(torch.empty(x.shape), x.contiguous(), group=group)
