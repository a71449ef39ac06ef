"""Calls to the store of a job that end in time, whatever has become of its host."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlparse

import torch.distributed as dist

from ...core.errors import MeshkitError, RankTimeoutError
from ..launchers.world import World
from .deadline import Deadline, DeadlineExceededError, run_with_deadline

Result = TypeVar("Result")

# Seconds to wait for a store beyond a deadline: a FileStore rounds up to a second, one rank reads
# all check-ins for a second, and rank 0, which may host the store, stays a second longer.
STORE_GRACE = 4.0
MIN_WAIT = 0.001  # seconds; torch takes a timeout of 0 for its default


def store_call(world: World, seconds: float, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, which calls the store, in bounded time.

    Raises:
        RankTimeoutError: if the store is gone, or does not answer within so many seconds.
    """
    try:
        return run_with_deadline(seconds, work)
    except MeshkitError:
        raise
    except RuntimeError as error:  # of any store; DistStoreError for an unreadable file
        raise store_lost_error(world) from error
    except DeadlineExceededError:
        raise store_lost_error(world, silent=True) from None


def store_wait(store: dist.Store, keys: Sequence[str], deadline: Deadline) -> bool:
    """Wait until all keys exist; return False if they do not at the deadline.

    Raises:
        DistNetworkError: if the host of the store is gone.
    """
    try:
        store.wait([*keys], timedelta(seconds=max(deadline.left, MIN_WAIT)))
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # timed out; a FileStore raises RuntimeError
        return False
    return True


def address(world: World) -> tuple[str | None, int | None]:
    """Return host and port of the TCP store; None for the unknown."""
    if world.init_method in (None, "env://"):
        return world.master_addr, world.master_port
    try:
        url = urlparse(str(world.init_method))
        return (url.hostname, url.port) if url.scheme == "tcp" else (None, None)
    except ValueError:  # an invalid port, half an IPv6 address
        return None, None


def hosted_by_rank_0(world: World) -> bool:
    """Return whether the store ends with rank 0; also True if that is unknown."""
    return not str(world.init_method).startswith("file://") and not hosted_by_agent(world)


def hosted_by_agent(world: World) -> bool:
    """Return whether the torchrun agent hosts the store: the user did not ask for another one."""
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return has_agent and world.launcher == "torchrun" and world.init_method in (None, "env://")


def store_lost_error(world: World, *, silent: bool = False) -> RankTimeoutError:
    """Return the error of a store that is gone.

    Args:
        world: this process.
        silent: whether the store still exists, but does not answer.
    """
    url = str(world.init_method)
    if url.startswith("file://"):
        evidence, fix = f"It is {url}, which does not answer.", "look at that file system first."
    else:
        place = url if url.startswith("tcp://") else f"{world.master_addr}:{world.master_port}"
        reason = "is stopped, or the network to it is cut" if silent else "has ended"
        evidence = f"It was at {place}; the process that hosts it {reason}."
        fix = "look at the log of rank 0 first, or of the torchrun agent."
    missing = (0,) if hosted_by_rank_0(world) and world.rank else ()
    return RankTimeoutError(
        f"rank {world.rank} lost the store of the job.", evidence, fix=fix, missing_ranks=missing
    )
