"""The job of each rank of a launcher: one rank kills itself, the others recover and add again."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import meshkit


def add(mesh: meshkit.Mesh) -> float:
    """Return how many ranks add up, which a guard watches."""
    total = torch.ones(1)
    with mesh.guard(timeout=10):
        dist.all_reduce(total, group=mesh.group())
    return float(total)


def main(folder: str, odd: int) -> None:
    """Lose a rank, and write what the others see."""
    world = meshkit.init(arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=-1)
    add(mesh)
    if world.rank == odd:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        add(mesh)
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    record = {"launcher": world.launcher, "lost": [*mesh.recovery.lost_ranks], "total": add(mesh)}
    Path(folder, f"{world.rank}.json").write_text(json.dumps(record))
    mesh.close()
    meshkit.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
