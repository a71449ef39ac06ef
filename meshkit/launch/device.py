"""Which device this process computes on, and which backend its collectives run on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..core.call import Call
from ..core.errors import LaunchError, told
from ..core.words import count


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
        return torch.device(asked if asked is not None else accelerator() or "cpu")
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
    device = read_device(call, asked)
    if device.type == "cpu":
        return torch.device("cpu")
    seen = torch.accelerator.device_count() if accelerator() == device.type else 0
    index = device.index if device.index is not None else (0 if seen == 1 else local_rank)
    if index >= seen:
        ways = [f"start {count(seen, 'rank')} on this node"] if seen else []
        text = told(
            f"{call}: there is no {device.type}:{index} for local_rank {local_rank}.",
            f"This process sees {count(seen, device.type + ' device')}.",
            fix=f"{', or '.join([*ways, 'init(device=' + repr('cpu') + ')'])}.",
        )
        raise LaunchError(text)
    chosen = torch.device(device.type, index)
    torch.get_device_module(chosen).set_device(index)
    return chosen


def choose_backend(call: Call, asked: str | None, device: torch.device) -> str:
    """The backend asked for, or torch's own for the device: gloo for cpu, nccl for cuda.

    Raises:
        LaunchError: where this build of torch does not have it.
    """
    return check_backend(call, asked or dist.get_default_backend_for_device(device))


def check_backend(call: Call, name: object) -> str:
    """The name of a backend in lower case: ``"gloo"``, ``"cpu:gloo,cuda:nccl"``.

    Raises:
        LaunchError: where this build of torch does not have it.
    """
    kinds = [part.rpartition(":")[2] for part in str(name).lower().split(",")]
    missing = [kind for kind in kinds if not dist.is_backend_available(kind)]
    if missing:
        text = told(
            f"{call}: this torch {torch.__version__} has no backend {missing[0]!r}.",
            fix="backend='gloo', or a torch built with it.",
        )
        raise LaunchError(text)
    return str(name).lower()
