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
from dataclasses import asdict, dataclass

import torch.distributed as dist

from ..core.errors import DisagreementError, LaunchError, MeshkitError

KINDS: dict[str, type[MeshkitError]] = {
    kind.__name__: kind for kind in (DisagreementError, LaunchError, MeshkitError)
}


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


def refused(store: dist.Store, rank: int, claims: tuple[Claim, ...]) -> MeshkitError | None:
    """Make the claims of this rank; the error of the first that clashes, or None.

    Args:
        store: that of the meeting.
        rank: this process.
        claims: what it claims.
    """
    for claim in claims:
        mine = Claimant.here(rank, claim.value)
        first = store.compare_set(f"claim/{claim.key}", "", json.dumps(asdict(mine))).decode()
        theirs = Claimant(**json.loads(first))
        if theirs.value != mine.value:
            return claim.clash(*sorted((mine, theirs), key=lambda who: who.rank))
    return None


def as_words(error: MeshkitError) -> str:
    """A refusal as it stands in the store."""
    facts = {str(rank): text for rank, text in getattr(error, "requests", {}).items()}
    return json.dumps({"refused": type(error).__name__, "text": str(error), "requests": facts})


def from_words(said: dict[str, object]) -> MeshkitError:
    """The refusal that another rank wrote."""
    kind = KINDS.get(str(said.get("refused")), MeshkitError)
    requests = said.get("requests")
    facts = {}
    if isinstance(requests, dict) and requests:
        facts["requests"] = {int(rank): str(text) for rank, text in requests.items()}
    return kind(str(said.get("text")), **facts)
