"""The collective of ours that a thread is in, so that a guard's watching thread can read it.

A context variable is visible to its own thread only. It therefore holds an object that the guard
creates and shares with its watching thread, and that ``barrier`` and ``wait`` fill in::

    mesh.guard()          tracker = CollectiveTracker()     the watcher reads tracker.current
    mesh.barrier("dp")    tracker.current = barrier, group  "barrier over dp"
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class CurrentCollective:
    """A function of ours that waits for other ranks."""

    name: str  # the name of the function, for example ``"barrier"``
    group: dist.ProcessGroup  # the process group that it runs on


@dataclass
class CollectiveTracker:
    """The collective of one guarded thread."""

    current: CurrentCollective | None = None  # the collective that the thread is in; None outside
    # the last one that an error left, with the id of that error
    failed: tuple[int, CurrentCollective] | None = None

    def of_error(self, error: BaseException) -> CurrentCollective | None:
        """Return the collective that an error came out of, or None."""
        return self.failed[1] if self.failed is not None and self.failed[0] == id(error) else None


_TRACKER: ContextVar[CollectiveTracker | None] = ContextVar("meshkit_tracker", default=None)


@contextmanager
def tracking() -> Iterator[CollectiveTracker]:
    """Track the collectives of this thread. Nested guards share one tracker. Local."""
    outer = _TRACKER.get()
    if outer is not None:
        yield outer
        return
    tracker = CollectiveTracker()
    token = _TRACKER.set(tracker)
    try:
        yield tracker
    finally:
        _TRACKER.reset(token)


def is_tracked() -> bool:
    """Return whether a guard is around this thread. Local."""
    return _TRACKER.get() is not None


@contextmanager
def in_collective(name: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Announce a collective to the guards around it. Local."""
    tracker = _TRACKER.get()
    if tracker is None:
        yield
        return
    outer = tracker.current
    tracker.current = entered = outer or CurrentCollective(name, group)
    try:
        yield
    except BaseException as error:
        tracker.failed = id(error), entered  # an id: the error itself would keep its frames alive
        raise
    finally:
        tracker.current = outer
