"""Close a mesh: on NCCL all ranks together, as its groups end on all of them at once.

A rank that closes a mesh leaves its share of the end, which the next rounds of the job delete.
Ranks that have failed, and those that wait for them, need some seconds for each other::

    with mesh:              rank 0 closes ........................ reads the mark, aborts its groups
        step()              rank 1 fails, waits 5 s, leaves a mark, aborts its groups
                            rank 2 works ............... closes, reads the mark, aborts its groups

The keys, below ``mesh/<id>``::

    key                written by                                    goes
    closing/count      each rank that closes the mesh                once all have agreed
    closing/given_up   a rank that an error ended, and that no       stays
                       longer waits: the mark
    closed/<rank>      each rank of a mesh that has spares           after the end of the mesh
    waiting            spares: how many wait                         after a loss

The agreement to close is a round of the mesh, as in :mod:`meshkit.launch.agreement`.

If ranks are missing on NCCL, all groups of the job are aborted. An error that leaves ``with mesh``
waits 5 s for the other ranks. After the report of a guard the end is local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from ..errors import CollectiveError, MeshkitError, RankTimeoutError
from ..launch.agreement import Agreement, Ending, delete_round
from ..launch.job import Job
from ..launch.judges import Decision
from ..launch.store import Store
from ..launch.times import TIMES, Deadline
from .groups import destroy_groups, is_destroyed_collectively
from .open_mesh import agreement_of
from .registry import MeshGroups
from .status import is_collective_error

CALLS = "calls"  # the number of roll calls of a mesh
OPENER = "opener/{}"  # the rank that opened a roll call
STATUS = "status/{}"  # the status with which a rank left the guard, or stopped using the mesh
EXIT = "exit/{}"  # what a rank had begun when it left its last guard without an error
OWN = "own/{}"  # the own seconds of a rank in its last steps, in guards with stragglers=True
OVER = "over/{}"  # a false alarm: the rank that opened it left its guard without an error
READERS = "readers"  # in a roll call: how many ranks have read the report
COUNT = "count"  # in the store of a mesh that ends: how many ranks close it
GIVEN_UP = "given_up"  # there too: a rank waits no longer for the others
CLOSED = "closed/{}"  # in the store of a mesh: a rank has closed it
WAITING = "waiting"  # in the store of a mesh: how many spares wait for a loss
NOT_CLOSED = "ranks disagree about the end of a mesh."


def close_mesh(mesh: MeshGroups, job: Job, error: BaseException | None) -> None:
    """Destroy the created groups of a mesh that no open view uses.

    Local on gloo. Collective over the mesh on NCCL, whose groups end on all ranks together. If an
    error has ended the block of the mesh, the other ranks have some seconds to come. All groups of
    the job are aborted if they do not, or if a collective has failed: then this call is local.
    """
    layout = mesh.plan.layout
    if error is None and layout.num_ranks < job.world.world_size:
        _release_spares(mesh, job)
    if not mesh.is_closed and mesh.rank in layout and job.store is not None:
        job.counts.endings.append(_ending_of(mesh, job, job.store))
    together = is_destroyed_collectively(mesh.groups.by_key.values())
    groups = mesh.release()
    try:
        if together and (
            job.counts.is_aborted
            or isinstance(error, CollectiveError | RankTimeoutError)
            or (error is not None and is_collective_error(error))
        ):
            job.abort()
        elif together and layout.num_ranks > 1 and mesh.rank in layout:
            _close_together(mesh, job, error)
    except BaseException:
        job.abort()
        raise
    finally:
        destroy_groups(groups)


def end_lost_mesh(mesh: MeshGroups, before: Job, job: Job, old_ranks: Sequence[int]) -> None:
    """Let the next rounds of a job after a recovery delete what the job before has left. Local.

    ``old_ranks`` are the numbers in the job before of the ranks that live; newcomers are beyond.
    """
    if mesh.rank in mesh.plan.layout:
        ending = _ending_of(mesh, before, cast(Store, before.store))
        lost = {int(rank) for rank in mesh.plan.layout.grid.flat} - {*old_ranks}
        names = (CLOSED, *(f"guard/{name}" for name in (STATUS, EXIT, OWN)))
        keys = [*ending.keys, WAITING, *(name.format(rank) for name in names for rank in lost)]
        size = ending.size - len(lost)
        job.counts.endings.append(replace(ending, size=size, keys=keys, is_lost=True))


def _ending_of(mesh: MeshGroups, job: Job, store: Store) -> Ending:
    """Return the share of this rank in the end of a mesh."""
    rank, id = mesh.rank, mesh.round_id
    keys = [CLOSED.format(rank), *(f"guard/{key.format(rank)}" for key in (STATUS, EXIT))]
    keys += [f"external/{strides}/{rank}" for strides in mesh.registry.external_groups]
    ranks = [int(rank) for rank in mesh.plan.layout.grid.flat]
    finish = partial(forget_calls, store.part(f"mesh/{id}/guard"), ranks)
    keys += mesh.posted
    return Ending(store, job.counts.last, id, len(ranks), keys, finish)


def _close_together(mesh: MeshGroups, job: Job, error: BaseException | None) -> None:
    """Agree to close a mesh. Collective over it.

    A rank that an error has brought here enters the agreement once all ranks close the mesh: others
    may be in another call, which they would then see fail.
    """
    closing = None if job.store is None else job.store.part(f"mesh/{mesh.round_id}/closing")
    wait = 0.0 if error is None else TIMES.failure_stays

    def come() -> bool:
        """Count this rank, and return whether all have come in time."""
        number, deadline = cast(Store, closing).add(COUNT, 1), Deadline.after(wait)
        while number < mesh.plan.layout.num_ranks and deadline.sleep(TIMES.poll):
            number = cast(Store, closing).number(COUNT)
        return number >= mesh.plan.layout.num_ranks

    limit = TIMES.store + wait
    all_come = closing and (closing.try_within(limit, come) if wait else closing.try_run(come))
    agreement = agreement_of(mesh, job, "mesh.close", NOT_CLOSED)
    if closing is None or agreement is None:
        return
    if error is not None and not all_come:
        closing.try_run(partial(_give_up, closing, agreement))
        job.abort()
        return
    facts = {"call": "mesh.close", "mesh": f"{mesh.built_by}, number {mesh.round_id}"}
    try:
        with agreement:
            agreement.arrive(facts)
            if closing.run(partial(closing.has, GIVEN_UP)):
                agreement.round.say(Decision(value=GIVEN_UP))
            decision = agreement.decide().check(mesh.rank)
    except MeshkitError:
        if error is None:
            raise
        job.abort()  # the error of the block is the one that leaves it
        return
    if decision.value == GIVEN_UP:
        job.abort()
    elif mesh.rank == mesh.plan.layout.ranks[0]:
        closing.try_run(partial(closing.delete, COUNT))


def _give_up(closing: Store, agreement: Agreement) -> None:
    """Let the ranks that close the mesh, now or later, do so without this one. Local.

    A rank looks for the mark after it has come to the round, and this one looks for ranks in the
    round after it has left the mark.
    """
    closing.set(GIVEN_UP, "")
    first = agreement.round.first()
    if first is not None and first.facts["call"] == "mesh.close":
        agreement.round.say(Decision(value=GIVEN_UP))


def _release_spares(mesh: MeshGroups, job: Job) -> None:
    """Let spares know that this rank closes the mesh; rank 0 stays up to 5 s for them."""
    if job.store is None or mesh.is_closed or mesh.view_id or mesh.rank not in mesh.plan.layout:
        return
    store = job.store.part(f"mesh/{mesh.round_id}")

    def post() -> None:
        store.set(CLOSED.format(mesh.rank), "")
        store.stay(TIMES.failure_stays, lambda: store.number(WAITING) <= 0)

    store.try_within(TIMES.host_stays + TIMES.failure_stays * store.is_host, post)


def forget_calls(store: Store, ranks: Sequence[int]) -> None:
    """Delete the roll calls of a mesh that all its ranks have closed. Call it in a deadline."""
    for number in range(1, store.number(CALLS) + 1):
        delete_round(store, f"call/{number}", ranks, READERS)
        store.delete(OPENER.format(number), OVER.format(number))
    store.delete(CALLS)
