"""checkup: check the requirements of a job on this machine before the job starts.

Each check is a function that returns one or more :class:`Finding`. A check never raises, never
joins a job and never waits longer than its deadline.
"""

from __future__ import annotations

import os
import sys

from ...core.errors import LaunchError
from ..launchers.detect import FIELDS, allocation_without_srun, detect
from ..launchers.table import LAUNCHERS
from ..launchers.variables import Env
from ..launchers.world import World
from .finding import Finding
from .interfaces import DEADLINE, check_interfaces
from .torch_build import check_torch

ENDPOINT_FIELDS = ("master_addr", "master_port", "init_method")
OLDEST_PYTHON = (3, 10)
GIB = 2**30
MIN_SHARED_MEMORY = 1 * GIB  # used by the workers of data loaders and by NCCL's transport


def checkup(environ: Env | None = None, *, deadline: float = DEADLINE) -> list[Finding]:
    """Check Python, torch, launcher, names, interfaces and shared memory. Local; joins no job."""
    env = os.environ if environ is None else environ
    world, launcher_findings = check_launcher(env)
    return [
        check_python(),
        *check_torch(env),
        *launcher_findings,
        *check_interfaces(world, env, deadline),
        check_shared_memory(),
    ]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of this Python."""
    ok = version[:2] >= OLDEST_PYTHON
    return Finding("python", ok, _dotted(version), "" if ok else f"use Python {_OLDEST} or newer.")


def check_launcher(env: Env) -> tuple[World | None, list[Finding]]:
    """Return the world of this process and one finding per field, or the launcher's error."""
    try:
        world = detect(env)
    except LaunchError as error:
        return None, [Finding.from_error("launcher", error)]
    tasks = allocation_without_srun(world)
    text, advice = world.launcher, ""
    if tasks:
        text += f": a single process in an allocation of several tasks ({tasks})"
        advice = "srun python -m meshkit doctor; ignore this if one process is intended."
    names = [*FIELDS, *(name for name in ENDPOINT_FIELDS if getattr(world, name) is not None)]
    fields = [Finding(name, True, _with_source(world, name)) for name in names]
    return world, [Finding("launcher", not tasks, text, advice), *fields, *check_rendezvous(world)]


def check_rendezvous(world: World) -> list[Finding]:
    """Check how ranks find rank 0 if the launcher of several ranks sets no address."""
    if world.world_size == 1 or world.init_method or (world.master_addr and world.master_port):
        return []
    by_mpi = any(row.by_mpi for row in LAUNCHERS if row.name == world.launcher)
    if by_mpi and world.local_world_size == world.world_size:
        return [Finding("rendezvous", True, "one node: a file that is named after the launcher")]
    text = f"the address of rank 0 is unknown: MASTER_ADDR={world.master_addr}, "
    text += f"MASTER_PORT={world.master_port}"
    advice = "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    if by_mpi:
        try:
            import mpi4py  # noqa: F401  (does not start MPI, unlike mpi4py.MPI)
        except ImportError:
            text += ", and mpi4py is not installed"
            advice = f"pip install mpi4py, or {advice}"
        else:
            return [Finding("rendezvous", True, "rank 0 sends its address through mpi4py")]
    return [Finding("rendezvous", False, text, advice)]


def _with_source(world: World, name: str) -> str:
    value = getattr(world, name)
    return "unknown" if value is None else f"{value} ({world.sources[name]})"


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
