"""Claims of ranks in an agreement round, and the error of two claims that conflict.

A claim is a key and a value. The first rank to claim a key decides its value. A value that only one
rank may have stands under a key of its own (``device/<uuid>``), with the rank as its value. A rank
that finds another value writes the error, and every rank raises the same one.

Cost: one store operation per claim.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

from ...core.errors import MeshkitError
from ..store.check_in import ProcessIdentity
from ..store.foreign_value import read_value
from ..store.keys import CLAIM


class Claimant(NamedTuple):
    """The rank and the process that claim a value."""

    rank: int
    value: str
    process: ProcessIdentity

    @classmethod
    def from_json(cls, text: str | bytes) -> Claimant:
        """Return the claimant that a rank wrote."""
        record = json.loads(text)
        process = ProcessIdentity.from_record(record["process"])
        return cls(int(record["rank"]), str(record["value"]), process)

    def to_json(self) -> str:
        """Return the text that stands in the store."""
        return json.dumps(self._asdict())

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.process})"


class Claim(NamedTuple):
    """A key, a value, and a function that returns the error of two ranks that conflict."""

    key: str
    value: str
    conflict: Callable[[Claimant, Claimant], MeshkitError]


def conflicting_claim(
    store: dist.Store, rank: int, claims: tuple[Claim, ...]
) -> MeshkitError | None:
    """Make the claims of this rank; return the error of the first that conflicts, or None."""
    for claim in claims:
        own = Claimant(rank, claim.value, ProcessIdentity.current())
        key = CLAIM.format(claim.key)
        first = read_value(key, store.compare_set(key, "", own.to_json()), Claimant.from_json)
        if first.value != own.value:
            return claim.conflict(*sorted((own, first), key=lambda claimant: claimant.rank))
    return None
