"""The table of a hang: the state of each rank, the calls in which it waits, and who has come there.

::

    rank 0   waits in all_reduce over dp, its 8th     come: 0 of 0, 2     waits for rank 2
    rank 2   waits in recv from rank 3 over pp        no send of rank 3   waits for rank 3
    rank 3   runs load_batch                                              waits for none

A rank on gloo waits in the call of its status. A rank on nccl waits in the call that its device has
started; it has begun later ones behind it. A fact that no status holds is unknown: then a rank may
wait for any rank of its group, but is not known to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..launch.disagreement import RankStatus, TracedCall
from ..launch.judges import RankState, Sighting
from ..layout.axes import has_pipeline
from ..layout.layout import Layout
from ..text import Ints

Rows = Mapping[str, Ints]  # axes of a view as text to its groups, (num_groups, group_size)
NO_ROWS: Rows = {}


class Where(Enum):
    """The place of a rank, as far as it is known."""

    DEAD = "dead"
    STOPPED = "stopped"
    LEFT = "left"  # by an error, or it has closed the mesh
    PASSED = "passed"  # it has left the guard without an error
    RUNS = "runs"  # in user code, or it runs and does not answer
    WAITS = "waits"
    UNKNOWN = "unknown"

    @property
    def is_gone(self) -> bool:
        """Whether the rank takes part in no more calls."""
        return self in (Where.DEAD, Where.STOPPED, Where.LEFT)


class GroupRanks(NamedTuple):
    """The ranks of a process group, ``GroupRanks("dp", (0, 2))``."""

    axes: str
    ranks: tuple[int, ...]


class Wait(NamedTuple):
    """A call in which a rank waits."""

    group: GroupRanks
    call: TracedCall


@dataclass
class Table:
    """The facts about all ranks at one time.

    Attributes:
        layout: the ranks of the mesh.
        statuses: the status of the ranks that have answered, or whose calls another source knows.
        silent: the ranks that have not answered, and their processes.
        rows: the groups of views, by their axes.
        where: each rank to its place.
        waits: the ranks that wait, to the calls in which they do; empty if these are unknown.
        vague: the ranks that wait in one of their calls, and it is unknown in which.
    """

    layout: Layout
    statuses: Mapping[int, RankStatus]
    silent: Mapping[int, Sighting]
    rows: Rows = field(default_factory=dict)
    where: dict[int, Where] = field(default_factory=dict)
    waits: dict[int, list[Wait]] = field(default_factory=dict)
    vague: set[int] = field(default_factory=set)
    groups: dict[str, dict[int, GroupRanks]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        statuses = self.statuses.values()
        names = [{*s.begun, *s.calls, s.group} for s in statuses]
        for axes in sorted(set().union(*names)):
            of_axes = groups_over(self.layout, axes, self.rows)
            rows = [GroupRanks(axes, tuple(row)) for row in of_axes]
            self.groups[axes] = {rank: group for group in rows for rank in group.ranks}
        self._counted = {group for group in self.all_groups() if self._counts_are_equal(group)}
        self._least = {group: self._least_begun(group) for group in self.all_groups()}
        for rank in sorted({*map(int, self.layout.grid.flat), *self.statuses, *self.silent}):
            self.where[rank] = self._place(rank)

    def all_groups(self) -> Iterable[GroupRanks]:
        """Return all groups that some status names."""
        return {group for rows in self.groups.values() for group in rows.values()}

    def progress(self, rank: int, group: GroupRanks) -> int | None:
        """Return how many collectives a rank has begun over its group; None if unknown."""
        status = self.statuses.get(rank)
        if status is None:
            return None
        calls, count = status.calls.get(group.axes, ()), status.begun.get(group.axes)
        numbers = [call.number for call in calls if not call.is_message]
        if any(numbers):
            return max(numbers)
        if calls and not numbers and status.sees_waits:  # messages alone, which gloo counts too
            return 0
        return count if group in self._counted or not count else None

    def call_at(self, rank: int, group: GroupRanks, number: int) -> TracedCall | None:
        """Return the collective of that number as a rank has begun it; None if unknown."""
        calls = self.statuses[rank].calls if rank in self.statuses else {}
        of_group = calls.get(group.axes, ())
        return next((c for c in of_group if c.number == number and not c.is_message), None)

    def waited(self, ranks: Iterable[int]) -> dict[int, float]:
        """Return how long ranks wait, in seconds, of those that know.

        A rank on gloo that has just begun to wait says 0, and so does a trace that does not know.
        """
        known = [self.statuses[rank] for rank in ranks if rank in self.statuses]
        return {each.rank: each.waited for each in known if each.waited or each.sees_waits}

    def _place(self, rank: int) -> Where:
        """Return the place of a rank, and note the calls in which it waits."""
        status, sight = self.statuses.get(rank), self.silent.get(rank)
        state = None if sight is None else sight.state
        if status is not None and status.has_left:
            return Where.LEFT
        if state is RankState.ENDED:
            return Where.DEAD
        if state is RankState.STOPPED:
            return Where.STOPPED
        if status is None:
            return Where.RUNS if state is RankState.BUSY else Where.UNKNOWN
        if status.left_guard:
            return Where.PASSED
        waits = self._waits_on_gloo(status) if status.sees_waits else self._waits_on_nccl(status)
        if waits is None:
            return Where.RUNS if status.sees_waits or self._is_traced(status) else Where.UNKNOWN
        self.waits[rank] = waits
        return Where.WAITS

    def _waits_on_gloo(self, status: RankStatus) -> list[Wait] | None:
        """Return the calls in which a rank waits, none if they are unknown; None in user code."""
        if not status.function:
            return None
        group = self.groups.get(status.group, {}).get(status.rank)
        if group is None:
            return [] if status.group else self._open(status)
        of_group = status.calls.get(group.axes, ())
        own = [wait for wait in self._open(status) if wait.group == group]
        if own:
            return own if status.function == "wait" else own[-1:]
        is_message = TracedCall(name=status.function).is_message and len(group.ranks) > 2
        count = status.begun.get(group.axes, 0)
        if of_group or is_message or not count or group not in self._counted:
            return []
        return [Wait(group, TracedCall(count))]

    def _waits_on_nccl(self, status: RankStatus) -> list[Wait] | None:
        """Return the calls in which the device of a rank waits; None if it waits in none.

        Without a trace, a rank waits in a call that a peer has not begun, but may wait earlier.
        """
        waits = self._open(status)
        started = [wait for wait in waits if wait.call.state == "started"]
        if started or len(waits) == 1:
            return started or waits
        if waits and all(wait.call.order for wait in waits):
            return [min(waits, key=lambda wait: wait.call.order)]
        for axes, begun in status.begun.items():
            group = self.groups[axes].get(status.rank)
            if group is not None and not status.calls.get(axes) and begun > self._least[group]:
                waits.append(Wait(group, TracedCall(begun)))
        if waits:
            self.vague.add(status.rank)
        return waits or ([] if status.function else None)

    def _open(self, status: RankStatus) -> list[Wait]:
        """Return the calls of a rank that are not known to have completed."""
        return [
            Wait(self.groups[axes][status.rank], call)
            for axes, calls in status.calls.items()
            if status.rank in self.groups[axes]
            for call in calls
            if call.is_open
        ]

    def _is_traced(self, status: RankStatus) -> bool:
        """Return whether the line of a rank and its calls over all its groups are known."""
        begun = (axes for axes, count in status.begun.items() if count)
        return bool(status.line and status.calls) and {*begun} <= status.calls.keys()

    def _counts_are_equal(self, group: GroupRanks) -> bool:
        """Return whether ranks of a group that made the same calls have equal counts.

        gloo counts messages too. Each counts on both ranks, so the counts of two ranks are equal,
        but they are not the numbers of collectives in a trace.
        """
        known = [self.statuses[rank] for rank in group.ranks if rank in self.statuses]
        on_gloo = [status for status in known if status.sees_waits]
        traced = [call for status in on_gloo for call in status.calls.get(group.axes, ())]
        if len(group.ranks) <= 2 and not traced:
            return True
        has_messages = any(call.is_message for call in traced)
        return not on_gloo or not (has_messages or has_pipeline(group.axes.split()))

    def _least_begun(self, group: GroupRanks) -> int:
        known = (self.progress(rank, group) for rank in group.ranks)
        return min((count for count in known if count is not None), default=0)


def groups_over(layout: Layout, axes: str, rows: Rows) -> list[list[int]]:
    """Return the groups over some axes of the mesh or of a view; none if they are unknown."""
    names = axes.split()
    known = bool(names) and {*names} <= {*layout.axes}
    groups: list[list[int]] = (
        rows[axes].tolist() if axes in rows else layout.groups(names).tolist() if known else []
    )
    return groups
