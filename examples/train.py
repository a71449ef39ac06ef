"""Train a byte-level GPT on real text, over data, sequence and tensor parallel ranks.

    torchrun --nproc-per-node 8 examples/train.py --dp 4 --sp 2 --tp 1

This is the tutorial for the use of a mesh in a trainer. Each axis appears in one place:

* dp: every data coordinate reads its own samples (``mesh.loader``);
* sp: every rank holds some tokens of each sequence (``"b s -> b s/sp"``). Attention exchanges
  slices of tokens for slices of heads (``"three b s/sp h d -> three b h/sp s d"``), or passes
  blocks of keys and values around (``mesh.shift``) with ``--attention ring`` (``attention.py``);
* tp: linear layers are split by columns, then by rows (Megatron-LM, arXiv:1909.08053). In front of
  columns, each rank goes on with its own part of the work (``*tp``): the backward sums gradients.
  Behind rows, all ranks do the same work (``=tp``): the backward sends nothing.

DDP averages gradients over ``mesh.gradient_group()`` once a step (``plan.sync_on_last``). The ranks
of this group, those along dp and sp, hold the same weights and read other tokens. Gradients are
clipped by the norm of the whole model, whose weights tp cuts (``mesh.clip_grad_norm``). Any axis
may have size 1, and the losses are equal on every mesh: each rank draws whole weights and keeps its
part, and ``mesh.batch`` gives each rank its exact share of one global order of samples.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import meshkit

if TYPE_CHECKING or __package__:  # examples.train
    from . import attention, options, text
else:  # a script, whose folder is on the path
    import attention
    import options
    import text


# How tp cuts weights, for the norm of their gradients. Each rank has a copy of all others.
CUT = {"*.qkv": "(h/tp k) i", "*.out": "o i/tp", "*.up": "o/tp i", "*.down": "o i/tp"}


def draw(mesh: meshkit.Mesh, cut: str, *shape: int) -> nn.Parameter:
    """Draw a whole weight, equal on all ranks by their common seed; return this rank's part."""
    return nn.Parameter(mesh.redistribute(torch.randn(shape) / shape[-1] ** 0.5, cut).clone())


class Block(nn.Module):
    """Attention, then two linear layers, each on a normalised residual stream."""

    def __init__(self, mesh: meshkit.Mesh, args: options.Options) -> None:
        super().__init__()
        self.mesh, self.args, dim, self.d = mesh, args, args.dim, args.dim // args.heads
        wide = torch.promote_types(getattr(torch, args.dtype), torch.float32)
        self.copy = mesh.redistribution("... =tp -> ... *tp", grad_dtype=wide)
        self.sum = mesh.redistribution("... +tp -> ... =tp")
        self.qkv = draw(mesh, "h k i -> (h/tp k) i", args.heads, 3 * self.d, dim)
        self.out = draw(mesh, "o i -> o i/tp", dim, args.heads * self.d)
        self.up = draw(mesh, "o i -> o/tp i", 4 * dim, dim)
        self.down = draw(mesh, "o i -> o i/tp", dim, 4 * dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens / sp, dim) to the same shape."""
        qkv = F.linear(self.copy(self.norms[0](x)), self.qkv).unflatten(2, (-1, 3, self.d))
        heads = attention.KINDS[self.args.attention](qkv.movedim(3, 0), self.mesh, self.args.plan)
        x = x + self.sum(F.linear(heads.flatten(2), self.out))
        up = F.linear(self.copy(self.norms[1](x)), self.up)
        return x + self.sum(F.linear(F.gelu(up), self.down))


class GPT(nn.Module):
    """The loss of this rank's slice of the sequence."""

    def __init__(self, mesh: meshkit.Mesh, args: options.Options) -> None:
        super().__init__()
        self.slice = mesh.redistribution("b s -> b s/sp", s=args.plan)
        self.bytes = draw(mesh, "o i -> o i", text.VOCABULARY, args.dim)
        self.positions = draw(mesh, "o i -> o i", args.seq, args.dim)
        self.blocks = nn.Sequential(*(Block(mesh, args) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.dim)
        self.head = draw(mesh, "o i -> o i", text.VOCABULARY, args.dim)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the mean loss, shape (), of this rank's tokens of windows (batch, seq + 1)."""
        tokens, following = self.slice(windows[:, :-1]), self.slice(windows[:, 1:])
        here = self.slice(torch.arange(len(self.positions), device=windows.device)[None])
        x = F.embedding(tokens, self.bytes) + F.embedding(here, self.positions)
        logits = F.linear(self.norm(self.blocks(x)), self.head)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


class Trainer:
    """A model on a mesh, with its share of the data."""

    def __init__(self, mesh: meshkit.Mesh, args: options.Options, data: text.Windows) -> None:
        self.mesh, self.mean = mesh, mesh.redistribution("... +dp +sp +tp -> ...", op="avg")
        sizes = {"global_batch": args.global_batch, "micro_batch": args.micro_batch}
        self.plan = mesh.batch(**sizes, uneven=args.uneven)
        self.loader = mesh.loader(data, self.plan, shuffle=True, seed=args.seed, tail="drop")
        self.windows = chain.from_iterable(repeat(self.loader))  # epoch after epoch
        model = GPT(mesh, args).to(mesh.device, getattr(torch, args.dtype))
        self.model = DistributedDataParallel(model, process_group=mesh.gradient_group())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def step(self, *, stop: bool = False) -> list[float]:
        """Run one optimizer step; return the loss before it, and the share of ranks that stop."""
        parts = torch.tensor([0, stop], dtype=torch.float64, device=self.mesh.device)
        for micro, windows in zip(self.plan.micro_batches(0), self.windows, strict=False):
            with self.plan.sync_on_last(self.model, micro):
                loss = self.model(windows) * micro.weight
                loss.backward()
            parts[0] += loss.detach()
        means = self.mean(parts).tolist()  # before the weights change, for examples/survive.py
        self.mesh.clip_grad_norm(self.model, 1.0, layout=CUT)
        self.mesh.commit()  # no rank takes the step if a collective has failed on any
        self.optimizer.step()
        self.optimizer.zero_grad()
        return means

    @torch.no_grad()
    def held_out(self, data: text.Windows) -> float:
        """Return the loss on one global batch of text outside the training set. Collective."""
        losses = [self.model(data[m.samples]) * m.weight for m in self.plan.micro_batches(0)]
        return float(self.mean(torch.stack(losses).sum()))


def train(mesh: meshkit.Mesh, args: options.Options) -> list[float]:
    """Run all steps, or those until a signal; return the loss of each step."""
    whole = text.read_text(args.text).to(mesh.device)
    data, held = (text.Windows(x, args.seq) for x in whole.tensor_split([len(whole) * 9 // 10]))
    trainer, log = Trainer(mesh, args, data), print if mesh.rank == 0 else lambda *_: None
    log(f"{mesh}\n{trainer.plan}\n{len(whole):,} bytes of text")
    mesh.check_batch(next(iter(trainer.loader)))  # equal over sp and tp, different over dp
    before, losses, began = trainer.held_out(held), [], time.perf_counter()
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    for step in range(args.steps):
        loss, stop = trainer.step(stop=bool(signals))
        losses.append(loss)
        if stop or step % args.log_every == 0 or step == args.steps - 1:
            speed = args.global_batch * args.seq * len(losses) / (time.perf_counter() - began)
            log(f"step {step:4d}  loss {loss:.4f}  {speed:,.0f} tokens/s")
        if stop:
            log("stopped by a signal, all ranks at the same step")
            break
    log(f"held-out loss {before:.4f} -> {trainer.held_out(held):.4f}")
    return losses


def parse(argv: Sequence[str] | None, parser: options.Parser | None = None) -> options.Options:
    """Return the options of the command line, and the plan of a sequence."""
    args = (parser or options.trainer_parser(attention.KINDS)).parse_args(argv)
    args.order = "zigzag" if args.attention == "ring" else "contiguous"  # the fastest ones
    args.plan = meshkit.SequencePlan(args.seq, args.sp, args.order)
    return args


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Join the job, build the mesh and train; return the loss of each step."""
    args = parse(argv)
    meshkit.init(device=args.device, seed=args.seed)
    try:
        with meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp) as mesh, mesh.guard():
            return train(mesh, args)
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
