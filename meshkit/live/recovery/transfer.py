"""Send a state between two ranks over the default group: its length, its JSON, its tensors.

All sends begin before the first receive, so that two ranks may send to each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .state_codec import Tree

CHUNK = 1 << 28  # bytes of one message
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}

Handle = tuple[dist.Work | None, Tensor]  # a send, and the bytes that it reads


def begin_send(
    rank: int, tree: Tree, tensors: Sequence[Tensor], device: torch.device
) -> list[Handle]:
    """Begin to send a state to a rank; return the sends to wait for. Local."""
    described = [[str(t.dtype), [*t.shape], t.device.type] for t in tensors]
    text = json.dumps({"tree": tree, "tensors": described}).encode()
    header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    length = torch.tensor([len(text)], dtype=torch.int64)
    messages = [length, header, *(_bytes_of(tensor.contiguous()) for tensor in tensors)]
    return [
        (dist.isend(part, rank), part)
        for message in messages
        for part in (torch.split(message.to(device), CHUNK) if message.numel() else ())
    ]


def wait_for(sends: Sequence[Handle], limit: timedelta) -> None:
    """Wait until all sends have ended.

    gloo takes the time in which a group may connect for the time of a send, unless one is given.
    """
    for work, _ in sends:
        if work is not None:
            work.wait(limit)


def receive(rank: int, device: torch.device, limit: timedelta) -> tuple[Tree, list[Tensor]]:
    """Receive a state from a rank: its JSON and its tensors."""
    length = torch.zeros(1, dtype=torch.int64, device=device)
    _receive(length, rank, limit)
    text = torch.empty(int(length), dtype=torch.uint8, device=device)
    _receive(text, rank, limit)
    record: dict[str, Any] = json.loads(text.cpu().numpy().tobytes())
    tensors = []
    for name, shape, kind in record["tensors"]:
        tensor = torch.empty(shape, dtype=DTYPES[name])
        data = torch.empty(_bytes_of(tensor).numel(), dtype=torch.uint8, device=device)
        _receive(data, rank, limit)
        _bytes_of(tensor).copy_(data)
        tensors.append(tensor.to("cpu" if kind == "cpu" else device))
    return record["tree"], tensors


def _receive(data: Tensor, rank: int, limit: timedelta) -> None:
    """Receive a message, in the parts in which it is sent."""
    for part in torch.split(data, CHUNK) if data.numel() else ():
        work = dist.irecv(part, rank)
        if work is not None:
            work.wait(limit)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, as a view."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1).view(torch.uint8)
