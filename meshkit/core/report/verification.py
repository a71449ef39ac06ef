"""Timings of every group of a mesh, and the rank that its peers waited for; as data and as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..arrays import Seconds
from ..draw.table import format_rows, format_table, wrap_lines
from ..grid.group_plan import Axes
from ..grid.layout import Layout
from ..text import count_noun, format_ranks, format_sizes

HEADER = ("group", "groups", "ranks", "median ms", "slowest ms", "of ranks")


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

    def __str__(self) -> str:
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
        lines = [format_table(HEADER, rows, width=120)]
        if self.slowest_rank is not None:
            waited = f"its peers wait {self.waited * 1e3:.3f} ms for it"
            lines.append(f"slowest rank: {self.slowest_rank} ({self.coordinate}), {waited}")
        return "\n".join(lines)


def summarize_timings(layout: Layout, keys: Sequence[Axes], seconds: Seconds) -> Verification:
    """Return the verification from the timings of all ranks.

    A collective ends for all members at about the same time. The member with the shortest time
    therefore arrived last, and its peers waited for the difference.
    """
    position = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    waits = np.zeros_like(seconds)
    groups = []
    for column, axes in enumerate(keys):
        rows = layout.groups(*axes)
        positions = np.vectorize(position.__getitem__)(rows)  # (num_groups, group_size)
        took = seconds[positions, column]  # seconds: (num_ranks, num_keys), by position
        waits[positions, column] = took.max(axis=1, keepdims=True) - took
        groups.append(_group_timing(axes, rows.tolist(), took.max(axis=1)))
    if not keys:
        return Verification((), None, 0.0, "")
    index = int(waits.max(axis=1).argmax())
    rank = int(layout.grid.flat[index])
    coordinate = format_sizes(layout.coordinate(rank))
    return Verification(tuple(groups), rank, float(waits[index].max()), coordinate)


def _group_timing(axes: Axes, rows: list[list[int]], took: Seconds) -> GroupTiming:
    slowest = int(took.argmax())
    members = tuple(rows[slowest])
    return GroupTiming(
        axes, len(rows), len(members), float(np.median(took)), members, float(took[slowest])
    )


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
        """Return the report as text: a line for each set of groups, then the total."""
        verification, total = self.verification, math.prod(self.sizes.values())
        head = (
            f"{format_sizes(self.sizes)}: {count_noun(total, 'rank')}, launcher {self.launcher}, "
        )
        head += f"device {self.device}, backend {self.backend}; "
        head += f"joined and built in {self.built:.2f} s"
        rows = [
            (" ".join(group.axes), group.num_groups, group.group_size, _format_timing(group))
            for group in verification.groups
        ]
        rows += [(a, total, 1, "nothing to check") for a, size in self.sizes.items() if size == 1]
        cells = [
            ("OK", name, f"{count_noun(n, 'group')} of {size}", text)
            for name, n, size, text in rows
        ]
        lines = [*wrap_lines(head, width), *format_rows(cells, width=width)]
        groups = sum(group.num_groups for group in verification.groups)
        summary = f"OK: {count_noun(groups, 'group')} checked in {self.checked:.2f} s"
        if verification.slowest_rank is not None:
            slowest = f"rank {verification.slowest_rank} ({verification.coordinate})"
            summary += f"; {slowest} came last, by {verification.waited * 1e3:.3f} ms"
        return "\n".join([*lines, *wrap_lines(summary, width)])

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON types; times are in seconds."""
        report = asdict(self)
        verification = report.pop("verification")
        del report["rank"]
        for group in verification["groups"]:
            group["members"] = group["num_groups"] * group["group_size"]
        return {"ok": True, **report, **verification}


def _format_timing(group: GroupTiming) -> str:
    """Return the timing of the groups over some axes as text."""
    members = count_noun(group.num_groups * group.group_size, "member")
    took = f"{group.seconds * 1e3:.3f} ms, at most {group.slowest_seconds * 1e3:.3f} ms"
    return f"{members} took {took} on ranks {format_ranks(sorted(group.slowest))}"
