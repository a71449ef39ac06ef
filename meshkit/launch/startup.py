"""The seconds of a start by phase, on this rank and on the slowest rank.

With ``MESHKIT_LOG=debug`` rank 0 prints one line when a mesh is built. Every rank leaves its
seconds in its last check-in of the build, so the line costs two store operations on rank 0 alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed as dist

from .agreement.proposal import Participants
from .output.log import LOGGER, VARIABLE, show_log
from .store.check_in import read_check_ins
from .store.deadline import STORE_GRACE, store_call
from .store.keys import ROUND


class Startup(NamedTuple):
    """The seconds of this rank's start by phase, in the order of the phases.

    Attributes:
        phases: phase to seconds. ``"store"`` reaches the store and takes the rank, ``"arrival"``
            waits for all ranks, ``"default group"`` creates it. ``"agreement"`` compares the
            requests of a mesh, ``"groups"`` creates its groups, and ``"end"`` waits until all
            ranks have done so. A phase that the mesh did not need is missing.

    Example:
        >>> print(Startup({"store": 0.25, "arrival": 1.5}))
        store 0.25 s, arrival 1.5 s
    """

    phases: Mapping[str, float] = {}

    @property
    def seconds(self) -> float:
        """The seconds of all phases together."""
        return sum(self.phases.values())

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.3g} s" for phase, seconds in self.phases.items())


def is_logged() -> bool:
    """Return whether the user wants a line on each start."""
    return os.environ.get(VARIABLE, "").lower() == "debug"


def log_slowest_ranks(participants: Participants, round_id: int, call: object) -> None:
    """Print the slowest rank of each phase. Local. Cost: two store operations; more in a file."""
    store = dist.PrefixStore(ROUND.format(participants.prefix, round_id), participants.store)
    check_ins = store_call(
        participants.world, STORE_GRACE, lambda: read_check_ins(store, participants.ranks)
    )
    by_rank = {rank: check_in.seconds for rank, check_in in check_ins.items()}
    show_log(logging.DEBUG)
    LOGGER.debug("%s on %d ranks: %s", call, len(by_rank), slowest_ranks(by_rank))


def slowest_ranks(by_rank: Mapping[int, Mapping[str, float]]) -> str:
    """Return the slowest rank of each phase as text."""
    texts = []
    for phase in dict.fromkeys(phase for phases in by_rank.values() for phase in phases):
        rank = max(by_rank, key=lambda rank: by_rank[rank].get(phase, 0.0))
        texts.append(f"{phase} {by_rank[rank][phase]:.3g} s on rank {rank}")
    return ", ".join(texts)
