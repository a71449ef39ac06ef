"""Which device this process computes on, and which backend its collectives run on."""

from __future__ import annotations

from contextlib import suppress

import torch
import torch.distributed as dist

from ..core.call import Call
from ..core.errors import LaunchError, told
from ..core.words import count_noun
from .accelerators import EXCLUSIVE, installed, load_bridge, may_share, row_of
from .claims import Claim, Claimant


def accelerator() -> str | None:
    """The type of this machine's accelerator, as torch sees it; None where it has none."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else None


def read_device(call: Call, asked: str | torch.device | None) -> torch.device:
    """The device asked for, perhaps without an index; None is the accelerator, else the cpu.

    Raises:
        LaunchError: where torch does not know such a device.
    """
    try:
        if not isinstance(asked, str | torch.device | None):
            raise TypeError(f"a device, or its name, not {asked!r}")
        return torch.device(asked if asked is not None else accelerator() or installed() or "cpu")
    except (RuntimeError, TypeError) as error:
        text = told(f"{call}: torch knows no device {asked!r}.", fix="device='cpu' or 'cuda'.")
        raise LaunchError(text) from error


def choose_device(call: Call, asked: str | torch.device | None, local_rank: int) -> torch.device:
    """The device of this process; an accelerator becomes torch's current device.

    Args:
        call: the call to quote.
        asked: a device or its type; None takes the accelerator where there is one, else the cpu.
            Without an index it is 0 where one device is visible, else ``local_rank``.
        local_rank: the index of this rank on its node.

    Raises:
        LaunchError: where torch does not know the device, or this process does not see it.
    """
    # what is installed is looked for only where nothing is asked for: it reads many folders
    kind = str(asked or accelerator() or installed() or "cpu").partition(":")[0]
    load_bridge(call, kind, local_rank)  # before torch can read the device
    device = read_device(call, kind if asked is None else asked)
    if asked is None and not visible_devices(device):  # a bridge without a device
        return torch.device("cpu")
    if device.type == "cpu":
        return torch.device("cpu")
    seen = visible_devices(device)
    alone = seen == 1 or row_of(device.type).module is not None
    index = device.index if device.index is not None else (0 if alone else local_rank)
    if index >= seen:
        ways = [f"start {count_noun(seen, 'rank')} on this node"] if seen else []
        text = told(
            f"{call}: there is no {device.type}:{index} for local_rank {local_rank}.",
            f"This process sees {count_noun(seen, device.type + ' device')}.",
            fix=f"{', or '.join([*ways, 'init(device=' + repr('cpu') + ')'])}.",
        )
        raise LaunchError(text)
    chosen = torch.device(device.type, index)
    make_current = getattr(torch.get_device_module(chosen), "set_device", None)
    if make_current is not None:  # mps has one device only, and no such function
        make_current(index)
    return chosen


def visible_devices(device: torch.device) -> int:
    """How many devices of this type the process sees."""
    try:
        return int(torch.get_device_module(device).device_count())
    except (RuntimeError, AttributeError):  # this torch has no such module
        return 0


def device_uuid(device: torch.device) -> str | None:
    """The identity of a physical device, the same however devices are masked; None if not told."""
    try:
        properties = torch.get_device_module(device).get_device_properties(device)
        found = getattr(properties, "uuid", None)
    except (RuntimeError, AttributeError, TypeError):
        return None
    return None if found is None else str(found)


def choose_backend(call: Call, asked: str | None, device: torch.device) -> str:
    """The backend asked for; else torch's own for the device, else that of the table.

    Raises:
        LaunchError: where this build of torch does not have it.
    """
    backend = check_backend(call, _default_backend(device.type) if asked is None else asked)
    kind = backend_for(backend, device.type)
    if not kind or (device.type == "cpu" and kind in EXCLUSIVE):
        text = told(
            f"{call}: the backend {backend!r} has no collectives on the {device.type}, where this "
            "rank computes.",
            fix=f"{call.but(backend='gloo')}, or leave device and backend to init.",
        )
        raise LaunchError(text)
    return backend


def _default_backend(device_type: str) -> str:
    """Torch's map first: accelerators register themselves there."""
    names = list(row_of(device_type).backends)
    with suppress(ValueError):  # torch has none for this device
        names.insert(0, str(dist.get_default_backend_for_device(device_type)))
    return next((name for name in names if dist.is_backend_available(name)), names[0])


def check_backend(call: Call, name: object) -> str:
    """The name of a backend in lower case: ``"gloo"``, ``"cpu:gloo,cuda:nccl"``.

    Raises:
        LaunchError: where this build of torch does not have it.
    """
    parts = [part.strip() for part in name.lower().split(",")] if isinstance(name, str) else [""]
    pairs = [(kind, backend) for kind, _, backend in (part.rpartition(":") for part in parts)]
    by_kind = all(kind.isidentifier() for kind, _ in pairs) and len(dict(pairs)) == len(pairs)
    if not by_kind and (len(pairs) > 1 or pairs[0][0] or not pairs[0][1]):
        text = told(
            f"{call}: backend is {name!r}.",
            "It is one name, or one for each kind of device.",
            fix="backend='gloo', or backend='cpu:gloo,cuda:nccl'.",
        )
        raise LaunchError(text)
    missing = [one for _, one in pairs if one == "undefined" or not dist.is_backend_available(one)]
    if missing:
        text = told(
            f"{call}: this torch {torch.__version__} has no backend {missing[0]!r}.",
            fix="backend='gloo', or a torch built with it.",
        )
        raise LaunchError(text)
    return ",".join(parts)


def backend_for(backend: str, device_type: str) -> str:
    """Which part of a backend's name serves a device.

    Example:
        >>> backend_for("cpu:gloo,cuda:nccl", "cuda"), backend_for("gloo", "cuda")
        ('nccl', 'gloo')
    """
    parts = dict(part.split(":") for part in backend.split(",") if ":" in part)
    return parts.get(device_type, "" if parts else backend)


def device_claim(call: Call, rank: int, device: torch.device, backend: str) -> tuple[Claim, ...]:
    """The claim of a physical device that this rank needs for itself; none where it may share.

    Args:
        call: the call to quote.
        rank: this process.
        device: what this process computes on.
        backend: what its collectives run on.
    """
    kind = backend_for(backend, device.type)
    uuid = device_uuid(device) if device.type != "cpu" else None
    if uuid is None or may_share(device.type, kind):
        return ()

    def clash(first: Claimant, second: Claimant) -> LaunchError:
        text = told(
            f"{call}: ranks {first.rank} and {second.rank} are on one device, and {kind} needs one "
            "for each rank.",
            f"Both compute on {device.type} {uuid}: {first}, {second}.",
            fix="start one rank a device, or give each another: device='cuda:<local rank>', or "
            "CUDA_VISIBLE_DEVICES; or init(backend='gloo').",
        )
        return LaunchError(text)

    return (Claim(f"device/{uuid}", str(rank), clash),)
