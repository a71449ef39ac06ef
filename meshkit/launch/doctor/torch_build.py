"""Checks of torch: its version, the devices that it sees, the backends that it was built with."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from ...core.errors import LaunchError
from ..device.accelerators import accelerator_row, installed, load_bridge
from ..launchers.variables import Env
from .finding import Finding

OLDEST_TORCH = (2, 11)
INSTALL = "pip install 'torch>={}.{}'".format(*OLDEST_TORCH)
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def check_torch(env: Env) -> list[Finding]:
    """Check torch and, if it can be used, its devices and backends."""
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        text = f"cannot be imported: {type(error).__name__}: {error}"
        return [Finding("torch", False, text, INSTALL)]
    version = check_version(torch)
    if not version.ok:
        return [version]
    device_type, devices = check_devices(torch, env)
    return [version, devices, check_backends(torch, device_type)]


def check_version(torch: ModuleType) -> Finding:
    """Check the version of torch and report the platform it was built for."""
    versions = {name: getattr(torch.version, name.lower(), None) for name in ("CUDA", "HIP")}
    builds = [f"{name} {version}" for name, version in versions.items() if version]
    text = f"{torch.__version__}, built for {' and '.join(builds) or 'neither CUDA nor HIP'}"
    numbers = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    ok = numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST_TORCH
    return Finding("torch", ok, text, "" if ok else INSTALL)


def check_devices(torch: ModuleType, env: Env) -> tuple[str, Finding]:
    """Return the device type of this process and the finding that counts devices by name."""
    from ..device.device import accelerator

    with warnings.catch_warnings(record=True) as caught:  # torch warns about driver problems
        warnings.simplefilter("always")
        device_type = accelerator() or installed()
        try:
            load_bridge(device_type or "cpu", None)
        except LaunchError as error:
            return "cpu", Finding.from_error("devices", error)
        names = _device_names(torch, device_type) if device_type else []
        if not names and (torch.version.cuda or torch.version.hip):
            torch.cuda.is_available()
    if names and device_type:
        counts = ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
        return device_type, Finding("devices", True, f"{device_type}: {counts}")
    return "cpu", _no_devices(torch, env, [str(warning.message) for warning in caught])


def _device_names(torch: ModuleType, device_type: str) -> list[str]:
    """Return the name of each device of a type; the type itself if torch has no name for it."""
    from ..device.device import visible_devices

    names = [device_type] * visible_devices(torch.device(device_type))
    for index in range(len(names)):
        with suppress(RuntimeError, AttributeError, TypeError):
            names[index] = str(torch.get_device_module(device_type).get_device_name(index))
    return names


def _no_devices(torch: ModuleType, env: Env, messages: Sequence[str]) -> Finding:
    """Return a finding for the cpu alone; it fails if a driver exists and no device is hidden."""
    nvidia = Path("/dev/nvidiactl").exists()
    amd = Path("/dev/kfd").exists() and torch.version.hip  # laptops have it for graphics
    hidden = [f"({name}={env[name]!r})" for name in HIDING if env.get(name) in ("", "-1")]
    if not (nvidia or amd) or hidden:
        return Finding("devices", True, " ".join(["cpu only", *hidden]))
    vendor, tool = ("NVIDIA", "nvidia-smi") if nvidia else ("AMD", "rocm-smi")
    text = "\n".join([f"cpu only, but a driver of {vendor} is installed", *messages])
    advice = f"{tool}, then install a torch built for that version: https://pytorch.org/get-started"
    return Finding("devices", False, text, advice)


def check_backends(torch: ModuleType, device_type: str) -> Finding:
    """Check that this torch has a backend for the device, and list all backends."""
    needed = accelerator_row(device_type).backends
    advice = f"install a torch built with {' or '.join(needed)}."
    if not torch.distributed.is_available():
        return Finding("backends", False, "torch was built without torch.distributed", advice)
    names = dict.fromkeys([*BACKENDS, *sorted(needed)])
    built = [name for name in names if torch.distributed.is_backend_available(name)]
    missing = [name for name in names if name not in built]
    text = " ".join(built) or "none"
    text += f"; not built in: {' '.join(missing)}" if missing else ""
    if {*built} & {*needed}:
        return Finding("backends", True, text)
    return Finding("backends", False, f"{text}\nnone of them supports {device_type}", advice)
