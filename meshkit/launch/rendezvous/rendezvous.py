"""The ranks of a job find one store and meet there, under one deadline."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from ...core.errors import MeshkitError, RankTimeoutError
from ..agreement.consensus import Participants, Proposal, agree, announce_failure
from ..launchers.world import World
from ..store.client import (
    PROBE_INTERVAL,
    STORE_GRACE,
    Generation,
    address,
    open_store,
    store_lost_error,
)
from ..store.deadline import DeadlineExceededError, run_with_deadline
from ..store.duplicate_rank import duplicate_rank_error
from ..store.rank_lease import RankTakenError, acquire_rank, is_generation_over
from ..store.torchrun_attempt import is_past
from .mpi import BY_MPI, told_by_mpi


def rendezvous(
    matter: Proposal, world: World, wait: timedelta, *, since: float
) -> tuple[World, dist.Store, int]:
    """All ranks at one store, under a prefix of this generation. Collective.

    Keys of an earlier group on the same store must not be met again: each rank counts its own
    joins, so all ranks that join together agree on the generation without a word. A rank that
    still found the store of an earlier group, which went with it, comes again; so does one that
    waited in a start of the job that has been given up.

    Args:
        matter: what must be equal on all ranks.
        world: who this process is.
        wait: how long ranks wait for each other.
        since: when that time began, on the monotonic clock.

    Returns:
        The world with the address, where it had to be told; the store; the generation.
    """
    world, _held = _located(world, wait, since)
    while True:
        try:
            store, generation = _opened(world, wait, since)
        except dist.DistNetworkError as error:
            if not _rested(since, wait):
                raise store_lost_error(world) from error
            continue
        try:
            agree(matter, Participants.of(store, world), wait, since=since)
            return world, store, generation
        except RankTimeoutError as error:
            gone = isinstance(error.__cause__, dist.DistNetworkError) or is_generation_over(store)
            if not gone or not _rested(since, wait):
                raise


def announce_init_failure(
    matter: Proposal, world: World, wait: timedelta, error: MeshkitError
) -> None:
    """Tell ranks that wait in ``init`` that this one will not come, as its call was refused.

    Local. It takes ``wait`` to reach the store, after which nobody is told, and a few seconds for
    the others to read.
    """
    if world.world_size == 1 or (world.init_method is None and None in address(world)):
        return
    try:
        store, _ = _opened(world, wait, time.monotonic(), keep=True)
    except (MeshkitError, RuntimeError):  # the caller has its own error to tell
        return
    announce_failure(matter, Participants.of(store, world), error)


def _rested(since: float, wait: timedelta) -> bool:
    """A moment before another try; False where no time is left for one."""
    left = since + wait.total_seconds() - time.monotonic() > PROBE_INTERVAL
    time.sleep(PROBE_INTERVAL if left else 0)
    return left


def _opened(
    world: World, wait: timedelta, since: float, *, keep: bool = False
) -> tuple[dist.Store, int]:
    """The store under the prefix of this rank's next generation, and its number.

    Raises:
        LaunchError: where another process holds the rank.
        RankTimeoutError: where the store answers nothing.
    """

    def open_and_sit() -> tuple[dist.Store, int]:
        base = open_store(world, wait, since=since, keep=keep)
        try:
            generation = acquire_rank(base, world.rank)
        except RankTakenError as taken:
            raise duplicate_rank_error(world, base, taken) from None
        if is_past(base):  # the next attempt has begun meanwhile, and has not seen this rank
            return open_and_sit()
        return Generation(generation, base), generation

    try:
        left = since + wait.total_seconds() - time.monotonic()
        return run_with_deadline(max(0.0, left) + STORE_GRACE, open_and_sit)
    except DeadlineExceededError:
        raise store_lost_error(world, silent=True) from None


def _located(world: World, wait: timedelta, since: float) -> tuple[World, dist.Store | None]:
    """The world with an address: where nobody gave one, mpirun's ranks tell each other."""
    unknown = world.init_method is None and None in address(world)
    if unknown and world.launcher in BY_MPI and world.world_size > 1:
        return told_by_mpi(world, wait, since)
    return world, None
