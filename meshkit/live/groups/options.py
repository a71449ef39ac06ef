"""Options for the creation of process groups: backend and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ...core.grid.axis_names import check_axes_exist, parse_axes
from ...core.grid.group_plan import Axes, GroupPlan, missing_group_error
from ...core.topology.topology import Topology
from ...launch.timeouts import Time, format_timeout, parse_timeout


@dataclass(frozen=True)
class GroupTimeouts:
    """The timeout of every group.

    Attributes:
        default: for all groups without a timeout of their own; None is the default of the backend.
        by_key: key of the group plan to the timeout of its groups.
    """

    default: timedelta | None
    by_key: Mapping[Axes, timedelta] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        timeout: Time | Mapping[str, Time] | None,
        default: timedelta | None = None,
    ) -> GroupTimeouts:
        """Return the timeouts that a caller requests."""
        if not isinstance(timeout, Mapping):
            return cls(parse_timeout("timeout", timeout) or default)
        by_key: dict[Axes, timedelta] = {}
        for names, value in timeout.items():
            axes = parse_axes(names)
            check_axes_exist(axes, plan.layout.axes)
            if not plan.has(axes):
                raise missing_group_error(plan, axes)
            limit = parse_timeout("timeout", value)
            if limit is not None:  # several sets of axes with one group: the longest counts
                key = plan.group_key(axes)
                by_key[key] = max(limit, by_key.get(key, limit))
        return cls(default, by_key)

    def __str__(self) -> str:
        by_axes = [
            f"{' '.join(key)} {format_timeout(limit)}" for key, limit in sorted(self.by_key.items())
        ]
        return ", ".join([format_timeout(self.default), *by_axes])


@dataclass(frozen=True)
class GroupOptions:
    """Options for the creation of the groups of one mesh, computed once per mesh.

    Attributes:
        backend: the backend that the caller requests; None is that of the default group.
        timeouts: the timeout of each group.
        world_timeout: the timeout of the default group. It serves a mesh of the whole world only
            if the timeouts are equal. None is the default of the backend.
        crossing: axis to its policy if its groups cross nodes; all other axes may cross.
        place: the topology by which ranks were placed; True if ranks were placed by the hosts of
            their check-ins, False if they were not placed.
    """

    backend: str | None
    timeouts: GroupTimeouts
    world_timeout: timedelta | None = None
    crossing: Mapping[str, str] = field(default_factory=dict)
    place: Topology | bool = False
