"""Gather a tensor of every rank of a group."""

from __future__ import annotations

import torch
import torch.distributed as dist


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Return the tensor of every rank of a group, in group order. Collective over the group.

    Args:
        tensor: this rank's tensor, with equal shape and dtype on every rank, on the device that the
            backend needs.
        group: the process group; None is the default group.

    Returns:
        New tensors on the device of ``tensor``, one per rank.
    """
    tensor = tensor.contiguous()
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(tensors, tensor, group=group)
    return tensors
