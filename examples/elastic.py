r"""Train on the available nodes: after the loss of a node, the others continue the same steps.

    torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d \
        --rdzv-endpoint node1:29400 --rdzv-id job examples/elastic.py --save /shared/job

(The page on elastic jobs has the timeouts with which torchrun notices a lost node in seconds.)
Start the command on both nodes. If one node fails, collectives on the other raise inside
``mesh.guard``, and its workers exit with an error. The agent of torchrun starts new workers in a
smaller world. They build the same mesh and the same plan, which keep the global batch for any dp::

    dp=4    32 samples in micro batches of 2    4 on each rank
    dp=3    the same samples                    6, 5 and 5, and a filler on the last two
    dp=2    the same samples                    8 on each rank

They resume from the checkpoint, with the losses of the larger world. Steps since the checkpoint are
lost and repeated with the same samples. ``--save-every`` limits their number.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import meshkit

if TYPE_CHECKING or __package__:  # examples.elastic
    from .options import make_parser
    from .text import VOCABULARY, Windows, read_text
else:  # a script, whose folder is on the path
    from options import make_parser
    from text import VOCABULARY, Windows, read_text


class Trainer:
    """A model under DDP with this rank's share of the data."""

    def __init__(self, mesh: meshkit.Mesh, args: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(args.seed)  # every rank draws the same weights
        inner, outer = nn.Linear(args.dim, 4 * args.dim), nn.Linear(4 * args.dim, VOCABULARY)
        plain = nn.Sequential(nn.Embedding(VOCABULARY, args.dim), inner, nn.GELU(), outer)
        self.mesh, self.device = mesh, device
        self.plain = plain.to(device, getattr(torch, args.dtype))
        self.model = DistributedDataParallel(self.plain, process_group=mesh.gradient_group())
        self.optimizer = torch.optim.AdamW(self.plain.parameters(), lr=args.lr)
        batches = {"global_batch": args.global_batch, "micro_batch": args.micro_batch}
        self.plan = mesh.batch(**batches, uneven=True)
        self.data = Windows(read_text(args.text), args.seq)
        self.losses: list[float] = []  # one for each step, with those before a restart

    def step(self) -> list[int]:
        """Run the next optimizer step; return the samples that all ranks read for it, in order."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        read = torch.full((self.plan.accumulation_steps, self.plan.micro_batch), -1)
        for micro in self.plan.micro_batches(len(self.losses)):
            windows = self.data[micro.samples].to(self.device)
            with self.plan.sync_on_last(self.model, micro):
                logits = self.model(windows[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
                (loss * micro.weight).backward()
            total += loss.detach() * micro.weight
            if not micro.is_filler:
                read[micro.index] = torch.from_numpy(micro.samples)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total, group=self.mesh.group("dp"))
        self.losses.append(float(total) / self.mesh.size("dp"))
        return self.gather_samples(read.to(self.device))

    def gather_samples(self, read: torch.Tensor) -> list[int]:
        """Return the samples of all ranks, without fillers. Collective."""
        parts = [torch.empty_like(read) for _ in range(self.mesh.size("dp"))]
        dist.all_gather(parts, read, group=self.mesh.group("dp"))
        return sorted(sample for sample in torch.cat(parts).flatten().tolist() if sample >= 0)

    def save(self, path: Path) -> None:
        """Write a new file and rename it, so that a crash leaves a complete checkpoint."""
        state = {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict()}
        new_path = path.with_suffix(".new")
        torch.save({**state, "losses": self.losses}, new_path)
        os.replace(new_path, path)

    def resume(self, path: Path) -> None:
        """Load the checkpoint, if it exists; all ranks raise if their steps differ. Collective."""
        if path.exists():
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.plain.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.losses = state["losses"]
        self.mesh.agree("steps in the checkpoint", len(self.losses))


def train(mesh: meshkit.Mesh, args: argparse.Namespace, device: torch.device) -> list[float]:
    """Run the remaining steps; return the loss of every step."""
    trainer, checkpoint = Trainer(mesh, args, device), args.save / "checkpoint.pt"
    trainer.resume(checkpoint)
    first = mesh.rank == 0
    if first:
        print(f"from step {len(trainer.losses)}: {trainer.plan}", flush=True)
    while (step := len(trainer.losses)) < args.steps:
        samples, loss = trainer.step(), trainer.losses[-1]
        if first:
            record = {"step": step, "dp": mesh.size("dp"), "loss": loss, "samples": samples}
            path = args.save / "log.jsonl"
            with path.open("a") as log:  # the last line of a repeated step counts
                log.write(json.dumps(record) + "\n")
        if first and ((step + 1) % args.save_every == 0 or step + 1 == args.steps):
            trainer.save(checkpoint)
        if first and step % args.log_every == 0:
            print(f"step {step:4d}  loss {loss:.4f}  dp={mesh.size('dp')}", flush=True)
    return trainer.losses


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    sizes = {"seq": 64, "dim": 64, "global-batch": 32, "micro-batch": 2, "steps": 500}
    sizes |= {"save-every": 10, "log-every": 10, "timeout": 60}
    parser = make_parser("Train on the available nodes.", sizes)
    parser.add_argument("--save", type=Path, required=True, help="a folder that all nodes see")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Join the job, build the mesh of all ranks and train; return the loss of each step."""
    args = parse(argv)
    args.save.mkdir(parents=True, exist_ok=True)
    world = meshkit.init(device=args.device, seed=args.seed, arrival_timeout=args.timeout)
    try:
        with meshkit.build_mesh(dp=-1) as mesh, mesh.guard(timeout=args.timeout):
            return train(mesh, args, world.device or torch.device("cpu"))
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
