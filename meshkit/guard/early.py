"""Signs of a failure that a rank sees before the limit of its guard, so that it need not wait.

::

    an error of a backend      NCCL's watchdog has seen a lost peer      asked twice a second
    a process that has ended   of a rank on this machine                 looked at once a second

gloo has no such error: a lost peer raises in the thread that waits. A rank looks at the processes
of a few ranks of its machine, and only while it begins no collective, so a healthy step pays for
none of it. With many ranks on many machines each process has several others that look at it.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch

from ..launch.disagreement import describe_coordinate
from ..launch.judges import RankState
from ..launch.of_one_process import OfOneProcess
from ..launch.process import current_process, state_of
from ..launch.store import Store
from ..launch.torch_aborts import error_of
from ..launch.torch_groups import is_nccl
from .state import Guard

LOOK = 1.0  # seconds between two looks at the processes, and without a collective before the first
LOOKED_AT = 8  # the next ranks of this machine at whose processes a rank looks
# ranks that read the processes of the job from the store in one second, at a first look
READERS_PER_SECOND = 50


@dataclass
class Lookout(OfOneProcess):
    """The signs that the watching thread of one guard has seen.

    Attributes:
        guard: the guard.
        number: the number of the guard on this rank. A rank that has left it needs no process.
        reported: the signs that were reported. Each is reported once.
    """

    guard: Guard
    number: int
    reported: set[str] = field(default_factory=set)
    _looked: float = 0.0
    _neighbors: list[int] | None = None

    def look(self, idle: float) -> str:
        """Return the sign of a failure, as the first line of a report; empty without one.

        ``idle``: the seconds in which this rank has begun no collective. Cost: 2 us for each group
        of NCCL; once a second of a wait 20 us for each process.
        """
        sign = self._failed_backend()
        if not sign and idle >= LOOK and time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            sign = self._ended_process(idle)
        return "" if sign in self.reported else sign

    def _failed_backend(self) -> str:
        device = self.guard.job.world.device or torch.device("cpu")
        for axes, group in self.guard.named().items():
            if is_nccl(group) and (error := error_of(group, device)):
                name = axes or "the default group"
                return f"NCCL reports {error} of {name} on rank {self.guard.rank}."
        return ""

    def _ended_process(self, idle: float) -> str:
        """Return the sign of a process that has ended inside this guard."""
        guard, store = self.guard, cast(Store, self.guard.store)
        if self._neighbors is None:
            if not guard.job.known and idle < LOOK + guard.rank / READERS_PER_SECOND:
                return ""
            self._neighbors = self._find_neighbors()
        known = guard.job.processes()
        ended = [rank for rank in self._neighbors if state_of(known[rank]) is RankState.ENDED]
        for rank in ended:
            left = store.run(partial(guard.left, store, [rank])).get(rank)
            if left is not None and not left.error and left.left_guard >= self.number:
                self._neighbors.remove(rank)
                continue
            return f"the process of rank {rank} ({describe_coordinate(guard.layout, rank)}) ended."
        return ""

    def _find_neighbors(self) -> list[int]:
        """Return the next ranks of the mesh whose processes this machine can see."""
        own, known = current_process(), self.guard.job.processes()
        ranks = [int(rank) for rank in self.guard.layout.grid.flat]
        place = ranks.index(self.guard.rank) + 1
        here = (
            rank
            for rank in [*ranks[place:], *ranks[: place - 1]]
            if rank in known and known[rank][2:4] == (own.machine, own.space)
        )
        return [*itertools.islice(here, LOOKED_AT)]
