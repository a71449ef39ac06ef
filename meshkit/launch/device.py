"""Which device this process computes on, and which backend its collectives run on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..core.call import Call
from ..core.errors import LaunchError, told


def choose_device(call: Call, asked: str | torch.device | None, local_rank: int) -> torch.device:
    """The device of this process; an accelerator becomes torch's current device.

    Args:
        call: the call to quote.
        asked: a device or its type; None takes the accelerator where there is one, else the cpu.
            Without an index it is 0 where one device is visible, else ``local_rank``.
        local_rank: the index of this rank on its node.

    Raises:
        LaunchError: where torch does not know the device, or has fewer of them.
    """
    device = _asked_or_best(call, asked)
    if device.type == "cpu":
        return torch.device("cpu")
    count = _count(device.type)
    index = device.index if device.index is not None else (0 if count == 1 else local_rank)
    if index >= count:
        text = told(
            f"{call}: {device.type}:{index} is not here; this process sees {count}.",
            f"Its local_rank is {local_rank}.",
            fix="start one rank a device, give each process its own "
            f"(CUDA_VISIBLE_DEVICES={local_rank}), or init(device='cpu').",
        )
        raise LaunchError(text)
    chosen = torch.device(device.type, index)
    torch.get_device_module(chosen).set_device(index)
    return chosen


def _asked_or_best(call: Call, asked: str | torch.device | None) -> torch.device:
    if asked is None:
        best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device(best.type) if best else torch.device("cpu")
    try:
        return torch.device(asked)
    except (RuntimeError, TypeError) as error:
        text = told(f"{call}: torch knows no device {asked!r}.", fix="device='cpu' or 'cuda'.")
        raise LaunchError(text) from error


def _count(kind: str) -> int:
    best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.accelerator.device_count() if best is not None and best.type == kind else 0


def choose_backend(call: Call, asked: str | None, device: torch.device) -> str:
    """The backend asked for, or torch's own for the device: gloo for cpu, nccl for cuda.

    Raises:
        LaunchError: where this build of torch does not have it.
    """
    name = asked or dist.get_default_backend_for_device(device)
    kinds = [part.rpartition(":")[2] for part in name.lower().split(",")]
    missing = [kind for kind in kinds if not dist.is_backend_available(kind)]
    if missing:
        text = told(
            f"{call}: this torch {torch.__version__} has no backend {missing[0]!r}.",
            f"It was chosen for the device {device}.",
            fix="backend='gloo', or a torch built with it.",
        )
        raise LaunchError(text)
    return name.lower()
