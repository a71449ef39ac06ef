"""What a check of every group of a mesh found: seconds by group, and who was waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import Layout
from .plan import Axes
from .runs import format_ranks

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Checked:
    """The groups over some axes.

    Attributes:
        axes: over which; empty for the whole mesh where that is no axis by itself.
        num_groups: how many there are.
        group_size: ranks in each.
        seconds: of one collective, the median over the groups.
        slowest: the ranks of the slowest group.
        slowest_seconds: what it took there.
    """

    axes: Axes
    num_groups: int
    group_size: int
    seconds: float
    slowest: tuple[int, ...]
    slowest_seconds: float


@dataclass(frozen=True)
class Verification:
    """What :meth:`meshkit.Mesh.verify` found. ``print`` shows it as a table.

    Attributes:
        groups: one entry for each set of axes.
        slowest_rank: the rank for which its peers waited longest; None in a mesh of one.
        waited: seconds of one collective for which they did.
        coordinate: where that rank sits.
    """

    groups: tuple[Checked, ...]
    slowest_rank: int | None
    waited: float
    coordinate: str

    @property
    def slowest_group(self) -> Checked | None:
        """The slowest group of all; None in a mesh of one."""
        return max(self.groups, key=lambda one: one.slowest_seconds, default=None)

    def __str__(self) -> str:
        lines = [
            f"{'group':<12}{'groups':>8}{'ranks':>8}{'median ms':>12}{'slowest ms':>12}  of ranks"
        ]
        for one in self.groups:
            name = " ".join(one.axes)
            ms = f"{one.seconds * 1e3:>12.3f}{one.slowest_seconds * 1e3:>12.3f}"
            lines.append(
                f"{name:<12}{one.num_groups:>8}{one.group_size:>8}{ms}  {format_ranks(sorted(one.slowest))}"
            )
        if self.slowest_rank is not None:
            waited = f"its peers wait {self.waited * 1e3:.3f} ms for it"
            lines.append(f"slowest rank: {self.slowest_rank} ({self.coordinate}), {waited}")
        return "\n".join(lines)


def verification(layout: Layout, keys: Sequence[Axes], seconds: Seconds) -> Verification:
    """The findings out of what every rank measured.

    A collective ends for all members at about the same time, so the member that is in it for the
    shortest time came last: its peers waited for it for the difference.

    Args:
        layout: the grid.
        keys: the axes of each column.
        seconds: (num_ranks, num_keys), of one collective, by position in the grid.

    Example:
        >>> took = np.array([[0.5], [0.1]])
        >>> found = verification(Layout(dp=2), [("dp",)], took)
        >>> found.slowest_rank, found.waited, found.groups[0].slowest_seconds
        (1, 0.4, 0.5)
    """
    place = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    waits = np.zeros_like(seconds)
    groups = []
    for column, axes in enumerate(keys):
        rows = layout.groups(*axes)
        at = np.vectorize(place.__getitem__)(rows)  # (num_groups, group_size)
        took = seconds[at, column]
        waits[at, column] = took.max(axis=1, keepdims=True) - took
        groups.append(_checked(axes, rows.tolist(), took.max(axis=1)))
    if not keys:
        return Verification((), None, 0.0, "")
    index = int(waits.max(axis=1).argmax())
    rank = int(layout.grid.flat[index])
    coordinate = " ".join(f"{axis}={at}" for axis, at in layout.coordinate(rank).items())
    return Verification(tuple(groups), rank, float(waits[index].max()), coordinate)


def _checked(axes: Axes, rows: list[list[int]], took: Seconds) -> Checked:
    slowest = int(took.argmax())
    members = tuple(rows[slowest])
    return Checked(
        axes, len(rows), len(members), float(np.median(took)), members, float(took[slowest])
    )
