"""Delete what a closed mesh has left in the store, once all its ranks have closed it.

A rank that closes a mesh may be the first: others still read what it left, and the host of the
store may end. So a rank does its share when it arrives in later rounds of all ranks, for which the
host waits::

    rank 0   closes ............ round 7: counts itself   round 8: all have, deletes its keys
    rank 1   ........... closes  round 7: counts itself   round 8: deletes its keys, and the count
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .round import ANY, Round
from .store import Store

ENDED = "ended"  # in the store of a mesh: how many ranks have closed it, or deleted their keys
ROUNDS = "rounds/{}"  # rank, in a part of a store of someone else: how many rounds it has entered


@dataclass(eq=False)
class Ending:
    """The share of one rank in the end of a mesh.

    Attributes:
        store: the store of the job.
        last: the last round of this rank in each part of it.
        counted: how many rounds this rank has entered in each part.
        id: the number of the round in which the mesh was built.
        is_lost: whether ranks of the job were lost, so that all of its rounds are over, and each
            rank deletes what the lost ones have left.
        size: how many ranks the mesh has.
        keys: the keys of this rank in the part of the mesh, beside its rounds.
        finish: deletes the keys that ranks have left together; the last rank calls it.
        rounds: the last rounds of the mesh; None before this rank has counted itself.
    """

    store: Store
    last: dict[str, Round]
    counted: Counter[str]
    id: int
    size: int
    keys: Sequence[str]
    finish: Callable[[], object]
    is_lost: bool = False
    rounds: list[Round] | None = None

    def go_on(self) -> bool:
        """Do the next part of the share, and return whether that was the last. In a deadline.

        Cost: a store operation; later one for each key, and a few for each part with rounds.
        """
        part = self.store.part(f"mesh/{self.id}")
        if self.rounds is None:
            self.rounds = self._take_rounds()
            part.add(ENDED, 1)
            return False
        if part.number(ENDED) < self.size:
            return False
        part.delete(*self.keys)
        for round in self.rounds:
            if self.is_lost or round.turn == 1:  # the last round may lack other ranks
                delete_last(round)
        if part.add(ENDED, 1) == 2 * self.size:
            self.finish()
            part.delete(ENDED)
        return True

    def _take_rounds(self) -> list[Round]:
        """Remove the last rounds of the mesh from those of the job, and return them."""
        names = [name for name in self.last if self.is_lost or is_part_of(name, self.id)]
        for name in names:
            if not self.counted.pop(name, 0):  # the count is in the store of someone else
                self.store.delete(f"{name}/{ROUNDS.format(self.store.world.rank)}")
        return [self.last.pop(name) for name in names]


def is_part_of(name: str, id: int) -> bool:
    """Return whether a part of the store has rounds of a mesh, or of moves to or from it."""
    kind, *ids = name.split("/")
    return kind in ("mesh", "move") and str(id) in (number.split(".")[0] for number in ids[:2])


def delete_last(round: Round) -> None:
    """Delete a round that all its ranks have left, and the one before. In a deadline."""
    for over in filter(None, (round.before, round)):
        over.keys |= ANY
        over.delete()
