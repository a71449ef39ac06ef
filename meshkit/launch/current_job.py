"""The current job: the ranks of the default process group, their store and their timeouts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch.distributed as dist

from .agreement.consensus import agree, announce_failure
from .agreement.proposal import Participants, Proposal
from .default_group import Connections, default_group, store_from_group, world_from_group
from .log import Startup, report_uncaught_error
from .own_process import check_own_process
from .store.deadline import ARRIVAL, Deadline
from .torch_internals import timeout_of
from .world import World

if TYPE_CHECKING:
    from .agreement.admission import Arrival


class Origin(NamedTuple):
    """The start of a job that has lost ranks since."""

    store: dist.Store  # the store of the first generation
    ranks: Sequence[int]  # the first rank of each rank, in order
    world_size: int  # the number of ranks at the start
    generation: int  # the number of that generation

    @property
    def base(self) -> dist.Store:
        """The store of all generations."""
        return cast(dist.PrefixStore, self.store).underlying_store

    @property
    def lost(self) -> list[int]:
        """The first ranks that the job has lost, ascending."""
        return sorted({*range(self.world_size)} - {*self.ranks})


@dataclass(frozen=True, eq=False, repr=False)
class Job:
    """The ranks of a default process group, their store and their timeouts."""

    world: World  # this process among the ranks
    # the store of this generation; None if someone else created the group and torch exposes no
    # store of it
    store: dist.Store | None
    timeout: timedelta | None  # how long a collective may take; None is the backend's default
    arrival_timeout: timedelta  # how long ranks wait for each other
    # how many times this rank has joined at this store, from 1; 0 if someone else created the group
    generation: int
    # how long a collective of the default group may take, outside any guard
    default_timeout: timedelta | None
    seed: int | None = None  # the last seed of ``init``, as a number; None if it was given none
    # destroys the group at the end of a spawned rank; None if someone else created it
    leave: Callable[[], None] | None = None
    # the number of this rank's agreement rounds by prefix; None counts in the store
    counter: Counter[str] | None = None
    # the variables that ``init`` added to the environment
    completed: Mapping[str, str] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)  # the process of this rank
    # the pairs of ranks that the default group has connected
    connections: Connections = field(default_factory=Connections)
    # the seconds of this rank in ``init``; empty if someone else created the group
    startup: Startup = field(default_factory=Startup)
    origin: Origin | None = None  # the start of the job, if it has been recovered since
    # the mesh that this process joins, if a running job has admitted it
    arrival: Arrival | None = None

    @property
    def world_at_start(self) -> World:
        """This process in the world for which its first mesh is requested.

        A process that a running job has admitted requests the mesh that the job had at its start.
        """
        return self.world if self.arrival is None else self.arrival.world

    @property
    def lease_generation(self) -> int | None:
        """The generation of the ranks' leases, 1 in a recovered job; None if unknown."""
        return 1 if self.origin is not None else self.generation or None

    def participants(
        self, ranks: Sequence[int] | None = None, prefix: str = ""
    ) -> Participants | None:
        """Return ranks at the store; None if there is no store. Local.

        Every agreement begins here, so a process that is no rank is refused here.
        """
        if self.pid != os.getpid():
            check_own_process(self.world.rank, self.pid)
        if self.store is None:
            return None
        ranks = range(self.world.world_size) if ranks is None else ranks
        return Participants(self.store, self.world, ranks, prefix, self.counter)

    def agree(
        self, proposal: Proposal, *, ranks: Sequence[int] | None = None, prefix: str = ""
    ) -> int:
        """Return the id of the round in which all ranks made an equal proposal.

        Collective over the ranks. Returns 0 at once if there is no store. Raises as
        :func:`~meshkit.launch.agreement.consensus.agree`.
        """
        participants = self.participants(ranks, prefix)
        if participants is None:
            return 0
        return agree(proposal, participants, Deadline.after(self.arrival_timeout))

    def announce_failure(self, proposal: Proposal, error: BaseException) -> None:
        """Report to the other ranks, in their next round, that this rank's own call failed. Local.

        Nothing happens without a store.
        """
        participants = self.participants()
        if participants is not None:
            announce_failure(proposal, participants, error)


# The only module state of meshkit. A job lives as long as its default group.
_JOBS: WeakKeyDictionary[dist.ProcessGroup, Job] = WeakKeyDictionary()


def current_job() -> Job | None:
    """Return the job of the default group; None if there is no default group. Local."""
    group = dist.group.WORLD
    if group is None:
        return None
    if group not in _JOBS:
        report_uncaught_error()
        time = timeout_of(group)  # read once: a guard lowers it for a while
        world, store = world_from_group(group), store_from_group(group)
        _JOBS[group] = Job(world, store, time, ARRIVAL, 0, time)
    return _JOBS[group]


def require_job() -> Job:
    """Return the job of the default group. Local."""
    default_group()
    return cast(Job, current_job())


def set_current_job(job: Job) -> None:
    """Keep the job of the default group."""
    group = default_group()
    if group not in _JOBS:
        _JOBS.clear()  # Ctrl-C in the callback of a weak reference leaves the entry of a dead group
    _JOBS[group] = job
