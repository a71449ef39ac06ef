"""Send a state between two ranks over the default group: its length, its JSON, its tensors.

All sends begin before the first receive, so that two ranks may send to each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
        for part in torch.split(message.to(device), CHUNK)
    ]


def wait_for(sends: Sequence[Handle]) -> None:
    """Wait until all sends have ended."""
    for work, _ in sends:
        if work is not None:
            work.wait()


def receive(rank: int, device: torch.device) -> tuple[Tree, list[Tensor]]:
    """Receive a state from a rank: its JSON and its tensors."""
    length = torch.zeros(1, dtype=torch.int64, device=device)
    dist.recv(length, rank)
    text = _receive_bytes(int(length), rank, device)
    record: dict[str, Any] = json.loads(text.cpu().numpy().tobytes())
    tensors = []
    for name, shape, kind in record["tensors"]:
        tensor = torch.empty(shape, dtype=DTYPES[name])
        data = _receive_bytes(tensor.numel() * tensor.element_size(), rank, device)
        _bytes_of(tensor).copy_(data)
        tensors.append(tensor.to("cpu" if kind == "cpu" else device))
    return record["tree"], tensors


def _receive_bytes(number: int, rank: int, device: torch.device) -> Tensor:
    data = torch.empty(number, dtype=torch.uint8, device=device)
    for part in torch.split(data, CHUNK) if number else ():
        dist.recv(part, rank)
    return data


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, as a view."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1).view(torch.uint8)
