"""Gather a tensor, or bytes, of every rank of a group."""

from __future__ import annotations

import torch
import torch.distributed as dist


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Return the tensor of every rank of a group, in group order. Collective over the group."""
    tensor = tensor.contiguous()
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(tensors, tensor, group=group)
    return tensors


def gather_bytes(
    content: bytes, size: int, group: dist.ProcessGroup, device: torch.device
) -> list[bytes]:
    """Return the bytes of every rank of a group, each padded to one size. Collective."""
    padded = bytearray(content.ljust(size, b"\0"))
    rows = all_gather(torch.frombuffer(padded, dtype=torch.uint8).to(device), group)
    return [row.cpu().numpy().tobytes() for row in rows]
