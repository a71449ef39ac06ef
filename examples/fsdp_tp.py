"""Combine FSDP2 and tensor parallelism on one mesh, with a checkpoint for any other mesh.

    torchrun --nproc-per-node 8 examples/fsdp_tp.py --dp 4 --tp 2 --save /tmp/ckpt
    torchrun --nproc-per-node 8 examples/fsdp_tp.py --dp 2 --tp 4 --resume /tmp/ckpt

The model is plain PyTorch without any knowledge of dp and tp. ``mesh.device_mesh("(dp sp) tp")`` is
the common root that FSDP2 needs. ``parallelize_module`` uses its slice ``tp`` and ``fully_shard``
its slice ``dp_sp``: weights are sharded, and gradients averaged, over dp and sp. With ``--sp`` each
rank holds a slice of the sequence, and attention passes keys and values around the ring of sp
(``attention.py``).

The second run prints the losses of a continued first run. Samples, order and weights do not depend
on the mesh, if ``--seed``, ``--seq`` and ``--global-batch`` are the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import meshkit

if TYPE_CHECKING or __package__:  # examples.fsdp_tp
    from .attention import ring
    from .options import make_parser
    from .text import VOCABULARY, Windows, read_text
else:  # a script, whose folder is on the path
    from attention import ring
    from options import make_parser
    from text import VOCABULARY, Windows, read_text

PLAN: dict[str, ParallelStyle] = {
    "qkv": ColwiseParallel(),
    "out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class Block(nn.Module):
    """Attention, then two linear layers, each on a normalised residual stream."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace) -> None:
        super().__init__()
        dim, self.head_dim = args.dim, args.dim // args.heads
        self.mesh, self.plan = mesh, mesh.sequence(args.seq).plan
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens / sp, dim) to the same shape."""
        qkv = self.qkv(self.norms[0](x))
        qkv = rearrange(qkv, "b s (h three d) -> three b s h d", three=3, d=self.head_dim)
        x = x + self.out(rearrange(ring(qkv, self.mesh, self.plan), "b s h d -> b s (h d)"))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """The loss of this rank's slice of the sequence."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace) -> None:
        super().__init__()
        self.shard = mesh.sequence(args.seq)
        self.bytes = nn.Embedding(VOCABULARY, args.dim)
        self.positions = nn.Embedding(args.seq, args.dim)
        self.blocks = nn.ModuleList(Block(mesh, args) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.dim), nn.Linear(args.dim, VOCABULARY)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss, shape (), of tokens and targets (batch, tokens / sp)."""
        x = self.bytes(tokens) + self.positions(self.shard.positions)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def shard(model: GPT, root: DeviceMesh) -> None:
    """Split the layers over tp, and shard all weights over dp and sp. Collective."""
    for block in model.blocks:
        parallelize_module(block, root["tp"], PLAN)
        fully_shard(block, mesh=root["dp_sp"])
    fully_shard(model, mesh=root["dp_sp"])


class Trainer:
    """A sharded model with its share of the data, from step 0 or from a checkpoint."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(args.seed)  # every rank draws the whole model and keeps its part
        model = GPT(mesh, args).to(device, getattr(torch, args.dtype))
        self.mesh, self.device, self.model = mesh, device, model
        shard(model, mesh.device_mesh("(dp sp) tp"))
        # a fused update does not mix weights with one and with two sharded dims
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
        self.plan = mesh.batch(global_batch=args.global_batch, micro_batch=args.micro_batch)

    def step(self, data: Windows, step: int) -> float:
        """Run one optimizer step; return the loss before it, equal on every rank."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        take = self.model.shard.take
        for micro in self.plan.micro_batches(step):
            windows = data[micro.samples].to(self.device)
            with self.plan.sync_on_last(self.model, micro):
                loss = self.model(take(windows[:, :-1]), take(windows[:, 1:])) * micro.weight
                loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total, group=self.mesh.group("dp", "sp"))
        return float(total) / self.mesh.size("dp", "sp")

    def save(self, folder: Path, step: int) -> None:
        """Write every shard once. Collective."""
        weights, moments = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=folder)

    def resume(self, folder: Path) -> int:
        """Load this rank's shards, written by any mesh; return the next step. Collective."""
        weights, moments = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return int(state["step"])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    sizes = {"dp": -1, "sp": 1, "tp": 1, "seq": 128, "dim": 64, "layers": 2, "heads": 8}
    sizes |= {"global-batch": 32, "micro-batch": 4, "steps": 20}
    parser = make_parser("Train a byte-level GPT with FSDP2 and TP.", sizes)
    parser.add_argument("--save", type=Path, help="a folder to write a checkpoint to, at the end")
    parser.add_argument("--resume", type=Path, help="a folder that --save has written")
    return parser.parse_args(argv)


def train(mesh: meshkit.Mesh, args: argparse.Namespace, device: torch.device) -> list[float]:
    """Run the steps after those of a checkpoint; return the loss of each."""
    data = Windows(read_text(args.text), args.seq)
    trainer = Trainer(mesh, args, device)
    first = trainer.resume(args.resume) if args.resume else 0
    losses = []
    for step in range(first, first + args.steps):
        losses.append(trainer.step(data, step))
        if mesh.rank == 0:
            print(f"step {step:4d}  loss {losses[-1]:.4f}")
    if args.save:
        trainer.save(args.save, first + args.steps)
    return losses


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Join the job, build the mesh and train; return the loss of each step."""
    args = parse(argv)
    if args.heads % args.tp or args.seq % args.sp or args.dim % args.heads:
        raise SystemExit("--heads must divide by tp, --seq by sp, and --dim by --heads")
    world = meshkit.init(device=args.device, seed=args.seed)
    try:
        with meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp) as mesh, mesh.guard():
            return train(mesh, args, world.device or torch.device("cpu"))
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
