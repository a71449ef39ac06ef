"""checkup: what a job needs of this machine, looked at before the job does.

Each check is a function that returns a :class:`Finding` or a few. None of them raises, none joins
a job, and none waits longer than its deadline.
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

from ...core.call import Call
from ...core.errors import LaunchError
from ..device.accelerators import installed, load_bridge, row_of
from ..launchers.detect import allocation, detect
from .finding import Finding
from ..launchers.table import LAUNCHERS
from .network import DEADLINE
from ..launchers.variables import Env
from .interfaces import wires
from ..launchers.world import World

PYTHON, TORCH = (3, 10), (2, 6)  # the oldest that are supported
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
GIB = 2**30
SHARED = 1 * GIB  # workers of data loaders and NCCL's own transport both live there

_FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
_MEETING = ("master_addr", "master_port", "init_method")


def checkup(environ: Env | None = None, *, deadline: float = DEADLINE) -> list[Finding]:
    """Look at Python, torch, devices, launcher, host names, interfaces and shared memory. Local.

    Imports torch. Up to three lookups of names, each within ``deadline``; joins nothing.

    Args:
        environ: the variables to read; None means ``os.environ``.
        deadline: how long one lookup may take, in seconds.

    Returns:
        The findings in a fixed order; those about torch stop at the first that makes the
        others impossible.
    """
    env = os.environ if environ is None else environ
    world, launched = launcher(env)
    return [
        python_version(),
        *torch_and_devices(env),
        *launched,
        *wires(world, env, nccl=_has_nccl(), deadline=deadline),
        shared_memory(),
    ]


def python_version(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The version of this Python.

    Example:
        >>> python_version((3, 9, 1)).advice
        'use Python 3.10 or newer.'
    """
    old = version[:2] < PYTHON
    advice = f"use Python {_dotted(PYTHON)} or newer." if old else ""
    return Finding("python", not old, _dotted(version), advice)


# ---------------------------------------------------------------- torch


def torch_and_devices(env: Env) -> list[Finding]:
    """Torch, and where it can be used what it sees: devices and backends."""
    try:
        import torch
    except Exception as error:  # a broken install fails in its own ways
        found = f"cannot be imported: {type(error).__name__}: {error}"
        return [Finding("torch", False, found, f"pip install 'torch>={_dotted(TORCH)}'")]
    first = torch_version(torch)
    if not first.ok:
        return [first]
    kind, second = devices(torch, env)
    return [first, second, backends(torch, kind)]


def torch_version(torch: ModuleType) -> Finding:
    """The version of torch, and what it was built for."""
    build = [(n, getattr(torch.version, n.lower(), None)) for n in ("CUDA", "HIP")]
    builds = [f"{name} {version}" for name, version in build if version]
    found = f"{torch.__version__}, built for {' and '.join(builds) or 'neither CUDA nor HIP'}"
    numbers = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    old = numbers is None or (int(numbers[1]), int(numbers[2])) < TORCH
    advice = f"pip install 'torch>={_dotted(TORCH)}'" if old else ""
    return Finding("torch", not old, found, advice)


def devices(torch: ModuleType, env: Env) -> tuple[str, Finding]:
    """The type of this process' devices, and how many of which name it sees."""
    from ..device.device import accelerator

    with warnings.catch_warnings(record=True) as heard:  # torch says there what a driver lacks
        warnings.simplefilter("always")
        kind = accelerator() or installed()
        try:
            load_bridge(Call("init"), kind or "cpu", None)
            names = _device_names(torch, kind) if kind else []
        except LaunchError as error:
            return "cpu", _refused("devices", error)
        if not names and (torch.version.cuda or torch.version.hip):
            torch.cuda.is_available()
    if names and kind:
        counted = ", ".join(f"{number} x {name}" for name, number in Counter(names).items())
        return kind, Finding("devices", True, f"{kind}: {counted}")
    return "cpu", _no_devices(torch, env, [str(warning.message) for warning in heard])


def _device_names(torch: ModuleType, kind: str) -> list[str]:
    """The name of each device of a type; the type itself where torch does not tell."""
    from ..device.device import visible_devices

    names: list[str] = []
    for index in range(visible_devices(torch.device(kind))):
        name = kind
        with suppress(RuntimeError, AttributeError, TypeError):
            name = str(torch.get_device_module(kind).get_device_name(index))
        names.append(name)
    return names


def _no_devices(torch: ModuleType, env: Env, heard: list[str]) -> Finding:
    """The cpu alone: as it should be, unless a driver is there and nothing hides its devices."""
    nvidia = Path("/dev/nvidiactl").exists()
    amd = Path("/dev/kfd").exists() and torch.version.hip  # laptops have it for their screens
    hidden = [
        f"{name}={env[name]!r}"
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        if env.get(name) in ("", "-1")
    ]
    if not (nvidia or amd) or hidden:
        return Finding("devices", True, " ".join(["cpu only", *(f"({name})" for name in hidden)]))
    vendor, tool = ("NVIDIA", "nvidia-smi") if nvidia else ("AMD", "rocm-smi")
    found = "\n".join([f"cpu only, and a driver of {vendor} is here", *heard])
    advice = f"{tool}, then a torch built for what it prints: https://pytorch.org/get-started"
    return Finding("devices", False, found, advice)


def backends(torch: ModuleType, kind: str) -> Finding:
    """Which backends this torch has; one that serves the device is needed.

    Args:
        torch: the module.
        kind: the type of the devices that collectives will run on.
    """
    if not torch.distributed.is_available():
        return Finding("backends", False, "torch.distributed is not built in", _other_torch(kind))
    known = {*BACKENDS, *row_of(kind).backends}
    here = {name for name in known if torch.distributed.is_backend_available(name)}
    shown = [*BACKENDS, *sorted(known - {*BACKENDS})]
    found = " ".join(name for name in shown if name in here) or "none"
    if rest := [name for name in shown if name not in here]:
        found += f"; not built in: {' '.join(rest)}"
    needed = row_of(kind).backends
    if here & {*needed}:
        return Finding("backends", True, found)
    return Finding("backends", False, f"{found}\nnone of them serves {kind}", _other_torch(kind))


def _has_nccl() -> bool:
    torch = sys.modules.get("torch")  # None where its import failed
    distributed = getattr(torch, "distributed", None)
    return bool(distributed and distributed.is_available() and distributed.is_nccl_available())


def _other_torch(kind: str) -> str:
    return f"a torch built with {' or '.join(row_of(kind).backends)}."


# ---------------------------------------------------------------- the launcher


def launcher(env: Env) -> tuple[World | None, list[Finding]]:
    """Who started this process and what it says, field by field; its error where that cannot be.

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
        return None, [_refused("launcher", error)]
    alone = allocation(world)
    found, advice = world.launcher, ""
    if alone:
        found += f": one process by itself, in an allocation of several ({alone})"
        advice = "srun python -m meshkit doctor; all is well where one process is meant."
    names = [*_FIELDS, *(name for name in _MEETING if getattr(world, name) is not None)]
    fields = [Finding(name, True, _sourced(world, name)) for name in names]
    return world, [Finding("launcher", not alone, found, advice), *fields, *meeting(world)]


def meeting(world: World) -> list[Finding]:
    """Where ranks meet, in a job of several whose launcher gives no address; else nothing."""
    if world.world_size == 1 or world.init_method or (world.master_addr and world.master_port):
        return []
    known = f"MASTER_ADDR={world.master_addr}, MASTER_PORT={world.master_port}"
    export = "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    if world.launcher not in {row.name for row in LAUNCHERS if row.by_mpi}:
        return [Finding("meeting", False, f"ranks know no place to meet: {known}", export)]
    try:
        import mpi4py  # noqa: F401  (which does not start MPI: mpi4py.MPI does)
    except ImportError:
        text = f"ranks know no place to meet: {known}, and there is no mpi4py"
        return [Finding("meeting", False, text, f"pip install mpi4py, or {export}")]
    return [Finding("meeting", True, "rank 0 tells, by mpi4py")]


def _sourced(world: World, name: str) -> str:
    value = getattr(world, name)
    return "not told" if value is None else f"{value} ({world.sources[name]})"


def _refused(name: str, error: LaunchError) -> Finding:
    """An error as a finding: its fix is the advice."""
    text, _, fix = str(error).rpartition("\n  Fix: ")
    return Finding(name, False, text.replace("\n  ", "\n"), fix)


# ---------------------------------------------------------------- memory


def shared_memory(folder: str = "/dev/shm") -> Finding:
    """How large the memory is that processes of this machine share.

    Args:
        folder: where it is mounted.
    """
    try:
        told = os.statvfs(folder)
    except OSError:
        if sys.platform != "linux":  # which has it elsewhere
            return Finding("shared memory", True, f"no {folder}")
        return Finding("shared memory", False, f"no {folder}", f"mount -t tmpfs tmpfs {folder}")
    size = told.f_blocks * told.f_frsize
    enough = size >= SHARED
    advice = "" if enough else "docker run --ipc=host, or --shm-size=8g."
    return Finding("shared memory", enough, f"{size / GIB:.2f} GiB in {folder}", advice)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
