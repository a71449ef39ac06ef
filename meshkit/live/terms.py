"""On what terms groups are made, and what is refused before one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from ..core.call import Call
from ..core.errors import SpecError, told
from ..core.plan import Axes
from ..core.topology.topology import Topology
from ..launch.inside import connects_apart, default_timeout
from ..launch.world import World
from .limits import Limits


@dataclass(frozen=True)
class Terms:
    """On what terms groups are made.

    Attributes:
        backend: None means that of the default group.
        limits: how long a collective of each group may take.
        world: the timeout of the default group, which stands for a whole mesh of equal timeout.
        crossing: what to do by axis where its groups cross nodes; axes left out may.
        place: where ranks were said to sit when they were placed; True means where they checked in
            from, False that they were not placed.
        connect: how long a group may take to connect to a peer, where making it means that.
    """

    backend: str | None
    limits: Limits
    world: timedelta | None
    crossing: Mapping[str, str] = field(default_factory=dict)
    place: Topology | bool = False
    connect: timedelta = timedelta(0)

    @property
    def runs_on(self) -> str:
        """The backend by its name."""
        return self.backend or dist.get_backend()

    def time(self, key: Axes) -> timedelta:
        """How long a collective of a group may take, the backend's default in numbers."""
        return self.usual(self.limits[key])

    def usual(self, limit: timedelta | None) -> timedelta:
        """A time, or the default of the backend where none is said."""
        return limit or default_timeout(self.runs_on)

    @property
    def waits(self) -> bool:
        """Whether a group is made under ``connect``, and gets its own time afterwards."""
        return connects_apart(self.runs_on)


def check_in_world(call: Call, highest: int, world: World, *, fix: str | None = None) -> None:
    """Refuse ranks that are not in the world.

    Raises:
        SpecError: with the ranks there are.
    """
    if highest >= world.world_size:
        text = told(
            f"{call}: ranks must be some of the world's.",
            f"They run from 0 to {world.world_size - 1}; {world.size_evidence}.",
            fix=fix or f"ranks=range({world.world_size}), or a part of it.",
        )
        raise SpecError(text, world_size=world.world_size)
