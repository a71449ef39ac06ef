"""Counts of what a process holds: descriptors, threads, process groups and memory."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

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


def resident_memory() -> int:
    """Return the bytes of memory that are resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def python_objects() -> int:
    """Return the number of objects that Python's garbage collector tracks."""
    gc.collect()
    return len(gc.get_objects())
