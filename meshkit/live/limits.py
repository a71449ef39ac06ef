"""How long a collective of each group of a mesh may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ..core.axes import check_known, listed
from ..core.call import Call
from ..core.plan import Axes, GroupPlan, not_built
from ..launch.timeouts import Time, format_timeout, parse_timeout


@dataclass(frozen=True)
class Limits:
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
        call: Call,
        plan: GroupPlan,
        timeout: Time | Mapping[str, Time] | None,
        usual: timedelta | None,
    ) -> Limits:
        """The limits that a caller asks for.

        Args:
            call: the call to quote.
            plan: the groups.
            timeout: for all groups; or for those over some axes: ``{"tp": 30, "dp sp": 600}``.
            usual: for all others; that of the job.

        Raises:
            SpecError: for a time that cannot be, or a group that is not built.
            UnknownAxisError: for an axis the mesh does not have.
        """
        if not isinstance(timeout, Mapping):
            return cls(parse_timeout(call, "timeout", timeout) or usual)
        found: dict[Axes, timedelta] = {}
        for names, value in timeout.items():
            axes = listed(names) if isinstance(names, str | tuple) else (names,)
            check_known(call, axes, plan.layout.axes)
            if not plan.has(axes):
                raise not_built(call, call, plan, axes)
            limit = parse_timeout(call, "timeout", value)
            if limit is not None:  # listings that come to one group: the longest counts
                found[plan.key(axes)] = max(limit, found.get(plan.key(axes), limit))
        return cls(usual, found)

    def __getitem__(self, key: Axes) -> timedelta | None:
        return self.by_key.get(key, self.usual)

    def __str__(self) -> str:
        named = [
            f"{' '.join(key)} {format_timeout(limit)}" for key, limit in sorted(self.by_key.items())
        ]
        return ", ".join([format_timeout(self.usual), *named])
