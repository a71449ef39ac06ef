"""The admission of newcomers: processes started anew with the numbers of ranks that were lost.

A newcomer waits at the store like any rank that joins a job. The ranks that run write an admission
into the store of their next recovery round, and end the start in which the newcomer waits::

    rank 3 (new)   init: waits ................ reads: round 2 admits it ... checks in there
    rank 0         trains ... mesh.admit(): looks, writes the admission .... checks in there
    rank 1         trains ... mesh.admit(): reads the answer of rank 0 ..... checks in there
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..launchers.world import World
from ..store import keys
from ..store.foreign_value import read_value
from ..store.rank_lease import LeaseHolder

if TYPE_CHECKING:
    from ...core.regroup import Sources
    from ...core.regroup import Regrouping


@dataclass(frozen=True)
class Admission:
    """The newcomers of a round, and what they must know of the job.

    Attributes:
        num_ranks: the ranks of the job. The newcomers are numbered from there.
        first_ranks: the number of each rank at the start of the job, those of newcomers included.
        holders: the process of each newcomer.
        sizes: the sizes of the mesh, the outermost axis first.
        ranks: the rank at each position of the mesh.
        full_sizes: the sizes of the mesh before its first loss.
        seed: the seed of the job as a number; None if it has none.
    """

    num_ranks: int
    first_ranks: tuple[int, ...]
    holders: tuple[LeaseHolder, ...]
    sizes: Mapping[str, int]
    ranks: tuple[int, ...]
    full_sizes: Mapping[str, int]
    seed: int | None

    @property
    def newcomers(self) -> range:
        """The numbers of the newcomers."""
        return range(self.num_ranks, len(self.first_ranks))

    def number_of(self, first_rank: int) -> int:
        """Return the number of the newcomer that was started with a rank."""
        return self.first_ranks.index(first_rank, self.num_ranks)

    def to_json(self) -> str:
        """Return the admission as JSON."""
        return json.dumps(
            {**asdict(self), "holders": [json.dumps(holder._asdict()) for holder in self.holders]}
        )

    @classmethod
    def from_json(cls, text: str) -> Admission:
        """Return the admission that a rank wrote."""
        record: dict[str, Any] = json.loads(text)
        holders = tuple(map(LeaseHolder.from_json, record["holders"]))
        seed = None if record["seed"] is None else int(record["seed"])
        first_ranks, ranks = (tuple(map(int, record[name])) for name in ("first_ranks", "ranks"))
        sizes, full_sizes = (
            {str(axis): int(size) for axis, size in record[name].items()}
            for name in ("sizes", "full_sizes")
        )
        return cls(int(record["num_ranks"]), first_ranks, holders, sizes, ranks, full_sizes, seed)


@dataclass(frozen=True)
class Arrival:
    """The mesh that a newcomer joins by ``build_mesh``.

    Attributes:
        world: the newcomer as it was started, in a world of the first size.
        admission: the admission that it has read.
        regrouped: the ranks of the job, newcomers included.
        sources: the step, and who sends the state to each rank that lacks it.
    """

    world: World
    admission: Admission
    regrouped: Regrouping
    sources: Sources


def read_admission(store: dist.Store) -> Admission | None:
    """Return the admission of a round, if there is one. Cost: one store operation, or two."""
    if not store.check([keys.ADMISSION]):
        return None
    return read_value(keys.ADMISSION, store.get(keys.ADMISSION), Admission.from_json)


def post_invitation(
    base: dist.Store, waiting_in: int, origin: int, number: int, ranks: list[int]
) -> None:
    """Write for the ranks that wait in a generation in which round of which one they are admitted.

    Cost: one store operation.
    """
    record = {"generation": origin, "number": number, "ranks": ranks}
    store = dist.PrefixStore(keys.GENERATION.format(waiting_in), base)
    store.set(keys.ADMITTED, json.dumps(record))


def read_invitation(base: dist.Store, waited_in: int, rank: int) -> tuple[int, int] | None:
    """Return the generation and the round in which a rank is admitted that waited in another one.

    Cost: one store operation, or two.
    """
    store = dist.PrefixStore(keys.GENERATION.format(waited_in), base)
    if not store.check([keys.ADMITTED]):
        return None
    text = store.get(keys.ADMITTED)
    generation, number, ranks = read_value(keys.ADMITTED, text, _parse_invitation)
    return (generation, number) if rank in ranks else None


def _parse_invitation(text: str) -> tuple[int, int, list[int]]:
    record = json.loads(text)
    return int(record["generation"]), int(record["number"]), [int(r) for r in record["ranks"]]
