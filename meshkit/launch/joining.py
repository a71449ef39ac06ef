"""The error of a second thread that joins: torch has one default group per process."""

from __future__ import annotations

from ..core.errors import LaunchError
from .world import World


class SecondThreadError(LaunchError):
    """A thread that asks to join while another one of its process does."""


def second_thread_error(world: World, other: World) -> SecondThreadError:
    """Return the error of a thread that asks for a rank while another thread joins."""
    return SecondThreadError(
        f"another thread of this process is joining as rank {other.rank} of {other.world_size}; "
        f"this one asks for rank {world.rank}.",
        "A process is one rank: torch has one default process group in each process.",
        fix=f"start a process for each rank: meshkit.spawn(fn, {world.world_size}), or torchrun "
        f"--nproc-per-node {world.world_size}; in one rank, call init once.",
    )
