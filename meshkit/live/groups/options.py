"""On what terms groups are made, and what is refused before one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from ...core.errors import SpecError
from ...core.grid.axis_names import check_axes_exist, parse_axes
from ...core.grid.group_plan import Axes, GroupPlan, missing_group_error
from ...core.topology.topology import Topology
from ...launch.launchers.world import World
from ...launch.timeouts import Time, format_timeout, parse_timeout
from ...launch.torch_internals import default_timeout, has_connect_timeout


@dataclass(frozen=True)
class GroupOptions:
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
    limits: GroupTimeouts
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
        return has_connect_timeout(self.runs_on)


def check_in_world(highest: int, world: World, *, fix: str | None = None) -> None:
    """Refuse ranks that are not in the world.

    Raises:
        SpecError: with the ranks there are.
    """
    if highest >= world.world_size:
        raise SpecError(
            "ranks must be some of the world's.",
            f"They run from 0 to {world.world_size - 1}; {world.size_evidence}.",
            fix=fix or f"ranks=range({world.world_size}), or a part of it.",
            world_size=world.world_size,
        )


@dataclass(frozen=True)
class GroupTimeouts:
    """The timeout of every group.

    Attributes:
        usual: of the groups for which nothing else is said; None is the backend's default.
        by_key: the key of a plan to the timeout of its groups.
    """

    usual: timedelta | None
    by_key: Mapping[Axes, timedelta] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        timeout: Time | Mapping[str, Time] | None,
        usual: timedelta | None,
    ) -> GroupTimeouts:
        """The limits that a caller asks for.

        Args:
            plan: the groups.
            timeout: for all groups; or for those over some axes: ``{"tp": 30, "dp sp": 600}``.
            usual: for all others; that of the job.

        Raises:
            SpecError: for a time that cannot be, or a group that is not built.
            UnknownAxisError: for an axis the mesh does not have.
        """
        if not isinstance(timeout, Mapping):
            return cls(parse_timeout("timeout", timeout) or usual)
        found: dict[Axes, timedelta] = {}
        for names, value in timeout.items():
            axes = parse_axes(names) if isinstance(names, str | tuple) else (names,)
            check_axes_exist(axes, plan.layout.axes)
            if not plan.has(axes):
                raise missing_group_error(plan, axes)
            limit = parse_timeout("timeout", value)
            if limit is not None:  # listings that come to one group: the longest counts
                found[plan.group_key(axes)] = max(limit, found.get(plan.group_key(axes), limit))
        return cls(usual, found)

    def __getitem__(self, key: Axes) -> timedelta | None:
        return self.by_key.get(key, self.usual)

    def __str__(self) -> str:
        named = [
            f"{' '.join(key)} {format_timeout(limit)}" for key, limit in sorted(self.by_key.items())
        ]
        return ", ".join([format_timeout(self.usual), *named])
