"""The result of ``mesh.verify`` and of ``meshkit check``: the groups and their timings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..layout.axes import Axes
from ..layout.layout import Layout
from ..text import Floats, count_noun, format_ranks, format_sizes, format_table, wrap_lines

TIMING_HEADER = ("group", "groups", "ranks", "median ms", "slowest ms", "of ranks")


@dataclass(frozen=True)
class GroupTiming:
    """Timings of the groups over some axes."""

    axes: Axes  # empty for the whole mesh if no single axis is the whole
    num_groups: int
    group_size: int
    seconds: float  # of one collective, the median over the groups
    slowest: tuple[int, ...]  # ranks of the slowest group
    slowest_seconds: float  # of one collective there


@dataclass(frozen=True)
class Verification:
    """The result of :meth:`meshkit.Mesh.verify`. ``print`` shows it as a table.

    Attributes:
        groups: one entry for each set of axes.
        slowest_rank: the rank that its peers waited for longest; None in a mesh of one rank.
        waited: the seconds that they waited in one collective.
        coordinate: the coordinate of that rank, as text.
    """

    groups: tuple[GroupTiming, ...]
    slowest_rank: int | None
    waited: float
    coordinate: str

    @property
    def slowest_group(self) -> GroupTiming | None:
        """The slowest group of all; None in a mesh of one rank."""
        return max(self.groups, key=lambda group: group.slowest_seconds, default=None)

    def draw(self, *, width: int = 120, ascii: bool = False) -> str:
        """Return a table of the groups, and the slowest rank."""
        rows = [
            [
                " ".join(group.axes),
                str(group.num_groups),
                str(group.group_size),
                f"{group.seconds * 1e3:.3f}",
                f"{group.slowest_seconds * 1e3:.3f}",
                format_ranks(sorted(group.slowest)),
            ]
            for group in self.groups
        ]
        lines = [format_table(rows, TIMING_HEADER, width=width, ascii=ascii)]
        if self.slowest_rank is not None:
            waited = f"its peers wait {self.waited * 1e3:.3f} ms for it"
            lines.append(f"slowest rank: {self.slowest_rank} ({self.coordinate}), {waited}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.draw()


def summarize_timings(layout: Layout, keys: Sequence[Axes], seconds: Floats) -> Verification:
    """Return the verification from the timings of all ranks: (num_ranks, num_keys), by position.

    A collective ends for all members at about the same time. The member with the shortest time
    therefore arrived last, and its peers waited for the difference.
    """
    if not keys:
        return Verification((), None, 0.0, "")
    waits, groups = np.zeros_like(seconds), []
    for column, axes in enumerate(keys):
        rows = layout.groups(*axes)  # (num_groups, group_size)
        positions = layout.rank_positions.find_all(rows)
        took = seconds[positions, column]
        slowest = took.max(axis=1)
        waits[positions, column] = slowest[:, None] - took
        last, median = int(slowest.argmax()), float(np.median(slowest))
        members, seconds_of_last = tuple(rows[last].tolist()), float(slowest[last])
        groups.append(GroupTiming(axes, len(rows), rows.shape[1], median, members, seconds_of_last))
    index = int(waits.max(axis=1).argmax())
    rank = layout.rank_positions.at(index)
    coordinate = format_sizes(layout.coordinate(rank))
    return Verification(tuple(groups), rank, float(waits[index].max()), coordinate)


@dataclass(frozen=True)
class CheckReport:
    """The result of ``meshkit check``. All ranks have the same, apart from ``rank``."""

    rank: int
    sizes: Mapping[str, int]  # axis name to size, the outermost first
    launcher: str
    device: str
    backend: str
    verification: Verification
    built: float  # seconds to join the job and build the mesh
    checked: float  # seconds of all checks

    def draw(self, *, width: int = 80, ascii: bool = True) -> str:
        """Return the report as text: the table of the groups, then the total."""
        ranks = count_noun(math.prod(self.sizes.values()), "rank")
        head = (
            f"{format_sizes(self.sizes)}: {ranks}, launcher {self.launcher}, "
            f"device {self.device}, backend {self.backend}; joined and built in {self.built:.2f} s"
        )
        groups = count_noun(sum(group.num_groups for group in self.verification.groups), "group")
        table = [self.verification.draw(width=width, ascii=ascii)] * bool(self.verification.groups)
        last = f"OK: {groups} checked in {self.checked:.2f} s"
        return "\n".join([*wrap_lines(head, width), *table, last])

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON types; times are in seconds."""
        report = asdict(self)
        verification = report.pop("verification")
        del report["rank"]
        for group in verification["groups"]:
            group["members"] = group["num_groups"] * group["group_size"]
        return {"ok": True, **report, **verification}
