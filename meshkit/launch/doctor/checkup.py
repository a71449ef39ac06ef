"""checkup: check the requirements of a job on this machine before the job starts.

Each check is a function that returns one or more :class:`Finding`. A check never raises, never
joins a job and never waits longer than its deadline.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from ...core.call import public
from ...core.errors import LaunchError
from ..device.accelerators import accelerator_row, installed, load_bridge
from ..launchers.detect import allocation_without_srun, detect
from ..launchers.table import LAUNCHERS
from ..launchers.variables import Env
from ..launchers.world import World
from .finding import Finding
from .interfaces import check_interfaces
from .network import DEADLINE

PYTHON, TORCH = (3, 10), (2, 6)  # oldest supported versions
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
GIB = 2**30
SHARED = 1 * GIB  # used by the workers of data loaders and by NCCL's transport

_FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
_ENDPOINT = ("master_addr", "master_port", "init_method")


def checkup(environ: Env | None = None, *, deadline: float = DEADLINE) -> list[Finding]:
    """Check Python, torch, devices, launcher, host names, interfaces and shared memory. Local.

    Imports torch and joins no job.

    Cost: up to three name lookups, each within ``deadline``.

    Args:
        environ: the variables to read; None means ``os.environ``.
        deadline: the limit of one lookup, in seconds.

    Returns:
        The findings in a fixed order. If torch cannot be used, the findings about its devices
        and backends are missing.
    """
    env = os.environ if environ is None else environ
    world, launched = launcher(env)
    return [
        python_version(),
        *torch_and_devices(env),
        *launched,
        *check_interfaces(world, env, nccl=_has_nccl(), deadline=deadline),
        shared_memory(),
    ]


def python_version(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of this Python.

    Example:
        >>> python_version((3, 9, 1)).advice
        'use Python 3.10 or newer.'
    """
    old = version[:2] < PYTHON
    advice = f"use Python {_dotted(PYTHON)} or newer." if old else ""
    return Finding("python", not old, _dotted(version), advice)


# ---------------------------------------------------------------- torch


def torch_and_devices(env: Env) -> list[Finding]:
    """Check torch and, if it can be used, its devices and backends."""
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        text = f"cannot be imported: {type(error).__name__}: {error}"
        return [Finding("torch", False, text, f"pip install 'torch>={_dotted(TORCH)}'")]
    version = torch_version(torch)
    if not version.ok:
        return [version]
    kind, device = devices(torch, env)
    return [version, device, backends(torch, kind)]


def torch_version(torch: ModuleType) -> Finding:
    """Check the version of torch and report the platform it was built for."""
    build = [(n, getattr(torch.version, n.lower(), None)) for n in ("CUDA", "HIP")]
    builds = [f"{name} {version}" for name, version in build if version]
    text = f"{torch.__version__}, built for {' and '.join(builds) or 'neither CUDA nor HIP'}"
    numbers = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    old = numbers is None or (int(numbers[1]), int(numbers[2])) < TORCH
    advice = f"pip install 'torch>={_dotted(TORCH)}'" if old else ""
    return Finding("torch", not old, text, advice)


@public("init")
def devices(torch: ModuleType, env: Env) -> tuple[str, Finding]:
    """Return the device type of this process and the finding that counts devices by name."""
    from ..device.device import accelerator

    with warnings.catch_warnings(record=True) as caught:  # torch warns about driver problems
        warnings.simplefilter("always")
        kind = accelerator() or installed()
        try:
            load_bridge(kind or "cpu", None)
            names = _device_names(torch, kind) if kind else []
        except LaunchError as error:
            return "cpu", _from_error("devices", error)
        if not names and (torch.version.cuda or torch.version.hip):
            torch.cuda.is_available()
    if names and kind:
        counted = ", ".join(f"{number} x {name}" for name, number in Counter(names).items())
        return kind, Finding("devices", True, f"{kind}: {counted}")
    return "cpu", _no_devices(torch, env, [str(warning.message) for warning in caught])


def _device_names(torch: ModuleType, kind: str) -> list[str]:
    """Return the name of each device of a type; the type itself if torch has no name for it."""
    from ..device.device import visible_devices

    names: list[str] = []
    for index in range(visible_devices(torch.device(kind))):
        name = kind
        with suppress(RuntimeError, AttributeError, TypeError):
            name = str(torch.get_device_module(kind).get_device_name(index))
        names.append(name)
    return names


def _no_devices(torch: ModuleType, env: Env, warned: list[str]) -> Finding:
    """Return a finding for the cpu alone; it fails if a driver exists and no device is hidden."""
    nvidia = Path("/dev/nvidiactl").exists()
    amd = Path("/dev/kfd").exists() and torch.version.hip  # laptops have it for graphics
    hidden = [
        f"{name}={env[name]!r}"
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        if env.get(name) in ("", "-1")
    ]
    if not (nvidia or amd) or hidden:
        return Finding("devices", True, " ".join(["cpu only", *(f"({name})" for name in hidden)]))
    vendor, tool = ("NVIDIA", "nvidia-smi") if nvidia else ("AMD", "rocm-smi")
    text = "\n".join([f"cpu only, but a driver of {vendor} is installed", *warned])
    advice = f"{tool}, then install a torch built for that version: https://pytorch.org/get-started"
    return Finding("devices", False, text, advice)


def backends(torch: ModuleType, kind: str) -> Finding:
    """Check that this torch has a backend for the device, and list all backends.

    Args:
        torch: the module.
        kind: the device type of collectives.
    """
    if not torch.distributed.is_available():
        return Finding(
            "backends", False, "torch was built without torch.distributed", _other_torch(kind)
        )
    known = {*BACKENDS, *accelerator_row(kind).backends}
    available = {name for name in known if torch.distributed.is_backend_available(name)}
    shown = [*BACKENDS, *sorted(known - {*BACKENDS})]
    text = " ".join(name for name in shown if name in available) or "none"
    if missing := [name for name in shown if name not in available]:
        text += f"; not built in: {' '.join(missing)}"
    needed = accelerator_row(kind).backends
    if available & {*needed}:
        return Finding("backends", True, text)
    return Finding("backends", False, f"{text}\nnone of them supports {kind}", _other_torch(kind))


def _has_nccl() -> bool:
    torch = sys.modules.get("torch")  # None if its import failed
    distributed = getattr(torch, "distributed", None)
    return bool(distributed and distributed.is_available() and distributed.is_nccl_available())


def _other_torch(kind: str) -> str:
    return f"install a torch built with {' or '.join(accelerator_row(kind).backends)}."


# ---------------------------------------------------------------- the launcher


def launcher(env: Env) -> tuple[World | None, list[Finding]]:
    """Return the world of this process and one finding per field, or the launcher's error.

    Args:
        env: the variables to read.

    Example:
        >>> _, findings = launcher({"RANK": "3", "WORLD_SIZE": "4"})
        >>> findings[1]
        Finding(name='rank', ok=True, found='3 (RANK)', advice='')
    """
    try:
        world = detect(env)
    except LaunchError as error:
        return None, [_from_error("launcher", error)]
    tasks = allocation_without_srun(world)
    text, advice = world.launcher, ""
    if tasks:
        text += f": a single process in an allocation of several tasks ({tasks})"
        advice = "srun python -m meshkit doctor; ignore this if one process is intended."
    names = [*_FIELDS, *(name for name in _ENDPOINT if getattr(world, name) is not None)]
    fields = [Finding(name, True, _sourced(world, name)) for name in names]
    return world, [Finding("launcher", not tasks, text, advice), *fields, *rendezvous(world)]


def rendezvous(world: World) -> list[Finding]:
    """Check how ranks find rank 0 if the launcher of several ranks sets no address."""
    if world.world_size == 1 or world.init_method or (world.master_addr and world.master_port):
        return []
    known = f"MASTER_ADDR={world.master_addr}, MASTER_PORT={world.master_port}"
    export = "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    if world.launcher not in {row.name for row in LAUNCHERS if row.by_mpi}:
        return [Finding("rendezvous", False, f"the address of rank 0 is unknown: {known}", export)]
    try:
        import mpi4py  # noqa: F401  (does not start MPI, unlike mpi4py.MPI)
    except ImportError:
        text = f"the address of rank 0 is unknown: {known}, and mpi4py is not installed"
        return [Finding("rendezvous", False, text, f"pip install mpi4py, or {export}")]
    return [Finding("rendezvous", True, "rank 0 sends its address through mpi4py")]


def _sourced(world: World, name: str) -> str:
    value = getattr(world, name)
    return "unknown" if value is None else f"{value} ({world.sources[name]})"


def _from_error(name: str, error: LaunchError) -> Finding:
    """Return an error as a finding, with its fix as the advice."""
    text, _, fix = str(error).rpartition("\n  Fix: ")
    return Finding(name, False, text.replace("\n  ", "\n"), fix)


# ---------------------------------------------------------------- memory


def shared_memory(folder: str = "/dev/shm") -> Finding:
    """Check the size of this machine's shared memory.

    Args:
        folder: its mount point.
    """
    try:
        stats = os.statvfs(folder)
    except OSError:
        if sys.platform != "linux":  # other systems have it elsewhere
            return Finding("shared memory", True, f"no {folder}")
        return Finding("shared memory", False, f"no {folder}", f"mount -t tmpfs tmpfs {folder}")
    size = stats.f_blocks * stats.f_frsize
    enough = size >= SHARED
    advice = "" if enough else "docker run --ipc=host, or --shm-size=8g."
    return Finding("shared memory", enough, f"{size / GIB:.2f} GiB in {folder}", advice)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
