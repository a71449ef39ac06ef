"""Let one thread of a process join the job at a time: torch has one default group per process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import LaunchError
from .launchers.world import World


class SecondThreadError(LaunchError):
    """A thread that asks to join while another one of its process does.

    Attributes:
        other_rank: the rank that the other thread asked for, if known.
    """

    other_rank: int | None = None


_LOCK = threading.Lock()
_joining: World | None = None  # the world of the thread that holds the lock


@contextmanager
def one_thread_joins(world: World) -> Iterator[None]:
    """Refuse to join while another thread of this process joins."""
    global _joining
    if not _LOCK.acquire(blocking=False):
        raise _second_thread_error(world, _joining)
    try:
        _joining = world
        yield
    finally:
        _joining = None
        _LOCK.release()


def _second_thread_error(world: World, other: World | None) -> SecondThreadError:
    rank = "" if other is None else f" as rank {other.rank} of {other.world_size}"
    return SecondThreadError(
        f"another thread of this process is joining{rank}; this one asks for rank {world.rank}.",
        "A process is one rank: torch has one default process group in each process.",
        fix=f"start a process for each rank: meshkit.spawn(fn, {world.world_size}), or torchrun "
        f"--nproc-per-node {world.world_size}; in one rank, call init once.",
        other_rank=None if other is None else other.rank,
    )
