"""Print a line from every rank, and check that all ranks can communicate.

    python examples/hello.py                                 # one process
    torchrun --nproc-per-node 4 examples/hello.py
    srun --ntasks 4 python examples/hello.py
    mpirun -n 4 python examples/hello.py

The same file runs under any launcher, because ``meshkit.init()`` detects the rank. For the check
every rank sets its own element of a row of zeros to one. All elements of the sum must then be one.
"""

from __future__ import annotations

import os
import socket
import sys

import torch
import torch.distributed as dist

import meshkit


def main() -> int:
    """Print a line; return 0 if all ranks took part in the sum, else 1."""
    world = meshkit.init()
    seen = torch.zeros(world.world_size, dtype=torch.int64, device=world.device)
    seen[world.rank] = 1
    dist.all_reduce(seen)
    heard = int((seen == 1).sum())
    sys.stdout.write(  # one write, because all ranks share one terminal
        f"rank {world.rank} of {world.world_size} ({world.launcher}) says hello from host "
        f"{socket.gethostname()}, device {world.device}, pid {os.getpid()}, and hears {heard}\n"
    )
    meshkit.shutdown()
    return 0 if heard == world.world_size else 1


if __name__ == "__main__":
    sys.exit(main())
