"""The current job: the ranks of the default process group, their store and their timeouts.

``_JOBS`` is the module state of meshkit. Beside it and caches of pure functions there is only::

    join            the rank of the thread that joins, and the store of a failed call
    times           the work that is still to be undone
    creation        the groups that a thread creates
    file_store      the last size of each file
    spawn           the modules that ranks preload
    torch_aborts    the receives by which meshkit has looked for lost connections
    groups/status   the context in which a guard follows collectives
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakSet

import torch.distributed as dist

from ..errors import CALL
from .agreement import ROUNDS, Agreement, Ending, delete_round
from .creation import GroupStore, create_on_all
from .default_group import (
    create_default_group,
    default_group,
    describe_added,
    guards_can_report,
    plays_one_rank,
    world_from_group,
)
from .generation import leases
from .judges import Arrivals, Describe, Json, Look, Process, RankState, Sighting
from .log import ERROR_FILE, Startup, log_line, report_uncaught_error
from .process import check_own_process, sight
from .store import Store
from .times import ARRIVAL, TIMES
from .torch_aborts import LoweredTimeouts, abort_all_groups, timeout_of
from .torch_groups import forget_groups, has_nccl, hidden_device, store_of, waits_for_peers
from .torch_meshes import clear_dtensor_cache
from .world import World, follow_recovery

LEFT = "left/{}"  # rank, in the store of a job: it has called shutdown()
RECOVERY = "recovery/{}"  # number, in the store of a generation: ranks that live find each other
# number, in the store of a generation: the part of the ranks that live since this recovery
MEMBERSHIP = "membership/{}"
RECOVERED = "recovered"  # in the store of a generation: the number of its newest membership
ADMISSION = "admission"  # in the store of a recovery round
REJOIN = "rejoin"  # the round of a membership in which its ranks create their default group
SOURCE = "mesh.recover()"
FAILURE = "a rank could not create the default process group of the ranks that live."


class Membership(NamedTuple):
    """The ranks of a job since its last recovery, or since its start."""

    number: int  # of the recovery round that decided who lives; 0 at the start
    ranks_before: Sequence[int]  # the rank at the start of the job of each rank, in order
    size_before: int  # the number of ranks at the start

    @property
    def lost(self) -> list[int]:
        """The ranks of the start that the job has lost, ascending."""
        return sorted({*range(self.size_before)} - {*self.ranks_before})


@dataclass(eq=False, repr=False)
class Counts:
    """The changing state of a job: its agreements, its recoveries, and the work of its groups."""

    recoveries: int = 0
    is_aborted: bool = False  # whether this rank has aborted the groups of the job
    # by the name of a group: what meshkit has begun there, which torch counts with the collectives
    own: Counter[str] = field(default_factory=Counter)
    aborting: threading.Lock = field(default_factory=threading.Lock)
    timeouts: LoweredTimeouts = field(default_factory=LoweredTimeouts)
    # the last agreement of each part of the store; that of all ranks has no name
    last: dict[str, Agreement] = field(default_factory=dict)
    # delete what this rank has left for others, who have read it when they enter the next round
    read_soon: list[Callable[[], object]] = field(default_factory=list)
    read: list[Callable[[], object]] = field(default_factory=list)  # those of the last round
    # of the closed meshes that still have keys in the store
    endings: list[Ending] = field(default_factory=list)
    # reads the first agreement of all ranks, if someone else created the default group
    agreed: Callable[[], Arrivals] | None = None
    # held while groups are made: two threads that build a mesh do so one after the other
    lock: threading.Lock = field(default_factory=threading.Lock)
    # the groups of the last mesh of all ranks in order, which later DeviceMeshes share; or None
    shared: Any = None
    private: int = 0  # how many meshes have had groups of their own
    # the groups that a mesh of this job has created, as long as they exist
    made: WeakSet[dist.ProcessGroup] = field(default_factory=WeakSet)
    # by thread, what raises if it must not wait for some ranks now, which wait for it
    refusals: dict[int, Callable[[str, Sequence[int]], None]] = field(default_factory=dict)
    unbound: bool = False  # whether ``meshkit.unbound()`` hides the device of the default group


@dataclass(frozen=True, eq=False, repr=False)
class Job:
    """The ranks of a default process group, their store and their timeouts.

    meshkit has up to three stores. Each is a part of the one above it, so that the keys of a start
    and of a recovery stay apart::

        attempt       attempt/0/                         every start of this job
        base          attempt/0/meshkit/2/               this start, the second
        store         attempt/0/meshkit/2/membership/1/  the ranks that live since recovery 1

    Until the first recovery ``store`` is ``base``. The groups of torch meet in one more store,
    ``group_store``. If someone else created the default group, only ``store`` is there, or none.
    """

    world: World  # this process among the ranks
    # the store of these ranks since the last recovery; None if someone else created the group and
    # torch exposes no store of it
    store: Store | None
    timeout: timedelta | None  # how long a collective may take; None is the backend's default
    arrival_timeout: timedelta  # how long ranks wait for each other
    membership: Membership
    # how often this rank has joined at this store, from 1; 0 if someone else created the group
    generation: int = 0
    # the part of the store that belongs to the generation; before the first loss the store itself
    base: Store | None = None
    # the store of all generations; None if someone else created the group
    attempt: Store | None = None
    # reads the round in which the ranks stated their processes; None before the first one
    joined: Callable[[], Arrivals] | None = None
    # how long a collective of the default group may take, outside any guard
    default_timeout: timedelta | None = None
    bind: bool = True  # whether the default group is bound to its device, if its backend can be
    seed: int | None = None  # the last seed of ``init``, as a number; None if it was given none
    # leaves the job at the end of a spawned rank; None if someone else created the group
    leave: Callable[[], None] | None = None
    # the variables that ``init`` and ``let_guards_report`` added to the environment
    completed: dict[str, str] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)  # the process of this rank
    # through which groups meet, if it is one in Python; torch keeps only its part in C++
    group_store: GroupStore | None = None
    # the seconds of this rank in ``init``; empty if someone else created the group
    startup: Startup = field(default_factory=Startup)
    counts: Counts = field(default_factory=Counts)
    known: dict[int, Process] = field(default_factory=dict)  # the processes, once they were read
    # whether there is no other process: ranks compare nothing, and barriers return at once
    plays_one_rank: bool = False
    # the mesh that this process joins, if a running job has admitted it
    arrival: Any = None
    # makes the agreements of a rehearsed rank, by the call and the ranks: no other rank runs
    rehearsed: Callable[[str, Sequence[int]], Agreement] | None = None

    def agreement(
        self,
        call: str,
        summary: str = "",
        *,
        ranks: Sequence[int] | None = None,
        part: str = "",
        limit: timedelta | None = None,
        describe: Describe | None = None,
    ) -> Agreement | None:
        """Return the next agreement of all ranks, or of those of a part; None without a store.

        Every rank counts its rounds, whatever they are about: ranks that make different calls enter
        one round, and see the difference. In a store of someone else the count is in the store.
        ``limit`` is how long ranks wait for each other, by default ``arrival_timeout``.
        """
        if self.pid != os.getpid():
            check_own_process(self.world.rank, self.pid)
        ranks = range(self.world.world_size) if ranks is None else ranks
        if refuse := self.counts.refusals.get(threading.get_ident()):
            refuse(CALL, ranks)
        if self.rehearsed is not None:
            return self.rehearsed(call, ranks)
        if self.store is None:
            return None
        store = self.store.part(part) if part else self.store
        before, clean = self.counts.last.get(part), None
        number, counter = 1 if before is None else before.number + 1, ""
        if not self.generation:
            counter = ROUNDS.format(self.world.rank)
            number = store.run(partial(store.add, counter, 1))
        if not part:  # all have connected, or never will
            connected = [] if self.group_store is None else self.group_store.take()
            clean = partial(self._clean, connected, self.counts.read)
            self.counts.read, self.counts.read_soon = self.counts.read_soon, []
        agreement = Agreement(
            *(store, f"round/{number}", self.world.rank, ranks),
            call=call,
            limit=self.arrival_timeout if limit is None else limit,
            summary=summary,
            describe=describe,
            look=self.look,
            processes=self.processes,
            number=number,
            counter=counter,
            before=before,
            clean=clean,
        )
        self.counts.last[part] = agreement
        return agreement

    def _clean(self, connected: Sequence[str], read: Sequence[Callable[[], object]]) -> None:
        """Delete keys that no rank reads any more: addresses, and those of closed meshes."""
        for delete in read:
            delete()
        if self.group_store is not None:
            self.group_store.delete(connected)
        for ending in [*self.counts.endings]:
            if ending.go_on():
                self.counts.endings.remove(ending)

    def agree(
        self,
        call: str,
        facts: Mapping[str, Json],
        summary: str,
        *,
        describe: Describe | None = None,
    ) -> int:
        """Return the number of the round in which all ranks state equal facts; 0 without store."""
        agreement = self.agreement(call, summary, describe=describe)
        if agreement is None:
            return 0
        agreement.same(facts)
        is_known = self.joined is not None or self.rehearsed is not None
        if self.counts.agreed is None and not is_known:
            self.counts.agreed = agreement.keep()
        return agreement.number

    def broadcast(self, name: str, value: Json, *, what: str, fix: str) -> Json:
        """Return the value of rank 0 on every rank, after all ranks have agreed. Collective."""
        return self.counts.last[""].broadcast(name, value, what=what, fix=fix)

    def let_guards_report(self, backend: str) -> None:
        """Set what ``init`` sets for a backend, before a group of another backend exists. Local.

        ``shutdown`` removes it. A job without ``init`` has the variables that its user has set.
        """
        if not self.generation or self.rehearsed is not None:
            return
        added = guards_can_report(replace(self.world, backend=backend), os.environ)
        os.environ.update(added)
        self.completed.update(added)
        for line in describe_added(added) if self.world.rank == 0 else ():
            log_line("%s", line)

    def abort(self) -> None:
        """Abort all groups of the job, once; on gloo nothing happens. Local."""
        was_aborted = self.counts.is_aborted
        # before the abort, after which other threads go on
        self.counts.is_aborted |= has_nccl()
        with self.counts.aborting:  # a second thread waits for the first one
            late = [] if was_aborted else abort_all_groups(TIMES.abort)
        if late:
            text = "rank %d: the abort of %d groups has not ended within %g s: %s"
            log_line(text, self.world.rank, len(late), TIMES.abort, ", ".join(late))

    def check_not_aborted(self) -> None:
        """Raise if this rank has aborted its groups, as results on NCCL may be garbage. Local."""
        if self.counts.is_aborted:
            raise dist.DistBackendError("the groups of this rank were aborted.")

    def processes(self) -> dict[int, Process]:
        """Return the process of each rank, as far as known. Local."""
        # if someone else created the default group, the first agreement knows
        first = self.joined or self.counts.agreed
        if self.known or first is None:
            return self.known
        ranks = range(self.world.world_size)
        arrived = first().arrived
        processes = {rank: arrival.process for rank, arrival in arrived.items()}
        if len(processes) == len(ranks):
            self.known.update(processes)
        return processes

    def look(self, ranks: Sequence[int]) -> dict[int, Sighting]:
        """Return the last processes of these ranks, as far as known. Call it inside a deadline."""
        known = self.processes()
        seen = {rank: sight(known[rank]) for rank in ranks if rank in known}
        if self.attempt is not None:
            first = self.membership.ranks_before
            unknown = {first[rank]: rank for rank in seen if seen[rank].state is RankState.UNKNOWN}
            for rank, lease in leases(self.attempt, [*unknown]).items():
                if lease.process != known[unknown[rank]]:
                    seen[unknown[rank]] = seen[unknown[rank]]._replace(state=RankState.ENDED)
        return seen

    def next_recovery(self) -> int:
        """Return the number of this rank's next recovery round. Local."""
        self.counts.recoveries = max(self.counts.recoveries, self.membership.number) + 1
        return self.counts.recoveries

    def recovery_store(self, number: int) -> Store:
        """Return the part of the store of a round in which ranks that live find each other."""
        return cast(Store, self.base).part(RECOVERY.format(number))

    def recovery(
        self, number: int, ranks: Sequence[int], limit: timedelta, look: Look
    ) -> Agreement:
        """Return the agreement of the ranks that live, by the number of its round. Local."""
        name, rank, store = RECOVERY.format(number), self.world.rank, cast(Store, self.base)
        return Agreement(store, name, rank, ranks, call="mesh.recover", limit=limit, look=look)

    def recovered(self) -> int:
        """Return the number of the newest membership of this generation, 0 for the first. Local."""
        base = cast(Store, self.base)
        return base.run(lambda: base.number(RECOVERED))

    def _forget_recoveries(self, number: int, world: World) -> None:
        """Delete the rounds of earlier recoveries and of the membership that is over. Local.

        All ranks have left them. A rank that was left out reads that a later membership exists.
        If a recovery has failed meanwhile, all keys of its membership go too.
        """
        base, old = cast(Store, self.base), self.membership.number

        def forget() -> None:
            if self.group_store is not None:
                self.group_store.delete(self.group_store.take())
            if world.rank:
                return
            base.set(RECOVERED, str(number))
            if old and self.joined is not None:
                delete_round(cast(Store, self.store), REJOIN, range(self.world.world_size))
            for earlier in range(max(old, 1), number):
                # newcomers are numbered beyond the ranks, at most one for each that was lost
                ranks = range(2 * self.membership.size_before)
                delete_round(base, RECOVERY.format(earlier), ranks, ADMISSION)
            for failed in range(old + 1, number):
                part = base.part(MEMBERSHIP.format(failed))
                part.delete(*part.keys())

        base.run(forget)

    def rejoin(
        self,
        number: int,
        old_ranks: Sequence[int],
        limit: timedelta,
        prepare: Callable[[World], World] = lambda world: world,
    ) -> Job:
        """Create the default group of the ranks that live, and make it the current job. Collective.

        ``old_ranks`` has the rank in this job of each new rank. The part of the store is a new one,
        without keys of the broken groups. ``prepare`` completes the world of a newcomer.
        """
        base = cast(Store, self.base)
        world = replace(
            self.world,
            rank=list(old_ranks).index(self.world.rank),
            world_size=len(old_ranks),
            local_world_size=None,  # what was known of the nodes may be wrong now
            node_rank=None,
            num_nodes=None,
            sources={**self.world.sources, "rank": SOURCE, "world_size": SOURCE},
        )
        store = Store(base.root, world, base.path).part(MEMBERSHIP.format(number))
        call, ranks = "mesh.recover", range(world.world_size)

        def look(ranks: Sequence[int]) -> dict[int, Sighting]:
            """Return the last processes of members; newcomers are unknown."""
            seen = self.look([old_ranks[rank] for rank in ranks])
            return {rank: seen[old_ranks[rank]] for rank in ranks if old_ranks[rank] in seen}

        def processes() -> dict[int, Process]:
            known = self.processes()
            return {rank: known[old] for rank, old in enumerate(old_ranks) if old in known}

        end = Agreement(
            *(store, REJOIN, world.rank, ranks),
            call=call,
            limit=limit,
            summary=FAILURE,
            look=look,
            processes=processes,
        )
        with end:
            world = prepare(world)
        group_store = create_on_all(
            end,
            limit,
            partial(create_default_group, world, store, self.default_timeout, self.bind),
            lambda _: leave_default_group(),
            connects=waits_for_peers(str(world.backend)),
        )
        self._forget_recoveries(number, world)
        before = tuple(int(self.membership.ranks_before[rank]) for rank in old_ranks)
        job = replace(
            self,
            world=world,
            store=store,
            membership=Membership(number, before, self.membership.size_before),
            joined=end.keep(),
            group_store=group_store,
            startup=Startup(),
            counts=Counts(),
            known={},
            completed=follow_recovery(world, self.completed, os.environ),
        )
        set_current_job(job)
        return job


def leave_default_group() -> None:
    """Destroy the default group and all groups made on it, or what an error left of one. Local."""
    if dist.is_initialized():
        dist.destroy_process_group()
        clear_dtensor_cache()
    elif dist.get_pg_count():
        forget_groups()


# A job lives as long as its default group.
_JOBS: WeakKeyDictionary[dist.ProcessGroup, Job] = WeakKeyDictionary()


def current_job() -> Job | None:
    """Return the job of the default group; None if there is no default group. Local."""
    group = dist.group.WORLD
    if group is None:
        return None
    if group not in _JOBS:
        if ERROR_FILE in os.environ:
            report_uncaught_error()
        time = timeout_of(group)  # read once: a guard lowers it for a while
        world, is_alone = world_from_group(group), plays_one_rank(group)
        root = None if is_alone else store_of(group)
        store = None if root is None else Store(root, world, "meshkit")
        membership = Membership(0, range(world.world_size), world.world_size)
        job = Job(world, store, time, ARRIVAL, membership, base=store, default_timeout=time)
        _JOBS[group] = replace(job, plays_one_rank=is_alone)
    return _JOBS[group]


@contextmanager
def unbound() -> Iterator[None]:
    """Let other libraries create groups of some ranks only beside a default group on NCCL.

    ``init`` binds the default group to the device of its rank. torch then splits every new group
    from it, in a call for which all ranks of the job must come. OpenRLHF, verl, slime, SGLang,
    ColossalAI and others create a group of some ranks of this job, or of two jobs, by copies of
    torch's ``init_process_group``: beside a bound default group such a call waits without an end.
    Inside this block torch sees no binding, so that the new group gets a communicator of its own.
    The binding comes back at the end of the block, after an error too.

    Local: only the ranks that create the group need it. On gloo, and after ``init(bind=False)``, it
    changes nothing. ``build_mesh`` inside the block splits nothing, so either all ranks call it
    there or none. Meanwhile no other thread may create groups. The first collective of the new
    group may follow after the block.

    Raises:
        MeshkitError: if this torch does not let the binding be hidden.

    Cost: none here. A communicator that is not split takes longer to create.

    Example:
        ``with meshkit.unbound(): group = init_custom_process_group(...)``
    """
    job = current_job()
    if job is None:
        yield
        return
    with hidden_device() as was_bound:
        before, job.counts.unbound = job.counts.unbound, job.counts.unbound or was_bound
        try:
            yield
        finally:
            job.counts.unbound = before


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
