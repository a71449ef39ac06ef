"""Two processes for one rank: what both are told."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import torch.distributed as dist

from ...core.errors import LaunchError
from ..launchers.world import World
from .check_in import error_to_json
from .rank_lease import LeaseHolder, RankTakenError

PATIENCE = 2.0  # seconds for the other ranks of a job to come, before all are told


def duplicate_rank_error(world: World, base: dist.Store, taken: RankTakenError) -> LaunchError:
    """The error of a rank that another process holds; its job is told too, where it waits.

    Local, 2 s at most. A job that runs already is left alone.

    Args:
        world: who this process is.
        base: the store of the job, without the prefix of a generation.
        taken: who holds the rank.
    """
    error = _two_processes(world, taken.holder, taken.waits)
    if taken.waits:
        with suppress(RuntimeError):  # the store goes with the first of its job to raise
            _tell(base, taken.holder, error_to_json(error))
    return error


def _tell(base: dist.Store, holder: LeaseHolder, words: str) -> None:
    """Say it in the meeting where the holder waits: the verdict once all have come, or soon."""
    meeting = dist.PrefixStore(f"meshkit/{holder.generation}/meeting/1", base)
    meeting.compare_set("trouble", "", json.dumps({"clash": words}))
    deadline = time.monotonic() + PATIENCE
    while not meeting.check(["verdict"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    meeting.compare_set("verdict", "", words)


def _two_processes(world: World, holder: LeaseHolder, waits: bool) -> LaunchError:
    source = world.sources.get("rank", "rank")
    state = "waits for the others" if waits else "has joined already, and runs"
    return LaunchError(
        f"two processes claim rank {world.rank} at {_where(world)}.",
        f"{holder} came first and {state}; {LeaseHolder.here()} came after it.",
        f"The second has rank {world.rank} from {source} ({world.launcher}).",
        fix="give every process a rank of its own, and every job a MASTER_PORT (or init_method) of "
        "its own; end what an earlier job has left.",
        variables={source: str(world.rank)},
    )


def _where(world: World) -> str:
    if world.init_method in (None, "env://"):
        return f"{world.master_addr}:{world.master_port}"
    return str(world.init_method)
