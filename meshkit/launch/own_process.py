"""Refuse to communicate from a process that is no rank: a forked one, a worker of a DataLoader."""

from __future__ import annotations

import os

from torch.utils.data import get_worker_info

from ..core.errors import LaunchError

FIX = (
    "communicate in the process of the rank; here, use mesh.coordinate, mesh.size, mesh.peers or "
    "mesh.sampler."
)


def check_own_process(rank: int, pid: int | None = None) -> None:
    """Check that this process is a rank: no worker of a DataLoader, and the one with the pid.

    A forked process inherits the groups without the threads and the connections behind them.
    """
    worker = get_worker_info()
    if worker is not None:
        raise LaunchError(
            f"this process is a worker of a DataLoader of rank {rank}, and no rank itself.",
            f"It is worker {worker.id} of {worker.num_workers}, pid {os.getpid()}.",
            fix=FIX,
        )
    if pid not in (None, os.getpid()):
        raise LaunchError(
            f"this process is a fork of rank {rank}, and no rank itself.",
            f"It is pid {os.getpid()}; the rank is pid {pid}.",
            fix=FIX,
        )
