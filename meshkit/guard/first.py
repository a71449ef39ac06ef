"""Run a block on the first rank of each node, or of the mesh, before all others run it.

::

    rank 0 of node a    body ------- arrives
    rank 1 of node a    arrives ............ body
    rank 2 of node b    body --- arrives ...
    rank 3 of node b    arrives ............ body

The ranks meet in a round of the mesh: ``round/<n>`` if the mesh has all ranks of the job, and else
``mesh/<id>/round/<n>``. A first rank arrives after its body, each other rank before, so the last
arrival means that all first bodies are done. A first rank whose body raises writes the decision.
The keys go two rounds later.

The first rank of a node runs the block at once, and the others find its result. A node is a
machine, as ``init`` found it, whatever the launcher says. Ranks that wait know within 2 s of a
missing rank whose process has ended, if one that waits is on the same machine, or if the rank was
started anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager

from ..call import Call
from ..errors import MeshkitError, SpecError
from ..groups.hosts import NO_STORE, machines
from ..groups.live_mesh import LiveMesh
from ..groups.open_mesh import agreement_of
from ..groups.registry import MeshGroups
from ..launch.agreement import Agreement
from ..launch.job import Job
from ..launch.judges import Decision, RankState
from ..launch.process import state_of
from ..launch.times import Time, parse_timeout
from ..launch.torch_groups import CollectiveCheck
from ..text import format_ranks, plural

LOOK = 1.0  # seconds between two looks whether the first rank still runs
LOOKERS = 4  # ranks that also look for the processes of missing ranks at the store
FAILED = "the block of {}() has not run on all ranks."


def first_on_node(  # noqa: D417  # self
    self: LiveMesh, *, arrival_timeout: Time | None = None
) -> AbstractContextManager[bool]:
    """Run a block on the first rank of each node, then on all others: a download, a cache.

    Collective over the mesh. The others run the block when all first ranks are done. ``as
    is_first`` is whether this rank is the first one, for what must not run twice. A node is a
    machine, as ``init`` found it. The first one computes alone: a call that waits for others is
    refused.

    Args:
        arrival_timeout: how long ranks wait for each other, the block of the first ranks
            included; None is that of the mesh.

    Raises:
        MeshkitError: on a first rank, before a collective or a call of meshkit inside that waits
            for ranks which wait for the end of the block.
        DisagreementError: on all other ranks, before they run the block, if a first rank raises
            in it, with its error; also if ranks make other calls.
        RankTimeoutError: on all ranks, if ranks do not arrive, or first ranks are not done in
            time; within 2 s if the process of a missing rank has ended, as
            :mod:`meshkit.guard.first` says.

    Cost: 4 store operations per rank, and one a second while it waits.

    Example:
        >>> with mesh.first_on_node() as is_first:
        ...     data = "downloaded" if is_first else "cached"
    """
    call = "mesh.first_on_node"
    return _run_first(self._groups, self._proposal.job, call, arrival_timeout, on_node=True)


def first(self: LiveMesh, *, arrival_timeout: Time | None = None) -> AbstractContextManager[bool]:
    """Run a block on the first rank of the mesh, then on all others.

    As :meth:`first_on_node`, for a file system that all nodes share.
    """
    call = "mesh.first"
    return _run_first(self._groups, self._proposal.job, call, arrival_timeout, on_node=False)


@contextmanager
def _run_first(
    mesh: MeshGroups, job: Job, name: str, timeout: Time | None, *, on_node: bool
) -> Iterator[bool]:
    """Yield True on the first ranks at once, and False on the others when all first are done."""
    with quoting(name):
        mesh.check_can_communicate()
        limit = parse_timeout("arrival_timeout", timeout) or job.arrival_timeout
        agreement = agreement_of(mesh, job, name, FAILED.format(name), limit)
        if job.plays_one_rank or job.rehearsed is not None:
            agreement = None  # no other rank is there
        elif agreement is None:
            raise SpecError(NO_STORE, fix="meshkit.init() in place of your init_process_group.")
    if agreement is None:
        yield True
        return
    nodes = machines(job) if on_node else [""] * job.world.world_size
    firsts = {nodes[rank]: rank for rank in [*agreement.ranks][::-1]}.values()
    with agreement:
        if mesh.rank in firsts:
            with _alone(job, name, {*agreement.ranks} - {*firsts}):
                yield True
        with quoting(name):
            agreement.arrive({"call": name})
            wait_for_all(mesh, job, agreement)
    if mesh.rank not in firsts:
        yield False


@contextmanager
def _alone(job: Job, name: str, waiting: Set[int]) -> Iterator[None]:
    """Refuse calls of this thread that wait for ranks which wait for the end of the block."""
    refusals, thread = job.counts.refusals, threading.get_ident()
    outer = refusals.get(thread)

    def refuse(call: str, ranks: Sequence[int]) -> None:
        others = sorted(waiting & {*ranks})
        if others:
            raise MeshkitError(
                f"{call} inside the block of {name}() waits for {plural('rank', len(others))} "
                f"{format_ranks(others)}, which {'waits' if len(others) == 1 else 'wait'} for the "
                "end of that block.",
                fix="move it behind the block.",
            )

    refusals[thread] = refuse
    try:
        with CollectiveCheck(refuse):
            yield
    finally:
        refusals.pop(thread)
        if outer is not None:
            refusals[thread] = outer


def wait_for_all(mesh: MeshGroups, job: Job, agreement: Agreement) -> None:
    """Wait until all ranks have arrived, the first ones after their block. Collective.

    If the process of a missing rank has ended, a rank on its machine finds this, and ends the wait
    of all. The first four ranks also read at the store whether a missing rank was started anew.
    """
    began, round = time.monotonic(), agreement.round
    known = round.store.run(job.processes)
    states = {rank: state_of(known[rank]) for rank in agreement.ranks if rank in known}
    running = {rank for rank, state in states.items() if state is not RankState.UNKNOWN}

    def look() -> Decision | None:
        ended = {rank for rank in running if state_of(known[rank]) is RankState.ENDED}
        if not ended and round.arrival_number > LOOKERS:
            return None
        running.difference_update(ended)  # one that had arrived before
        seen = round.arrivals()
        if all(sighting.state is not RankState.ENDED for sighting in seen.seen.values()):
            return None
        waited = float(f"{time.monotonic() - began:.1f}")
        return agreement.judge(waited)(seen._replace(expired=True)) or Decision()

    if (decision := agreement.watch(look, every=LOOK)) is not None:
        round.say(decision)
    agreement.decide().check(mesh.rank)


@contextmanager
def quoting(name: str) -> Iterator[None]:
    """Let errors that leave the block quote a call."""
    try:
        yield
    except MeshkitError as error:
        error.quote(Call(name))
        raise
