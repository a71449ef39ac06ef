"""What init knows of a default process group: one record, which lives as long as the group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ..core.errors import LaunchError, told
from .foreign import store_of, world_of
from .inside import timeout_of
from .launchers.world import World
from .timeouts import ARRIVAL


@dataclass(frozen=True)
class Joined:
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
_RECORDS: WeakKeyDictionary[dist.ProcessGroup, Joined] = WeakKeyDictionary()


def joined() -> Joined | None:
    """What is known of the present default group; None where there is none. Local."""
    if not dist.is_initialized():
        return None
    group = default_group()
    if group not in _RECORDS:
        time = timeout_of(group)  # read once: a guard lowers it for a while
        _RECORDS[group] = Joined(world_of(group), store_of(group), time, ARRIVAL, 0, time)
    return _RECORDS[group]


def known() -> Joined:
    """What is known of the present default group. Local.

    Raises:
        LaunchError: where there is none.
    """
    default_group()
    return cast(Joined, joined())


def remember(record: Joined) -> None:
    """Keep a record of the present default group."""
    _RECORDS[default_group()] = record


def default_group() -> dist.ProcessGroup:
    """Torch's default group.

    Raises:
        LaunchError: where there is none.
    """
    group = dist.group.WORLD
    if group is None:
        raise LaunchError(told("There is no default process group.", fix="meshkit.init()."))
    return group
