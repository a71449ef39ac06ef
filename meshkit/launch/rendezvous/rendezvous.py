"""Bring all ranks of a job to one store, and compare their requests there."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial
from typing import cast

import torch.distributed as dist

from ...core.errors import MeshkitError, RankTimeoutError
from ..agreement.consensus import agree, announce_failure
from ..agreement.proposal import Participants, Proposal
from ..launchers import BY_MPI
from ..store import keys
from ..store.client import address, store_lost_error
from ..store.deadline import (
    STORE_GRACE,
    Deadline,
    DeadlineExceededError,
    run_with_deadline,
    store_call,
)
from ..store.keys import FAILED, GENERATION
from ..store.rank_lease import (
    LeaseHolder,
    RankTakenError,
    acquire_rank,
    end_abandoned,
    is_generation_over,
    is_past,
)
from ..store.torchrun_attempt import COUNT
from ..world import World
from .open_store import PROBE_INTERVAL, open_store

# The store of a failed call of this process, until it joins. Rank 0 may host it, and a rank that is
# behind must find the announcements.
ANNOUNCED: list[dist.Store] = []


class AdmittedError(Exception):
    """A running job admits this process, which waits for the start of a job.

    Attributes:
        store: the store of the generation of that job.
        generation: the number of that generation.
        number: the number of the recovery in which it admits the process.
    """

    def __init__(self, base: dist.Store, generation: int, number: int) -> None:
        super().__init__(generation, number)
        self.store = dist.PrefixStore(GENERATION.format(generation), base)
        self.generation, self.number = generation, number


def rendezvous(
    proposal: Proposal, world: World, deadline: Deadline, phases: dict[str, float]
) -> tuple[Participants, int]:
    """Bring all ranks to one store, and return when their requests are equal. Collective.

    The ranks use a part of the store that belongs to one generation, so that the keys of an earlier
    group are never used again. Each rank counts how often it has joined, so all ranks that join
    together have the same generation without communication. A rank retries if it has reached the
    store of an earlier group, or of a start of the job that was given up. If a running job that has
    lost this rank admits it, it raises AdmittedError.
    """
    while True:
        began = time.monotonic()
        try:
            participants, lease = _enter_generation(world, deadline)
        except dist.DistNetworkError as error:
            if not deadline.sleep(PROBE_INTERVAL):
                raise store_lost_error(world) from error
            continue
        entered = time.monotonic()
        try:
            end = partial(end_abandoned, participants.store, lease.generation)
            beginning = proposal._replace(process_start=lease.start, check_first=end)
            agree(beginning, participants, deadline)
            ANNOUNCED.clear()
            phases.update(store=entered - began, arrival=time.monotonic() - entered)
            return participants, lease.generation
        except RankTimeoutError as error:
            store_is_gone = isinstance(error.__cause__, dist.DistNetworkError)
            is_over = not store_is_gone and is_generation_over(participants.store)
            if is_over:
                _raise_if_admitted(participants, lease.generation)
            if not (store_is_gone or is_over) or not deadline.sleep(PROBE_INTERVAL):
                error.evidence += _describe_running_job(participants, lease.generation)
                raise


def _raise_if_admitted(participants: Participants, generation: int) -> None:
    """Raise AdmittedError if a job that runs has ended this start, to admit its ranks."""
    from ..agreement.admission import read_invitation

    world, base = participants.world, _base_of(participants)
    invitation = store_call(
        world, STORE_GRACE, lambda: read_invitation(base, generation, world.rank)
    )
    if invitation is not None:
        raise AdmittedError(base, *invitation)


def _describe_running_job(participants: Participants, generation: int) -> tuple[str, ...]:
    """Return a line on a job of an earlier generation that goes on after a loss, if there is one.

    Cost: one store operation per generation.
    """
    base = _base_of(participants)
    first = keys.RECOVERY.format(1)
    earlier = [f"{GENERATION.format(number)}/{first}" for number in range(1, generation)]
    try:
        stores = [dist.PrefixStore(prefix, base) for prefix in earlier]
        runs = run_with_deadline(1, lambda: any(s.check([keys.BEGUN]) for s in stores))
    except (RuntimeError, DeadlineExceededError):  # the store is gone
        return ()
    line = "A job at this store goes on after a loss. It admits a new process by mesh.admit()."
    return (line,) * runs


def _base_of(participants: Participants) -> dist.Store:
    return cast(dist.PrefixStore, participants.store).underlying_store


def announce_init_failure(
    proposal: Proposal, world: World, deadline: Deadline, error: MeshkitError
) -> None:
    """Report to ranks that wait in ``init`` that this rank's own call failed.

    Local. Nothing is reported if the store cannot be reached before the deadline. The other ranks
    have a few seconds more to read the report.

    The n-th call of a rank meets the n-th call of the others, failed calls included. If all ranks
    make the same failing calls and catch the errors, their next valid call works. If one rank fails
    while the others wait in a valid call, they are told at once.
    """
    if world.launcher in BY_MPI:
        from .one_node import store_of_one_node

        world = store_of_one_node(world) or world
    if world.world_size == 1 or (world.init_method is None and None in address(world)):
        return
    try:
        participants, _ = _enter_generation(world, deadline, keep_file=True)
        run_with_deadline(STORE_GRACE, lambda: participants.store.set(FAILED, ""))
    except (MeshkitError, RuntimeError, DeadlineExceededError):  # the caller raises ``error``
        return
    ANNOUNCED[:] = [participants.store]
    announce_failure(proposal, participants, error)


def _enter_generation(
    world: World, deadline: Deadline, *, keep_file: bool = False
) -> tuple[Participants, LeaseHolder]:
    """Return all ranks at the store of this rank's next generation, and the claim of this rank."""

    def enter() -> tuple[Participants, LeaseHolder]:
        base = open_store(world, deadline, keep_file=keep_file)
        try:
            lease = acquire_rank(base, world.rank)
        except RankTakenError as taken:
            from ..store.duplicate_rank_error import duplicate_rank_error

            raise duplicate_rank_error(world, base, taken) from None
        if COUNT in os.environ and is_past(
            base
        ):  # the next attempt has begun meanwhile, and has not seen this rank
            return enter()
        store = dist.PrefixStore(GENERATION.format(lease.generation), base)
        ranks = range(world.world_size)
        return Participants(store, world, ranks, counter=Counter()), lease

    try:
        return run_with_deadline(deadline.left + STORE_GRACE, enter)
    except DeadlineExceededError:
        raise store_lost_error(world, silent=True) from None


def with_address(world: World, deadline: Deadline) -> tuple[World, dist.Store | None]:
    """Return the world of a rank of mpirun with a store, and an object that holds its port.

    Local on one node. On several nodes rank 0 broadcasts an address through MPI.
    """
    if world.init_method or None not in address(world) or world.world_size == 1:
        return world, None
    from .one_node import store_of_one_node

    if on_one_node := store_of_one_node(world):
        return on_one_node, None
    from .mpi import address_by_mpi

    return address_by_mpi(world, deadline)
