"""What init knows of a default process group: one record, which lives as long as the group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..core.errors import LaunchError
from .device.device import accelerator
from .launchers.detect import detect
from .launchers.world import World
from .timeouts import ARRIVAL
from .torch_internals import timeout_of


@dataclass(frozen=True)
class Job:
    """What ``init`` knows of a default process group.

    Attributes:
        world: who this process is.
        store: where its ranks meet, under a prefix of this generation; None where someone else
            initialised the group and torch does not tell its store.
        timeout: how long a collective may take; None is the backend's own default.
        arrival_timeout: how long ranks wait for each other.
        generation: how many times this rank has joined on this store, from 1; 0 for a group that
            someone else initialised.
        default: how long a collective of the default group itself may take, outside any guard.
        seed: the number that ``init`` was given last, or drew; None where it was given none.
        leave: destroys the group at the end of a spawned rank; None if someone else
            initialised it.
    """

    world: World
    store: dist.Store | None
    timeout: timedelta | None
    arrival_timeout: timedelta
    generation: int
    default: timedelta | None
    seed: int | None = None
    leave: Callable[[], None] | None = None


# The only module state of meshkit: it lives as long as the default group it speaks of.
_JOBS: WeakKeyDictionary[dist.ProcessGroup, Job] = WeakKeyDictionary()


def current_job() -> Job | None:
    """What is known of the present default group; None where there is none. Local."""
    if not dist.is_initialized():
        return None
    group = default_group()
    if group not in _JOBS:
        time = timeout_of(group)  # read once: a guard lowers it for a while
        _JOBS[group] = Job(world_from_group(group), store_from_group(group), time, ARRIVAL, 0, time)
    return _JOBS[group]


def require_job() -> Job:
    """What is known of the present default group. Local.

    Raises:
        LaunchError: where there is none.
    """
    default_group()
    return cast(Job, current_job())


def set_current_job(record: Job) -> None:
    """Keep a record of the present default group."""
    _JOBS[default_group()] = record


def default_group() -> dist.ProcessGroup:
    """Torch's default group.

    Raises:
        LaunchError: where there is none.
    """
    group = dist.group.WORLD
    if group is None:
        raise LaunchError("There is no default process group.", fix="meshkit.init().")
    return group


def world_from_group(group: dist.ProcessGroup) -> World:
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


def store_from_group(group: dist.ProcessGroup) -> dist.Store | None:
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
