"""Calls to the store of a job that end in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from ...core.errors import MeshkitError
from ..file_store import check_file
from ..launchers.world import World
from ..times import (
    ARRIVAL,
    Deadline,
    DeadlineExceededError,
    Time,
    format_timeout,
    parse_timeout,
    run_with_deadline,
    wait_for_abandoned,
)
from .client import store_lost_error

Result = TypeVar("Result")

__all__ = [
    "ARRIVAL",
    "Deadline",
    "DeadlineExceededError",
    "Time",
    "format_timeout",
    "parse_timeout",
    "run_with_deadline",
    "wait_for_abandoned",
]

STORE_GRACE = 4.0
MIN_WAIT = 0.001  # seconds; torch takes a timeout of 0 for its default
MIN_LOOK, LOOK_PER_RANK = 0.002, 0.0003  # seconds between two looks at a file, least and per rank


def store_call(world: World, seconds: float, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, which calls the store, in bounded time."""
    try:
        return run_with_deadline(seconds, work)
    except MeshkitError:
        raise
    except RuntimeError as error:  # of any store; DistStoreError for an unreadable file
        raise store_lost_error(world) from error
    except DeadlineExceededError:
        raise store_lost_error(world, silent=True) from None


def store_wait(store: dist.Store, keys: Sequence[str], deadline: Deadline) -> bool:
    """Wait until all keys exist; return False if they do not at the deadline."""
    try:
        store.wait([*keys], timedelta(seconds=max(deadline.left, MIN_WAIT)))
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # timed out; a FileStore raises RuntimeError
        return False
    return True


def store_get(store: dist.Store, key: str, ranks: int, deadline: Deadline) -> bytes | None:
    """Wait for a key with other ranks; return its value, or None if there is none at the deadline.

    ``get`` waits by itself, for the timeout of the store. A FileStore would read its file a hundred
    times a second on every rank, so this looks less often the more ranks wait.

    Cost: one store operation; in a file one for each look, too.
    """
    if not store.has_extended_api():  # type: ignore[attr-defined]
        while True:
            check_file(store)
            if store.check([key]):
                break
            if not deadline.left:
                return None
            time.sleep(min(max(MIN_LOOK, LOOK_PER_RANK * ranks), deadline.left))
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=max(deadline.left, MIN_WAIT)))
    try:
        return store.get(key)
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # timed out, or another thread set its own timeout
        is_there = not deadline.expired and store_wait(store, [key], deadline)
        return store.get(key) if is_there else None
    finally:
        store.set_timeout(timeout)
