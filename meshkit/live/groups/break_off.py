"""Break off the groups of a mesh, so that the ranks that wait for this one get an error at once.

A rank that leaves a guard with an error of its own has posted that error. The others wait in a
collective, at most until its timeout. This rank therefore closes the connections of its groups
(gloo), or aborts them (nccl)::

    rank 1   ZeroDivisionError in step() ... 0.3 s ... closes its connections
    rank 0   waits in all_reduce ..................... torch raises, roll call: "rank 1 left with
                                                       ZeroDivisionError: division by zero"
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import torch.distributed as dist

from ...launch.connections import close_connections
from ...launch.store.deadline import DeadlineExceededError, run_with_deadline
from ...launch.torch_internals import collective_count, gloo_address
from .destroy import abort_groups

LEAVE_GRACE = 0.3  # seconds in which a rank that handles its error goes on
STORE_TIME = 1.0  # seconds in which the addresses of the groups are read

# The addresses of this rank in groups, read while the store answers: its host may be the rank that
# dies.
_known: weakref.WeakKeyDictionary[dist.ProcessGroup, bytes] = weakref.WeakKeyDictionary()

Counts = Sequence[tuple[weakref.ref[dist.ProcessGroup], int | None]]


def break_off(groups: Iterable[dist.ProcessGroup]) -> None:
    """Close the connections of groups on this rank, or abort the groups. Local.

    Cost: two store operations per group whose address :func:`know_addresses` has not read.
    """
    whole = [*dict.fromkeys(groups)]
    addresses = _addresses(whole)
    abort_groups(whole)
    close_connections(addresses)


def break_off_soon(groups: Iterable[dist.ProcessGroup], is_over: Callable[[], bool]) -> None:
    """Break off groups in a third of a second, from another thread, unless the rank goes on.

    Local. The rank goes on if it begins a collective, or if ``is_over`` returns True. The thread
    keeps no group alive.
    """
    whole = [*dict.fromkeys(groups)]
    counts = [(weakref.ref(group), collective_count(group)) for group in whole]
    arguments = counts, _addresses(whole), is_over
    threading.Thread(target=_wait_and_break, args=arguments, daemon=True).start()


def _wait_and_break(
    counts: Counts, addresses: Sequence[bytes], is_over: Callable[[], bool]
) -> None:
    time.sleep(LEAVE_GRACE)
    if any(_has_begun(group(), count) for group, count in counts) or is_over():
        return
    abort_groups(group for ref, _ in counts if (group := ref()) is not None)
    close_connections(addresses)


def _has_begun(group: dist.ProcessGroup | None, count: int | None) -> bool:
    """Return whether this rank has begun a collective on a group since it was counted."""
    return group is not None and collective_count(group) != count


def know_addresses(groups: Iterable[dist.ProcessGroup]) -> None:
    """Read the addresses of this rank in groups, so that it can break them off without a store.

    Cost: two store operations per group, the first time.
    """
    for group in groups:
        if group not in _known and (address := gloo_address(group)) is not None:
            _known[group] = address


def _addresses(groups: Sequence[dist.ProcessGroup]) -> list[bytes]:
    """Return the addresses of this rank in the groups, as far as they are known."""
    with suppress(RuntimeError, DeadlineExceededError):
        run_with_deadline(STORE_TIME, lambda: know_addresses(groups))
    return [_known[group] for group in groups if group in _known]
