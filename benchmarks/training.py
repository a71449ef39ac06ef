"""Training: tokens/s of ``examples/train.py`` at dp=4 sp=2 tp=1 beside torch's own stack.

The same model from the same weights on the same samples, in one job of 8 ranks: some steps of ours,
some of theirs, in turns, each beginning together and timed on the slowest rank. Before that both
must report the same losses. See :mod:`benchmarks.torch_gpt` for what torch's own stack is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist

import meshkit
from examples import train as example

from . import torch_gpt
from .clock import Times
from .rows import Goal, Row, compared

SIZES = {"dp": 4, "sp": 2, "tp": 1}
RANKS = 8
WRAPPERS = {"DDP": "torch DDP + all_to_all", "FSDP2": "torch FSDP2 + all_to_all"}
AT_LEAST = {"DDP": Goal("ratio", ">=", 1), "FSDP2": None}  # ours is DDP: the goal is beside it
TOLERANCE = 1e-4  # of a loss: float32, summed in another order

Losses = list[float]


def run(quick: bool) -> list[Row]:
    """One job for each of torch's ways to share out a model."""
    steps, repeats = (1, 2) if quick else (4, 15)
    rows = []
    for wrapper, name in WRAPPERS.items():
        found = meshkit.spawn(job, RANKS, (SIZES, wrapper, steps, repeats), timeout=600)
        check(name, *(losses for losses in found[0][:2]))
        rows.append(row(wrapper, [times for _, _, times in found], steps))
    return rows


def check(name: str, ours: Losses, theirs: Losses) -> None:
    """Refuse two sides that did not train the same.

    Raises:
        RuntimeError: where a loss differs.
    """
    if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=0):
        raise RuntimeError(f"meshkit and {name} report other losses: {ours} and {theirs}")


def row(wrapper: str, by_rank: list[Times], steps: int) -> Row:
    """Tokens/s of the slowest rank."""
    args = options(SIZES)
    tokens = steps * args.global_batch * args.seq
    ours, theirs = (tokens / np.max(by_rank, axis=0)).tolist()
    what, peer = "training, dp=4 sp=2 tp=1", WRAPPERS[wrapper]
    return compared(what, RANKS, peer, "tokens/s", (ours, theirs), AT_LEAST[wrapper])


def options(sizes: Mapping[str, int]) -> argparse.Namespace:
    """Those of the example, on the host."""
    args = example.parse([f"--{axis}={size}" for axis, size in sizes.items()])
    args.device = torch.device("cpu")
    return args


def job(
    sizes: Mapping[str, int], wrapper: str, steps: int, repeats: int
) -> tuple[Losses, Losses, Times]:
    """What one rank does: the losses of both, and seconds of ``steps`` of each, in turns."""
    args = options(sizes)
    meshkit.init(device="cpu", seed=args.seed)
    with meshkit.build_mesh(sizes) as mesh:
        data = example.Windows(example.read_text(None), args.seq)
        ours = example.Trainer(mesh, args, data)
        theirs = torch_trainer(args, ours, data, wrapper, steps * (1 + repeats))
        turn = ours.steps()
        sides = (lambda: our_step(ours, turn), theirs.step)
        losses: tuple[Losses, Losses] = ([], [])
        times: Times = ([], [])
        for repeat in range(1 + repeats):
            for which in (0, 1) if repeat % 2 == 0 else (1, 0):
                with (mesh.guard, nullcontext)[which]():  # the example trains inside a guard
                    times[which].append(seconds(sides[which], steps, losses[which]))
        dist.barrier()
    return *losses, (times[0][1:], times[1][1:])


def our_step(trainer: example.Trainer, steps: Iterator[list[example.Pair]]) -> float:
    """One step, as the example runs it, and the loss of all ranks. Collective."""
    return trainer.mean(trainer.step(next(steps)), stop=False)[0]


def torch_trainer(
    args: argparse.Namespace,
    ours: example.Trainer,
    data: example.Windows,
    wrapper: str,
    steps: int,
) -> torch_gpt.Trainer:
    """Torch's own, with the weights of ours and the samples that ours will read. Collective."""
    sizes = {name: getattr(args, name) for name in ("seq", "dim", "heads", "layers")}
    weights = {name.removeprefix("module."): w for name, w in ours.model.state_dict().items()}
    samples = [
        [m.samples.tolist() for m in ours.sampler.micro_batches(step)] for step in range(steps)
    ]
    return torch_gpt.Trainer(args.dp, args.sp, sizes, weights, data, samples, args.lr, wrapper)


def seconds(step: Callable[[], float], steps: int, losses: Losses) -> float:
    """Seconds of some steps that all ranks begin together; their losses are added. Collective."""
    dist.barrier()
    began = time.perf_counter()
    losses += [step() for _ in range(steps)]
    return time.perf_counter() - began
