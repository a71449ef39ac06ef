"""Let the ranks of a job, or some of them, agree: one question after the other, a round for each.

The rounds of the same ranks have numbers. A rank that arrives in round 2 has left round 1. So the
last rank to arrive in round 2 knows that no rank reads round 1 any more. It deletes the keys of
round 1 as it arrives in round 3, for which all ranks wait anyway::

    rank 0   round 1 ........ round 2 ............ round 3
    rank 1   ....... round 1 ........ round 2      round 3: deletes the keys of round 1

So the keys of two rounds stay. Rounds of all ranks are in the store of the job, those of some ranks
in a part of it, whose last rounds are deleted after its mesh was closed (:class:`Ending`)::

    key                                   written by                     goes
    round/<n>/...                         all ranks                      in round n + 2
    mesh/<id>/round/<n>/...               the ranks of a mesh            in n + 2, or after its end
    mesh/<id>/barrier/<d>/round/<n>/...   those of a group               in n + 2, or after its end
    move/<mesh>/<mesh>/round/<n>/...      those of two meshes            in n + 2, or after one end
    <part>/rounds/<rank>                  a rank, at a store of someone  after the end of the mesh
                                          else: its number of rounds
    mesh/<id>/ended                       a rank that closes the mesh    when its keys are gone

:mod:`meshkit.launch.round` lists the keys of a round. A broadcast adds a decision of rank 0 below
them, which goes with the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TypeVar

from ..errors import MeshkitError, RankTimeoutError
from .judges import (
    Arrivals,
    Decision,
    Describe,
    Json,
    Judge,
    Look,
    all_same,
    all_same_and_stated,
    disagreement,
)
from .round import ANY, DECISION, Processes, Round
from .store import Store
from .times import TIMES, Deadline

ENDED = "ended"  # in the store of a mesh: how many ranks have closed it, or deleted their keys
ROUNDS = "rounds/{}"  # rank, in a part of a store of someone else: how many rounds it has entered

Seen = TypeVar("Seen")


class Agreement:
    """One question that ranks of a job answer together, in a round of their own.

    As a context manager it announces an error that leaves the block before this rank has read a
    decision. ``clean`` deletes keys of this rank before it arrives.

    Attributes:
        ranks: the ranks that answer.
        call: the public function that they call.
        summary: the first line of the error of ranks that differ, or of one that gave up.
        number: its number among the rounds of the same ranks; 0 if they are not numbered.
        counter: the key of that number, if it is in a store of someone else.
        before: the agreement before of the same ranks, whose keys are still in the store.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        ranks: Sequence[int],
        *,
        call: str,
        limit: timedelta,
        summary: str = "",
        describe: Describe | None = None,
        look: Look | None = None,
        processes: Processes | None = None,
        number: int = 0,
        counter: str = "",
        before: Agreement | None = None,
        clean: Callable[[], object] | None = None,
    ) -> None:
        self.rank, self.ranks, self.call, self.limit = rank, ranks, call, limit
        self.summary, self.describe = summary or f"ranks disagree about {call}().", describe
        self.number, self.counter, self.before, self._clean = number, counter, before, clean
        self.round = Round(
            *(store, name, rank, ranks),
            summary=self.summary,
            look=look,
            processes=processes,
            clean=self._forget,
        )

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)

    @cached_property
    def deadline(self) -> Deadline:
        """The end of the wait of this rank, which begins when it is first asked for."""
        return Deadline.after(self.limit)

    # ------------------------------------------------------------ whole agreements

    def same(
        self, facts: Mapping[str, Json], check: Callable[[], object] | None = None
    ) -> Decision:
        """Return the decision once all ranks have stated equal facts. Collective.

        If ``check`` raises on a rank, no rank waits.
        """
        with self:
            deadline = self.deadline  # it begins here
            if check is not None:
                check()
            self.arrive({"call": self.call, **facts}, deadline=deadline)
            return self.decide().check(self.rank)

    def stated(
        self, facts: Mapping[str, Json], name: str, read: Callable[[], Json], *, alike: bool
    ) -> list[tuple[Json, list[int]]]:
        """Return what ranks state beside equal facts, each value with its ranks. Collective.

        ``read`` returns what this rank states under the name, or None for nothing. If it raises, no
        rank waits. ``alike`` is whether all that is stated must be equal.
        """
        with self:
            deadline, own = self.deadline, read()
            statement = {} if own is None else {name: own}
            facts = {"call": self.call, **facts, **statement}
            self.arrive(facts, same=False, deadline=deadline)
            seconds = self.limit.total_seconds()
            judge = all_same_and_stated(
                self.summary, name, alike=alike, seconds=seconds, describe=self.describe
            )
            decision = self.decide(judge, poll=TIMES.poll).check(self.rank)
        return [(value, ranks) for value, ranks in decision.value]

    def compare(self, facts: Mapping[str, Json]) -> None:
        """Raise if the first rank has stated other facts; wait for no rank. Local."""
        self.arrive(facts)
        Decision(disagreement(self.summary, Arrivals((), self.round.differing))).check(self.rank)

    def broadcast(self, name: str, value: Json, *, what: str, fix: str) -> Json:
        """Return the value of rank 0 on every rank, after they have arrived. Collective."""
        self.round.keys |= {f"{name}/{DECISION}"}
        deadline = Deadline.after(self.limit)
        return broadcast(self.round.store, deadline, name, value, what=what, fix=fix)

    # ------------------------------------------------------------ parts of one

    def arrive(
        self,
        facts: Mapping[str, Json],
        *,
        same: bool = True,
        objection: MeshkitError | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Leave the record of this rank, compared with the first one or not. Local."""
        deadline = deadline or self.deadline
        self.round.arrive(facts, same=same, objection=objection, deadline=deadline)

    def watch(self, look: Callable[[], Seen | None], every: float) -> Seen | None:
        """Wait until all have arrived or one has decided, and look for a reason to end the wait.

        It ends at the deadline too, and returns what ``look`` has returned. Collective.
        """
        seen = None
        while (
            seen is None
            and self.round.arrival_number < len(self.ranks)
            and not self.deadline.expired
        ):
            if self.round.follow(Deadline.after(min(every, self.deadline.left))) is not None:
                break
            seen = look()
        return seen

    def decide(
        self,
        judge: Judge | None = None,
        *,
        deadline: Deadline | None = None,
        poll: float | None = None,
    ) -> Decision:
        """Return the decision of all ranks, by default that of equal facts. Collective."""
        return self.round.decide(judge or self.judge(), deadline or self.deadline, poll=poll)

    def has_failed(self, judge: Judge) -> bool:
        """Return whether a rank has announced a failure, or has ended. Local."""
        return self.round.has_failed(judge)

    def judge(self, seconds: float | None = None) -> Judge:
        """Return the judge of ranks that must state equal facts. Local."""
        seconds = self.limit.total_seconds() if seconds is None else seconds
        return all_same(self.summary, seconds=seconds, describe=self.describe)

    def fail(self, error: BaseException) -> None:
        """Announce that this rank's own call failed, unless a decision was read. Local."""
        self.round.fail(error)

    # ------------------------------------------------------------ its keys

    def keep(self) -> Callable[[], Arrivals]:
        """Keep its keys as long as the store, and return what reads the records. Local."""
        self.round.keys = frozenset()
        kept = copy(self.round)
        kept.look = kept.processes = kept.clean = None  # the job would refer to itself
        return kept.arrivals

    def delete(self) -> None:
        """Delete its keys and those of the one before, which all have left. In a deadline."""
        for over in filter(None, (self.before, self)):
            over.round.keys |= ANY
            over.round.delete()

    def _forget(self) -> None:
        """Delete what all ranks have left before they come here. In a deadline."""
        before = self.before
        if before is not None:
            if not before.round.arrival_number:  # an error ended that one early on this rank
                before.round.count()
            if before.before is not None and before.round.arrival_number == len(self.ranks):
                before.before.round.delete()
            before.before = None
        if self._clean is not None:
            self._clean()


def broadcast(
    store: Store, deadline: Deadline, name: str, value: Json, *, what: str, fix: str
) -> Json:
    """Return the value of rank 0 on every rank of a store. Collective."""
    rank = store.world.rank
    round = Round(store, name, rank, ())
    if rank == 0:
        return round.say(Decision(value=value)).value
    decision = round.follow(deadline)
    if decision is not None:
        return decision.value
    raise RankTimeoutError(
        f"rank {rank} did not receive {what}.",
        f"Rank 0 did not send it within {deadline}.",
        fix=fix,
        missing_ranks=(0,),
    )


def delete_round(store: Store, name: str, ranks: Sequence[int], *more: str) -> None:
    """Delete a round that all ranks have left, with more keys of its part. In a deadline."""
    round = Round(store, name, store.world.rank, ranks)
    round.keys = ANY | {*more}
    round.delete()


@dataclass(eq=False)
class Ending:
    """The share of one rank in the end of a mesh, whose keys others may still read.

    The host of the store may end after the last call on a mesh. So a rank does its share when it
    arrives in later rounds of all ranks, for which the host waits::

        rank 0   closes ............ round 7: counts itself   round 8: all have, deletes its keys
        rank 1   ........... closes  round 7: counts itself   round 8: deletes its keys, and ended

    Attributes:
        store: the store of the job.
        last: the last agreement of this rank in each part of it.
        id: the number of the round in which the mesh was built.
        size: how many ranks the mesh has.
        keys: the keys of this rank in the part of the mesh, beside its rounds.
        finish: deletes the keys that ranks have left together; the last rank calls it.
        is_lost: whether ranks of the job were lost, so that all of its rounds are over, and each
            rank deletes what the lost ones have left.
        ended: the last agreements of the mesh; None before this rank has counted itself.
    """

    store: Store
    last: dict[str, Agreement]
    id: int
    size: int
    keys: Sequence[str]
    finish: Callable[[], object]
    is_lost: bool = False
    ended: list[Agreement] | None = None

    def go_on(self) -> bool:
        """Do the next part of the share, and return whether that was the last. In a deadline.

        Cost: a store operation; later one for each key, and a few for each part with rounds.
        """
        part = self.store.part(f"mesh/{self.id}")
        if self.ended is None:
            self.ended = self._take_last()
            part.add(ENDED, 1)
            return False
        if part.number(ENDED) < self.size:
            return False
        part.delete(*self.keys)
        for agreement in self.ended:
            # the last round may lack other ranks
            if self.is_lost or agreement.round.arrival_number == 1:
                agreement.delete()
        if part.add(ENDED, 1) == 2 * self.size:
            self.finish()
            part.delete(ENDED)
        return True

    def _take_last(self) -> list[Agreement]:
        """Remove the last agreements of the mesh from those of the job, and return them."""
        names = [name for name in self.last if self.is_lost or is_part_of(name, self.id)]
        taken = {name: self.last.pop(name) for name in names}
        self.store.delete(*(f"{name}/{a.counter}" for name, a in taken.items() if a.counter))
        return [*taken.values()]


def is_part_of(name: str, id: int) -> bool:
    """Return whether a part of the store has rounds of a mesh, or of moves to or from it."""
    kind, *ids = name.split("/")
    return kind in ("mesh", "move") and str(id) in (number.split(".")[0] for number in ids[:2])
