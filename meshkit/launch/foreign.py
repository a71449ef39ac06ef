"""A default process group that someone else initialised, as meshkit sees it."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from ..core.errors import LaunchError
from .device.device import accelerator
from .launchers.detect import detect
from .launchers.world import World


def world_of(group: dist.ProcessGroup) -> World:
    """Who this process is in a group that meshkit did not make. Local.

    Rank and size come from the group. What the launcher says of the node is taken over only where
    it speaks of the same rank and size.
    """
    rank, world_size = group.rank(), group.size()
    sources = {
        "rank": "dist.get_rank()",
        "world_size": "dist.get_world_size()",
        "backend": "dist.get_backend()",
        "device": "existing group",
    }
    said = _launcher_world()
    if said is not None and (said.rank, said.world_size) == (rank, world_size):
        world, sources = said, {**said.sources, **sources}
    else:
        world = World(rank, world_size, rank, None, None, None, None, None, "")
        sources["local_rank"] = "rank, as nothing says more"
    backend = str(dist.get_backend(group))
    return replace(
        world,
        launcher="existing group",
        device=_device(group, backend),
        backend=backend,
        sources=sources,
    )


def store_of(group: dist.ProcessGroup) -> dist.Store | None:
    """A store that the ranks of the group share; None where this torch does not tell.

    Public in torch 2.13; before that, where torch keeps it, and here only. torch's fake backend,
    which plays one rank of any world, has nobody to meet.
    """
    if dist.get_backend(group) == "fake":
        return None
    try:
        if hasattr(group, "get_group_store"):
            store = group.get_group_store()
        else:
            store = dist.distributed_c10d._get_default_store()
        return dist.PrefixStore("meshkit", store)
    except (AttributeError, RuntimeError):
        return None


def _launcher_world() -> World | None:
    try:
        return detect()
    except LaunchError:
        return None


def _device(group: dist.ProcessGroup, backend: str) -> torch.device:
    bound = getattr(group, "bound_device_id", None)
    if isinstance(bound, torch.device):
        return bound
    kind = accelerator()
    if backend in ("gloo", "mpi") or kind is None:
        return torch.device("cpu")
    return torch.device(kind, torch.get_device_module(kind).current_device())
