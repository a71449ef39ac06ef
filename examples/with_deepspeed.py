"""Train with ZeRO of DeepSpeed on a mesh: dp=2, and each sequence divided over sp=2.

    torchrun --nproc-per-node 4 examples/with_deepspeed.py

DeepSpeed gets the groups of the mesh through ``mpu=`` and creates none. It averages gradients over
dp and sums them over sp, so each rank passes its share of the mean over the sequence. On a CPU its
first start compiles a small extension, which needs g++ and ninja.
"""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.deepspeed import Mpu

CONFIG = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}}


def main() -> int:
    """Train for some steps; return 0 if the loss fell. Raises if weights differ between ranks."""
    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        torch.manual_seed(0)  # the same weights on every rank
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, mpu=Mpu(mesh), config=CONFIG
        )
        torch.manual_seed(mesh.coordinate["dp"])  # ranks of one dp read the same samples
        whole = torch.randn(8, 64, 16, device=engine.device)  # (micro batch, sequence, features)
        x = whole.chunk(mesh.size("sp"), 1)[mesh.coordinate["sp"]]
        losses = []
        for _ in range(30):
            loss = (engine(x) - x.roll(1, -1)).square().mean() / mesh.size("sp")
            engine.backward(loss)
            engine.step()
            mean = loss.detach() / mesh.size("dp")  # each rank's share of the mean over all
            dist.all_reduce(mean)
            losses.append(float(mean))
        print_once(mesh, f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        weight = float(sum(p.detach().double().sum() for p in model.parameters()))
        mesh.agree("the weights", weight)  # raises on every rank if they differ
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
