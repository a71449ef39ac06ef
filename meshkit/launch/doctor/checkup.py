"""checkup: check the requirements of a job on this machine before the job starts.

Each check is a function that returns one or more :class:`Finding`. A check never raises, never
joins a job and never waits longer than its deadline.
"""

from __future__ import annotations

import os
import sys

from ..launchers.variables import Env
from .finding import Finding
from .interfaces import check_interfaces
from .launcher import check_launcher
from .network import DEADLINE
from .torch_build import check_torch, has_nccl

OLDEST_PYTHON = (3, 10)
GIB = 2**30
MIN_SHARED_MEMORY = 1 * GIB  # used by the workers of data loaders and by NCCL's transport


def checkup(environ: Env | None = None, *, deadline: float = DEADLINE) -> list[Finding]:
    """Check Python, torch, devices, launcher, host names, interfaces and shared memory. Local.

    Imports torch and joins no job.

    Cost: up to three name lookups, each within ``deadline``.
    """
    env = os.environ if environ is None else environ
    world, launcher_findings = check_launcher(env)
    return [
        check_python(),
        *check_torch(env),
        *launcher_findings,
        *check_interfaces(world, env, nccl=has_nccl(), deadline=deadline),
        check_shared_memory(),
    ]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of this Python."""
    ok = version[:2] >= OLDEST_PYTHON
    return Finding("python", ok, _dotted(version), "" if ok else f"use Python {_OLDEST} or newer.")


def check_shared_memory(folder: str = "/dev/shm") -> Finding:
    """Check the size of this machine's shared memory."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        ok = sys.platform != "linux"  # other systems have it elsewhere
        advice = "" if ok else f"mount -t tmpfs tmpfs {folder}"
        return Finding("shared memory", ok, f"no {folder}", advice)
    size = stats.f_blocks * stats.f_frsize
    ok = size >= MIN_SHARED_MEMORY
    advice = "" if ok else "docker run --ipc=host, or --shm-size=8g."
    return Finding("shared memory", ok, f"{size / GIB:.2f} GiB in {folder}", advice)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


_OLDEST = _dotted(OLDEST_PYTHON)
