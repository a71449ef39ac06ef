"""Train a byte-level GPT on real text, over data, sequence and tensor parallel ranks.

    torchrun --nproc-per-node 8 examples/train.py --dp 4 --sp 2 --tp 1

This is the tutorial for the use of a mesh in a trainer. Each axis appears in one place:

* dp: every data coordinate reads its own samples (``mesh.sampler``);
* sp: every rank holds some tokens of each sequence (``mesh.sequence``). Attention exchanges slices
  of tokens for slices of heads with an all-to-all over ``mesh.group("sp")``. With
  ``--attention ring`` it passes blocks of keys and values to ``mesh.neighbor("sp", 1)``
  (``attention.py``);
* tp: linear layers are split by columns, then by rows, with one all-reduce over
  ``mesh.group("tp")`` (``Column`` and ``Row``; Megatron-LM, arXiv:1909.08053).

DDP averages gradients over ``mesh.gradient_group()`` once a step (``plan.sync_on_last``). The ranks
of this group, those along dp and sp, hold the same weights and read other tokens. Any axis may have
size 1, and the losses are equal on every mesh: each rank draws whole weights and keeps its part,
and ``mesh.batch`` gives each rank its exact share of one global order of samples.
"""

from __future__ import annotations

import argparse
import math
import signal
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import meshkit
from meshkit.core.data.micro_batch import MicroBatch

if TYPE_CHECKING or __package__:  # examples.train
    from .attention import KINDS, ORDERS, all_reduce, communicate, identity
else:  # a script, whose folder is on the path
    from attention import KINDS, ORDERS, all_reduce, communicate, identity

VOCABULARY = 256  # bytes
Pair = tuple[MicroBatch, Tensor]


def weight(rows: int, columns: int, draw: torch.Generator) -> Tensor:
    """Return a whole weight. Every rank draws the same numbers in the same order."""
    return torch.randn(rows, columns, generator=draw) / math.sqrt(columns)


class Column(nn.Module):
    """A linear layer with outputs divided over tp."""

    def __init__(self, mesh: meshkit.Mesh, whole: Tensor) -> None:
        super().__init__()
        self.group, parts = mesh.group("tp"), whole.chunk(mesh.size("tp"), dim=0)
        self.weight = nn.Parameter(parts[mesh.coordinate["tp"]].clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (..., outputs / tp)."""
        return F.linear(communicate(x, identity, all_reduce, self.group), self.weight)


class Row(nn.Module):
    """A linear layer with inputs divided over tp."""

    def __init__(self, mesh: meshkit.Mesh, whole: Tensor) -> None:
        super().__init__()
        self.group, parts = mesh.group("tp"), whole.chunk(mesh.size("tp"), dim=1)
        self.weight = nn.Parameter(parts[mesh.coordinate["tp"]].clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs / tp) to (..., outputs)."""
        return communicate(F.linear(x, self.weight), all_reduce, identity, self.group)


class Attention(nn.Module):
    """Causal attention: tp ranks split the heads, sp ranks split the tokens."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace, draw: torch.Generator) -> None:
        super().__init__()
        self.mesh, self.attend = mesh, KINDS[args.attention]
        self.plan = mesh.sequence(args.seq, order=ORDERS[args.attention]).plan
        self.head_dim = args.dim // args.heads
        self.qkv = Column(mesh, weight(3 * args.dim, args.dim, draw))
        self.out = Row(mesh, weight(args.dim, args.dim, draw))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens / sp, dim) to the same shape."""
        qkv = rearrange(self.qkv(x), "b s (h three d) -> three b s h d", three=3, d=self.head_dim)
        return self.out(rearrange(self.attend(qkv, self.mesh, self.plan), "b s h d -> b s (h d)"))


class Block(nn.Module):
    """Attention, then two linear layers, each on a normalised residual stream."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace, draw: torch.Generator) -> None:
        super().__init__()
        self.attention = Attention(mesh, args, draw)
        self.up = Column(mesh, weight(4 * args.dim, args.dim, draw))
        self.down = Row(mesh, weight(args.dim, 4 * args.dim, draw))
        self.norms = nn.ModuleList([nn.LayerNorm(args.dim), nn.LayerNorm(args.dim)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens / sp, dim) to the same shape."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Next-byte logits for this rank's slice of the sequence."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(args.seed)
        self.bytes = nn.Parameter(weight(VOCABULARY, args.dim, draw))
        self.positions = nn.Parameter(weight(args.seq, args.dim, draw))
        self.shard = mesh.sequence(
            args.seq, order=ORDERS[args.attention]
        )  # the tokens of this rank
        self.blocks = nn.Sequential(*(Block(mesh, args, draw) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Parameter(weight(VOCABULARY, args.dim, draw))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens / sp) to (batch, tokens / sp, 256)."""
        x = F.embedding(tokens, self.bytes) + self.shard.take(self.positions, dim=0)
        return F.linear(self.norm(self.blocks(x)), self.head)


def read_text(path: Path | None) -> Tensor:
    """Return the bytes of a file; by default those of the standard library, sorted by name."""
    files = [path] if path else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    whole = bytearray(b"".join(file.read_bytes() for file in files))
    return torch.from_numpy(np.asarray(whole))


class Windows(Dataset[Tensor]):
    """A text cut into windows of ``seq`` bytes, each with the byte that follows."""

    def __init__(self, text: Tensor, seq: int) -> None:
        self.text, self.seq = text, seq

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.seq

    def __getitem__(self, samples: Any) -> Tensor:
        """One window, (seq + 1,), or those of an array of samples, (..., seq + 1)."""
        starts = torch.as_tensor(samples) % len(self) * self.seq
        return self.text[starts[..., None] + torch.arange(self.seq + 1)].long()


class Trainer:
    """A model on a mesh, with its share of the data."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace, data: Windows) -> None:
        self.mesh, self.device = mesh, args.device
        self.plan = mesh.batch(global_batch=args.global_batch, micro_batch=args.micro_batch)
        self.sampler = mesh.sampler(data, self.plan, shuffle=True, seed=args.seed, tail="drop")
        self.loader = DataLoader(data, batch_sampler=self.sampler)
        model = GPT(mesh, args).to(args.device, getattr(torch, args.dtype))
        self.shard = model.shard
        self.model = DistributedDataParallel(model, process_group=mesh.gradient_group())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def steps(self) -> Iterator[list[Pair]]:
        """Yield the micro batches of each step with their windows, epoch after epoch."""
        while True:
            windows = iter(self.loader)
            for step in range(self.sampler.steps):
                yield [(micro, next(windows)) for micro in self.sampler.micro_batches(step)]

    def loss(self, windows: Tensor) -> Tensor:
        """Return the mean loss of this rank's tokens of some windows."""
        tokens, following = self.shard.take(windows[:, :-1]), self.shard.take(windows[:, 1:])
        logits = self.model(tokens.to(self.device)).flatten(0, 1)
        return F.cross_entropy(logits, following.to(self.device).flatten())

    def step(self, pairs: list[Pair]) -> Tensor:
        """Run one optimizer step; return this rank's part of the loss before it."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro, windows in pairs:
            with self.plan.sync_on_last(self.model, micro):
                loss = self.loss(windows) * micro.weight
                loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    @torch.no_grad()
    def held_out(self, data: Windows) -> float:
        """Return the loss on one global batch of text outside the training set."""
        losses = [self.loss(data[m.samples]) * m.weight for m in self.plan.micro_batches(0)]
        return self.mean(torch.stack(losses).sum().double(), stop=False)[0]

    def mean(self, part: Tensor, *, stop: bool) -> tuple[float, bool]:
        """Return the mean loss of all ranks, and whether any rank stops. Collective."""
        both = torch.stack([part, torch.tensor(float(stop)).to(part)])
        dist.all_reduce(both, group=self.mesh.group())
        loss, stops = both.tolist()
        return loss / self.mesh.size(), stops > 0


def train(mesh: meshkit.Mesh, args: argparse.Namespace) -> list[float]:
    """Run all steps, or those until a signal; return the loss of each step."""
    text = read_text(args.text)
    split = len(text) * 9 // 10
    data, held = Windows(text[:split], args.seq), Windows(text[split:], args.seq)
    trainer = Trainer(mesh, args, data)
    log = print if mesh.rank == 0 else lambda *_: None
    log(f"{mesh}\n{trainer.plan}\n{len(text):,} bytes of text")
    before, losses, began = trainer.held_out(held), [], time.perf_counter()
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    for step, pairs in zip(range(args.steps), trainer.steps(), strict=False):
        if step == 0:
            mesh.check_batch(
                [windows for _, windows in pairs]
            )  # equal over sp and tp, different over dp
        loss, stop = trainer.mean(trainer.step(pairs), stop=bool(signals))
        losses.append(loss)
        if stop or step % args.log_every == 0 or step == args.steps - 1:
            speed = args.global_batch * args.seq * len(losses) / (time.perf_counter() - began)
            log(f"step {step:4d}  loss {loss:.4f}  {speed:,.0f} tokens/s")
        if stop:
            log("stopped by a signal, all ranks at the same step")
            break
    log(f"held-out loss {before:.4f} -> {trainer.held_out(held):.4f}")
    return losses


def positive(text: str) -> int:
    """Return the value of an option as an int of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Train a byte-level GPT over a mesh.")
    for axis, default in {"dp": -1, "sp": 1, "tp": 1}.items():
        parser.add_argument(f"--{axis}", type=positive, default=default)
    sizes = {"seq": 128, "dim": 64, "layers": 2, "heads": 8, "global-batch": 32, "micro-batch": 4}
    for name, default in {**sizes, "steps": 150, "log-every": 10}.items():
        parser.add_argument(f"--{name}", type=positive, default=default)
    parser.add_argument("--attention", choices=list(KINDS), default="ulysses", help="over sp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--device", help="cpu or cuda; default: the accelerator, if there is one")
    parser.add_argument("--text", type=Path, help="a file to train on")
    return parser.parse_args(argv)


def check(args: argparse.Namespace) -> None:
    """Check files and sizes before joining the job."""
    if args.text is not None and not args.text.is_file():
        raise SystemExit(f"--text {args.text}: no such file")
    if args.heads % args.tp:
        raise SystemExit("--heads must divide by tp")
    if args.attention == "ulysses" and args.heads % (args.sp * args.tp):
        raise SystemExit("--heads must divide by sp x tp, or by tp alone with --attention ring")
    if args.dim % args.heads:
        raise SystemExit("--dim must divide by --heads")
    meshkit.SequencePlan(args.seq, args.sp, ORDERS[args.attention])  # raises if it does not divide


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Join the job, build the mesh and train; return the loss of each step."""
    args = parse(argv)
    check(args)
    args.device = meshkit.init(device=args.device, seed=args.seed).device or torch.device("cpu")
    try:
        with meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp) as mesh, mesh.guard():
            return train(mesh, args)
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
