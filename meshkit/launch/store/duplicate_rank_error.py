"""The error of two processes that claim one rank, raised by both."""

from __future__ import annotations

import json
from contextlib import suppress

import torch.distributed as dist

from ...core.errors import LaunchError
from ..world import World
from . import keys
from .check_in import ProcessIdentity
from .deadline import Deadline
from .error_json import error_to_json
from .rank_lease import LeaseHolder, RankTakenError

ARRIVAL_GRACE = 2.0  # seconds for the other ranks of the job to arrive before the decision
POLL_INTERVAL = 0.02  # seconds


def duplicate_rank_error(world: World, base: dist.Store, taken: RankTakenError) -> LaunchError:
    """Return the error of a rank that another process holds, and post it if its job waits.

    Local, 2 s at most. A job that runs already is left alone.
    """
    error = _error(world, taken.holder, taken.waits)
    if taken.waits:
        with suppress(RuntimeError):  # the store ends with the first rank of its job that raises
            _post(base, taken.holder, error_to_json(error))
    return error


def _post(base: dist.Store, holder: LeaseHolder, error: str) -> None:
    """Post the error in the holder's round: it becomes the decision once all ranks arrived."""
    store = dist.PrefixStore(keys.JOIN_ROUND.format(holder.generation), base)
    store.compare_set(keys.CONFLICT, "", json.dumps({"claim": error}))
    deadline = Deadline.after(ARRIVAL_GRACE)
    while not store.check([keys.DECISION]) and deadline.sleep(POLL_INTERVAL):
        pass
    store.compare_set(keys.DECISION, "", error)


def _error(world: World, holder: LeaseHolder, waits: bool) -> LaunchError:
    source = world.sources.get("rank", "rank")
    state = "waits for the others" if waits else "has joined already, and runs"
    return LaunchError(
        f"two processes claim rank {world.rank} at {_address(world)}.",
        f"{holder} came first and {state}; {ProcessIdentity.current()} came after it.",
        f"The second has rank {world.rank} from {source} ({world.launcher}).",
        fix="give every process its own rank, and every job its own MASTER_PORT (or init_method); "
        "end the processes of an earlier job.",
        variables={source: str(world.rank)},
    )


def _address(world: World) -> str:
    if world.init_method in (None, "env://"):
        return f"{world.master_addr}:{world.master_port}"
    return str(world.init_method)
