"""The number of agreement rounds that this rank has entered."""

from __future__ import annotations

from collections import Counter

import torch.distributed as dist

from .keys import rounds_key


class RoundCounter:
    """A counter of this rank's rounds, so that the keys of an earlier round are never used again.

    Only one generation of a job uses its part of the store, so its ranks count locally. The store
    of a default group that someone else created may have served an earlier group: ranks count
    there.

    Args:
        store: counts the rounds; None counts them in this object.
    """

    def __init__(self, store: dist.Store | None = None) -> None:
        self._store = store
        self._rounds: Counter[str] = Counter()

    def next_round(self, rank: int, prefix: str = "") -> int:
        """Return the id of this rank's next round under a key prefix, from 1.

        Cost: no store operation if ranks count locally, else one.
        """
        if self._store is not None:
            return int(self._store.add(rounds_key(rank, prefix), 1))
        self._rounds[prefix] += 1
        return self._rounds[prefix]
