"""Train with ZeRO of DeepSpeed on a mesh: dp=2, and each sequence divided over sp=2.

    torchrun --nproc-per-node 4 examples/with_deepspeed.py

DeepSpeed gets the groups of the mesh through ``mpu=`` and creates none. It gets the batch through
``config(plan)``, with 4 micro batches per step, and ``engine.backward`` divides by their number.
DeepSpeed averages gradients over dp and sums them over sp, so each rank passes its share of the
mean over the sequence. On a CPU its first start compiles a small extension, which needs g++ and
ninja.
"""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.deepspeed import Mpu, check_engine, config

SETTINGS = {"zero_optimization": {"stage": 1}}


def main() -> int:
    """Train for some steps; return 0 if the loss fell. Raises if weights differ between ranks."""
    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        torch.manual_seed(0)  # the same weights on every rank
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        plan = mesh.batch(global_batch=16, micro_batch=2)
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, mpu=Mpu(mesh), config={**SETTINGS, **config(plan)}
        )
        check_engine(engine, plan)  # raises if DeepSpeed would accumulate another number
        samples = torch.randn(16 * 8, 64, 16)  # (samples, sequence, features), on every rank
        shard = mesh.sequence(64)
        losses = []
        for step in range(30):
            step_loss = torch.zeros((), device=engine.device)
            for micro in plan.micro_batches(step % 8):
                x = shard.take(samples[micro.samples].to(engine.device))
                loss = (engine(x) - x.roll(1, -1)).square().mean() / mesh.size("sp")
                engine.backward(loss)
                engine.step()  # changes the weights after the last micro batch
                step_loss += loss.detach() * micro.weight / mesh.size("dp")
            dist.all_reduce(step_loss)  # the sum of each rank's share is the mean over all
            losses.append(float(step_loss))
        print_once(mesh, f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        mesh.check_parameters(model)  # raises on every rank if weights differ
        print_once(mesh, f"the same weights on {mesh.layout.num_ranks} ranks")
        return 0 if losses[-1] < losses[0] else 1


def print_once(mesh: meshkit.Mesh, line: str) -> None:
    """Print on the first rank."""
    if mesh.rank == 0:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        meshkit.shutdown()
