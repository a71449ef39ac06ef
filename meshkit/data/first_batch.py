"""Compare how ranks read, by default: the first batch of a sampler publishes its order.

The first rank to hand out a batch leaves the sizes, the seed and the length of its data in the
store. Each other rank compares its own with them, and waits for nobody. A rank that hands out no
batch takes no part. Samplers are matched by their number, in the order in which a mesh makes them.
The caller's own order may be another one in each epoch, so it is compared in each::

    rank 0   first batch: leaves its facts ........ reads on
    rank 1   ............. first batch: compares ... differs, raises
    rank 2   no batch: takes no part

    key                                  written by                     goes
    mesh/<id>/samplers/<number>          the first rank with a batch    16 samplers later, or with
                                                                        the mesh
    mesh/<id>/samplers/<number>/<epoch>  the same, for an own order     two epochs later, likewise

A rank that is further behind than these records is not compared.

Inside a guard all other ranks raise the DisagreementError too, when their collective fails;
outside, at the next ``agree`` or ``view``. Make samplers in the same order on all ranks. Workers
compare no stream.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..groups.registry import MeshGroups
from ..launch.job import Job
from ..launch.of_one_process import OfOneProcess
from ..launch.store import Store, read_value
from .conflicts import order_conflict
from .sampler import MicroBatchSampler
from .stream import MicroBatchStream

POSTED = "samplers/"  # the begin of these keys among all that a mesh has posted
KEPT = 16  # samplers whose records stay in the store, the newest ones of the mesh
Source = MicroBatchSampler | MicroBatchStream[Any]


@dataclass(frozen=True, eq=False)
class FirstBatch(OfOneProcess):
    """The comparison at the first batch of one sampler."""

    mesh: MeshGroups
    job: Job
    number: int  # of the sampler on its mesh
    source: Source

    def __call__(self) -> None:
        """Publish the order of this rank, or compare it with the published one. Local.

        Raises:
            DisagreementError: if it differs from that of the first rank.

        Cost: one store operation. Nothing happens in a worker, or if the store is lost.
        """
        store, rank = self.job.store, self.mesh.rank
        if store is None or self.mesh.is_closed or self.mesh.pid != os.getpid():
            return
        part, key = store.part(f"mesh/{self.mesh.round_id}/samplers"), str(self.number)
        own_facts, epoch = self.source.facts(), self.source.epoch
        if "order" in own_facts:
            key = f"{key}/{epoch}"
        self._forget(part, epoch)
        record = json.dumps([rank, own_facts])
        known = part.try_run(partial(part.claim, key, record))
        if known is None:
            return
        first, facts = read_value(key, known, _parse)
        if first == rank:
            self.mesh.posted.add(POSTED + key)
        error = order_conflict({first: facts, rank: own_facts})
        if error is not None:
            self.mesh.registry.conflict = error.evidence[-1]
            raise error

    def _forget(self, part: Store, epoch: int) -> None:
        """Delete what this rank has posted for older samplers, and two epochs of this one ago."""
        posted = {key.removeprefix(POSTED) for key in self.mesh.posted if key.startswith(POSTED)}
        old = {
            key
            for key in posted
            for number, *epochs in [[*map(int, key.split("/"))]]
            if number <= self.number - KEPT
            or (number == self.number and epochs and epochs[0] <= epoch - 2)
        }
        if old:
            part.try_run(partial(part.delete, *old))
            self.mesh.posted -= {POSTED + key for key in old}

    def __reduce__(self) -> tuple[object, ...]:
        """Leave nothing to a worker that is spawned: it has no store."""
        return type(None), ()


def _parse(text: str) -> tuple[int, dict[str, str]]:
    rank, facts = json.loads(text)
    return int(rank), {str(name): str(value) for name, value in facts.items()}
