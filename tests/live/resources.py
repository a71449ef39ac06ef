"""Counts of what a process holds: descriptors, threads and process groups."""

from __future__ import annotations

import os
import time

import torch.distributed as dist


def descriptors() -> int:
    """Return the number of open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    """Return the number of threads, those of torch's C++ code included."""
    time.sleep(0.1)  # Linux lists a joined thread for a moment longer
    return len(os.listdir("/proc/self/task"))


def live_groups() -> int:
    """Return the number of process groups that torch holds, groups of one rank included."""
    return len(dist.distributed_c10d._world.pg_names)  # torch has no public name for it
