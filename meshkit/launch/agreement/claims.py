"""What a rank claims at a meeting, and the refusal that all ranks hear where two claims clash.

A claim is a key and a value; the first rank to claim a key decides its value. What must be equal on
all ranks is claimed under one key (``seed``); what only one rank may have, under a key of its own
(``device/<uuid>``) with the rank as its value. Whoever meets another value writes the refusal, and
every rank raises the same words. One store operation a claim.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from ...core.errors import MeshkitError


@dataclass(frozen=True)
class Claimant:
    """Who claims a value, and from where."""

    rank: int
    value: str
    host: str
    pid: int

    @classmethod
    def here(cls, rank: int, value: str) -> Claimant:
        """This process."""
        return cls(rank, value, socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"


@dataclass(frozen=True)
class Claim:
    """A key, a value, and the error to raise where another rank claimed another value."""

    key: str
    value: str
    clash: Callable[[Claimant, Claimant], MeshkitError]


def conflicting_claim(
    store: dist.Store, rank: int, claims: tuple[Claim, ...]
) -> MeshkitError | None:
    """Make the claims of this rank; the error of the first that clashes, or None.

    Args:
        store: that of the meeting.
        rank: this process.
        claims: what it claims.
    """
    for claim in claims:
        mine = Claimant.here(rank, claim.value)
        first = store.compare_set(f"claim/{claim.key}", "", json.dumps(vars(mine))).decode()
        theirs = Claimant(**json.loads(first))
        if theirs.value != mine.value:
            return claim.clash(*sorted((mine, theirs), key=lambda who: who.rank))
    return None
