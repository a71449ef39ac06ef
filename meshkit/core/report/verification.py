"""What a check of every group of a mesh found: seconds by group, and who was waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layout import Layout
from ..plan import Axes
from ..runs import runs
from ..words import count, pairs

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class GroupTiming:
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

    groups: tuple[GroupTiming, ...]
    slowest_rank: int | None
    waited: float
    coordinate: str

    @property
    def slowest_group(self) -> GroupTiming | None:
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
                f"{name:<12}{one.num_groups:>8}{one.group_size:>8}{ms}  {runs(sorted(one.slowest))}"
            )
        if self.slowest_rank is not None:
            waited = f"its peers wait {self.waited * 1e3:.3f} ms for it"
            lines.append(f"slowest rank: {self.slowest_rank} ({self.coordinate}), {waited}")
        return "\n".join(lines)


def summarize_timings(layout: Layout, keys: Sequence[Axes], seconds: Seconds) -> Verification:
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
        groups.append(_group_timing(axes, rows.tolist(), took.max(axis=1)))
    if not keys:
        return Verification((), None, 0.0, "")
    index = int(waits.max(axis=1).argmax())
    rank = int(layout.grid.flat[index])
    coordinate = " ".join(f"{axis}={at}" for axis, at in layout.coordinate(rank).items())
    return Verification(tuple(groups), rank, float(waits[index].max()), coordinate)


def _group_timing(axes: Axes, rows: list[list[int]], took: Seconds) -> GroupTiming:
    slowest = int(took.argmax())
    members = tuple(rows[slowest])
    return GroupTiming(
        axes, len(rows), len(members), float(np.median(took)), members, float(took[slowest])
    )


@dataclass(frozen=True)
class CheckReport:
    """What one rank knows when every group has been proved; but for ``rank`` all know the same.

    Attributes:
        rank: who says so.
        sizes: axis name to size, the outermost first.
        launcher: who started the ranks.
        device: what kind they compute on.
        backend: what the groups run on.
        found: what the check of the groups took.
        built: seconds for joining the job and building the mesh.
        checked: seconds for all checks.
    """

    rank: int
    sizes: Mapping[str, int]
    launcher: str
    device: str
    backend: str
    found: Verification
    built: float
    checked: float

    def as_text(self) -> str:
        """As a person reads it: a line for each set of groups, then the sum.

        Example:
            >>> one = Checked(("dp",), 1, 2, 0.0004, (0, 1), 0.0005)
            >>> found = Verification((one,), 1, 0.0001, "dp=1 tp=0")
            >>> about = 0, {"dp": 2, "tp": 1}, "spawn", "cpu", "gloo"
            >>> print(Verified(*about, found, 0.5, 0.25).as_text())
            dp=2 tp=1: 2 ranks, launcher spawn, device cpu, backend gloo; joined and built in 0.50 s
            OK  dp  1 group of 2   2 members met in 0.400 ms, at most 0.500 ms on ranks 0-1
            OK  tp  2 groups of 1  nothing to meet
            OK: 1 group checked in 0.25 s; rank 1 (dp=1 tp=0) came last, by 0.100 ms
        """
        found, total = self.found, math.prod(self.sizes.values())
        head = f"{pairs(self.sizes)}: {count(total, 'rank')}, launcher {self.launcher}, "
        head += f"device {self.device}, backend {self.backend}; "
        head += f"joined and built in {self.built:.2f} s"
        rows = [
            (" ".join(one.axes), one.num_groups, one.group_size, _format_timing(one))
            for one in found.groups
        ]
        rows += [(a, total, 1, "nothing to meet") for a, size in self.sizes.items() if size == 1]
        cells = [(name, f"{count(n, 'group')} of {size}", said) for name, n, size, said in rows]
        wide = [max((len(cell[i]) for cell in cells), default=0) for i in (0, 1)]
        lines = [f"OK  {name:{wide[0]}}  {what:{wide[1]}}  {said}" for name, what, said in cells]
        groups = sum(one.num_groups for one in found.groups)
        last = f"OK: {count(groups, 'group')} checked in {self.checked:.2f} s"
        if found.slowest_rank is not None:
            slowest = f"rank {found.slowest_rank} ({found.coordinate})"
            last += f"; {slowest} came last, by {found.waited * 1e3:.3f} ms"
        return "\n".join([head, *lines, last])

    def as_dict(self) -> dict[str, Any]:
        """For a program; times in seconds."""
        said = asdict(self)
        del said["rank"], said["found"]
        found = asdict(self.found)
        for one in found["groups"]:
            one["members"] = one["num_groups"] * one["group_size"]
        return {"ok": True, **said, **found}


def _format_timing(one: GroupTiming) -> str:
    """How the members of the groups over some axes met."""
    members = count(one.num_groups * one.group_size, "member")
    took = f"{one.seconds * 1e3:.3f} ms, at most {one.slowest_seconds * 1e3:.3f} ms"
    return f"{members} met in {took} on ranks {runs(sorted(one.slowest))}"
