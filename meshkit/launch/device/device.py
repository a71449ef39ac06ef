"""Selection of the device of a process, and of the backend of its collectives."""

from __future__ import annotations

import warnings
from contextlib import suppress

import torch
import torch.distributed as dist

from ...core.errors import LaunchError, format_error
from ...core.text import count_noun
from .accelerators import (
    EXCLUSIVE,
    accelerator_row,
    bridge_packages,
    installed,
    load_bridge,
)


def accelerator() -> str | None:
    """Return the type of this machine's accelerator as torch sees it, or None."""
    available = torch.accelerator.is_available()
    current = torch.accelerator.current_accelerator() if available else None
    return current.type if current is not None else None


def parse_device(requested: str | torch.device) -> torch.device:
    """Return the requested device, possibly without an index."""
    try:
        if not isinstance(requested, str | torch.device):
            raise TypeError(f"a device, or its name, not {requested!r}")
        return torch.device(requested)
    except (RuntimeError, TypeError) as error:
        line = f"torch does not know the device {requested!r}."
        raise LaunchError(line, fix="device='cpu' or 'cuda'.") from error


def select_device(requested: str | torch.device | None, local_rank: int) -> torch.device:
    """Return the device of this process and make an accelerator torch's current device."""
    # `installed` reads many folders, so it runs only without a request
    kind = str(requested or accelerator() or installed() or "cpu").partition(":")[0]
    if requested is None and kind == "cpu":
        return torch.device("cpu")
    load_bridge(kind, local_rank)  # before torch can read the device
    device = parse_device(kind if requested is None else requested)
    if device.type == "cpu":
        return torch.device("cpu")
    num_visible = visible_devices(device)
    if requested is None and not num_visible:  # a bridge without a device
        return torch.device("cpu")
    single = num_visible == 1 or accelerator_row(device.type).module is not None
    index = device.index if device.index is not None else (0 if single else local_rank)
    if index >= num_visible:
        fewer = f"start {count_noun(num_visible, 'rank')} on this node, or " if num_visible else ""
        raise LaunchError(
            f"there is no {device.type}:{index} for local_rank {local_rank}.",
            f"This process sees {count_noun(num_visible, device.type + ' device')}.",
            fix=f"{fewer}init(device='cpu').",
        )
    chosen = torch.device(device.type, index)
    make_current = getattr(torch.get_device_module(chosen), "set_device", None)
    if make_current is not None:  # mps has one device only, and no such function
        make_current(index)
    return chosen


def visible_devices(device: torch.device) -> int:
    """Return how many devices of this type the process sees."""
    try:
        return int(torch.get_device_module(device).device_count())
    except (RuntimeError, AttributeError):  # this torch has no such module
        return 0


def device_uuid(device: torch.device) -> str | None:
    """Return the UUID of a physical device, which masking does not change, or None if unknown."""
    try:
        properties = torch.get_device_module(device).get_device_properties(device)
        uuid = getattr(properties, "uuid", None)
    except (RuntimeError, AttributeError, TypeError):
        return None
    return None if uuid is None else str(uuid)


def select_backend(requested: str | None, device: torch.device) -> str:
    """Return the requested backend, else torch's default for the device, else the table's."""
    name = _default_backend(device.type) if requested is None else requested
    backend = check_backend(name)
    kind = backend_for(backend, device.type)
    if not kind or (device.type == "cpu" and kind in EXCLUSIVE):
        raise LaunchError(
            f"the backend {backend!r} has no collectives on {device.type}, the device of this "
            "rank.",
            fix="backend='gloo', or leave device and backend to init.",
        )
    return backend


def _default_backend(device_type: str) -> str:
    """Return torch's default if it is built in: accelerators register themselves there."""
    names: list[str] = []
    with suppress(ValueError):  # torch has none for this device
        names.append(str(dist.get_default_backend_for_device(device_type)))
        if dist.is_backend_available(names[0]):
            return names[0]
    names += accelerator_row(device_type).backends
    available = next((name for name in names if dist.is_backend_available(name)), None)
    if available is None and device_type == "cuda":  # gloo copies its tensors to the host
        warnings.warn(_slower_backend(names[0]), RuntimeWarning, stacklevel=7)
        return "gloo"
    return available or names[0]


def _slower_backend(missing: str) -> str:
    """Return the text of the warning that collectives of GPUs use gloo."""
    return format_error(
        f"this torch {torch.__version__} has no backend {missing}; collectives use gloo.",
        "gloo copies each tensor of a GPU to the host, and lacks some collectives.",
        fix=f"a torch built with {missing}, or init(backend='gloo') to silence this warning.",
    )


def check_backend(name: object) -> str:
    """Return the name of a backend in lower case: ``"gloo"``, ``"cpu:gloo,cuda:nccl"``."""
    parts = [part.strip() for part in name.lower().split(",")] if isinstance(name, str) else [""]
    pairs = [(kind, backend) for kind, _, backend in (part.rpartition(":") for part in parts)]
    per_device = all(kind.isidentifier() for kind, _ in pairs) and len(dict(pairs)) == len(pairs)
    if not per_device and (len(pairs) > 1 or pairs[0][0] or not pairs[0][1]):
        raise LaunchError(
            f"backend is {name!r}.",
            "A backend is one name, or one name per device type.",
            fix="backend='gloo', or backend='cpu:gloo,cuda:nccl'.",
        )
    missing = [
        backend
        for _, backend in pairs
        if backend == "undefined" or not dist.is_backend_available(backend)
    ]
    if missing:
        packages = bridge_packages(missing[0])
        names = " or ".join(f"{package} (device {kind})" for kind, package in packages.items())
        raise LaunchError(
            f"this torch {torch.__version__} has no backend {missing[0]!r}.",
            *[f"The package {names} adds it when it is imported."] * bool(packages),
            fix=f"install {' or '.join(packages.values())}, or backend='gloo'."
            if packages
            else "backend='gloo', or a torch built with it.",
        )
    return ",".join(parts)


def backend_for(backend: str, device_type: str) -> str:
    """Return the part of a backend's name that serves a device type.

    Example:
        >>> backend_for("cpu:gloo,cuda:nccl", "cuda"), backend_for("gloo", "cuda")
        ('nccl', 'gloo')
    """
    parts = dict(part.split(":") for part in backend.split(",") if ":" in part)
    return parts.get(device_type, "" if parts else backend)
