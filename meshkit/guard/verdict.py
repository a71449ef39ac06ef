"""Judge a hang: the ranks for which others wait, and which wait for none, and why.

The calls in which ranks wait are a graph. A rank waits for its calls, and a call for the ranks that
have not come to it. Each path ends at the root of the hang::

    rank 0 -> all_reduce over tp -> rank 1 -> all_gather over dp -> rank 3   in user code: busy

    the path ends at                                       kind
    a rank that has ended, is stopped, or has left         dead, stopped, left
    a rank that has left the guard without the call        behind, or message
    a rank in user code                                    busy
    a call to which all ranks have come                    mismatch, wedge, or late
    a cycle of waits                                       order, or message

Only what the table knows makes an edge. If no path ends at a known root, the kind is unknown, and
the root holds the ranks that cannot be excluded. The cost grows with the ranks times their groups.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..launch.disagreement import UNEVEN_CALLS, RankStatus, TracedCall
from ..launch.judges import RankState, Sighting
from ..layout.layout import Layout
from ..text import group_by
from .table import NO_ROWS, GroupRanks, Rows, Table, Wait, Where

LATE = 1.0  # seconds, at least, by which a rank is late, and half of the longest wait
KINDS = (  # what is certain, the first cause first
    *("dead", "stopped", "left", "mismatch", "order", "message"),
    *("behind", "busy", "wedge", "late"),
)
SINKS = {
    Where.DEAD: "dead",
    Where.STOPPED: "stopped",
    Where.LEFT: "left",
    Where.PASSED: "behind",
    Where.RUNS: "busy",
}


class HangVerdict(NamedTuple):
    """The root of a hang: why ranks wait, for which ranks, and in which calls."""

    kind: str = ""
    root: tuple[int, ...] = ()
    calls: Mapping[int, Wait] = {}  # of the ranks at the root, or of those that wait for it
    # of a mismatch: what differs, "sizes", and the ranks that have each value
    part: str = ""
    alike: Sequence[Sequence[int]] = ()


class CallNode(NamedTuple):
    """A node of the graph: a collective of a group by its number, or a message by its ends."""

    group: GroupRanks
    number: int  # if a message has none, below zero: its place among the open ones
    ends: tuple[int, int] | None = None  # the ranks that send and receive


Node = int | CallNode  # a rank, or a call


def judge_hang(
    layout: Layout,
    statuses: Mapping[int, RankStatus],
    silent: Mapping[int, Sighting],
    rows: Rows = NO_ROWS,
) -> HangVerdict:
    """Return the root of a hang; of kind ``""`` if nobody waits for a rank that does not come."""
    return Waits(Table(layout, statuses, silent, rows)).judge()


@dataclass
class Waits:
    """The graph of the waits of a table.

    Attributes:
        edges: each node to those for which it waits for certain.
        may: each call to the ranks of which it is unknown whether they have come.
        at: each call to the ranks that wait in it.
        faults: those that are certain.
        suspects: the ranks that cannot be excluded.
    """

    table: Table
    edges: dict[Node, list[Node]] = field(default_factory=dict)
    may: dict[CallNode, set[int]] = field(default_factory=dict)
    at: dict[CallNode, dict[int, Wait]] = field(default_factory=dict)
    faults: list[HangVerdict] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for rank, waits in self.table.waits.items():
            self.edges[rank] = []
            for wait in waits:
                node = self._message(rank, wait) if wait.call.is_message else self._call(wait)
                if node is not None:
                    self.edges[rank].append(node)
                    self.at.setdefault(node, {})[rank] = wait

    def _call(self, wait: Wait) -> CallNode | None:
        """Return the node of a collective, with an edge to each rank that has not come to it."""
        group, number = wait.group, wait.call.number
        if not number:
            return None
        node = CallNode(group, number)
        if node not in self.edges:
            come = {rank: self._has_come(rank, group, number) for rank in group.ranks}
            self.edges[node] = [rank for rank, has in come.items() if has is False]
            self.may[node] = {rank for rank, has in come.items() if has is None}
        return node

    def _has_come(self, rank: int, group: GroupRanks, number: int) -> bool | None:
        """Return whether a rank has come to a collective of its group; None if unknown."""
        table, where = self.table, self.table.where[rank]
        count = table.progress(rank, group)
        if where in (Where.DEAD, Where.STOPPED):
            return False
        if count is None:
            return False if where is Where.LEFT else None
        if count < number or table.statuses[rank].sees_waits or where is Where.LEFT:
            return count >= number
        call = table.call_at(rank, group, number)
        if call is None:  # a trace has dropped it, or does not know the group
            return True if table.statuses[rank].calls.get(group.axes) else None
        return self._is_reached(rank, group, call)

    def _is_reached(self, rank: int, group: GroupRanks, call: TracedCall) -> bool | None:
        """Return whether the device of a rank has reached a call that the rank has begun."""
        if not call.is_open or self.table.statuses[rank].sees_waits:
            return True
        if rank in self.table.vague or rank not in self.table.waits:
            return None
        return Wait(group, call) in self.table.waits[rank]

    def _message(self, rank: int, wait: Wait) -> CallNode | None:
        """Return the node of a message, with an edge to its other end if that does not come."""
        group, call = wait
        if call.peer not in group.ranks:
            return None
        own = [c for c in self._messages(rank, group, call.peer, call.is_send) if c.is_open]
        place = own.index(call)
        ends = (rank, call.peer) if call.is_send else (call.peer, rank)
        node = CallNode(group, call.number or -1 - place, ends)
        has_come = self._other_end_has_come(rank, wait, place)
        self.edges[node] = [call.peer] if has_come is False else []
        self.may[node] = {call.peer} if has_come is None else set()
        return node

    def _messages(self, rank: int, group: GroupRanks, peer: int, is_send: bool) -> list[TracedCall]:
        """Return the traced messages of a rank with a peer in one direction."""
        status = self.table.statuses.get(rank)
        calls = () if status is None else status.calls.get(group.axes, ())
        return [c for c in calls if c.is_message and c.peer == peer and c.is_send is is_send]

    def _other_end(self, rank: int, wait: Wait, place: int) -> TracedCall | None:
        """Return the other end of a message as its peer has begun it; None if it is not traced."""
        group, call = wait
        theirs = self._messages(call.peer, group, rank, not call.is_send)
        if call.number and any(other.number for other in theirs):
            return next((other for other in theirs if other.number == call.number), None)
        return next(iter([other for other in theirs if other.is_open][place:]), None)

    def _other_end_has_come(self, rank: int, wait: Wait, place: int) -> bool | None:
        """Return whether the peer of a message has come to it; None if unknown."""
        group, call = wait
        where, status = self.table.where[call.peer], self.table.statuses.get(call.peer)
        if where.is_gone:
            return False
        other = self._other_end(rank, wait, place)
        if other is not None:
            return self._is_reached(call.peer, group, other)
        theirs = self._messages(call.peer, group, rank, not call.is_send)
        if numbers := [c.number for c in theirs if c.number and call.number]:
            return None if max(numbers) > call.number else False
        if theirs or status is None:  # one may be on its way
            return None
        if group.axes in status.calls or (status.calls and not status.sees_waits):
            return False
        if not status.sees_waits:
            return None
        # gloo moves what a thread has begun and left, unless that has another tag
        waits_long = self.table.statuses[rank].waited >= LATE
        is_idle = where is Where.RUNS and waits_long and not self._has_begun_all(call.peer, group)
        return False if is_idle or status.begun.get(group.axes) == 0 else None

    def _has_begun_all(self, rank: int, group: GroupRanks) -> bool:
        """Return whether a rank has begun as many calls over a group as all others together.

        gloo counts a message on both of its ranks, so no message is left that only they have begun.
        """
        known = {r: s.begun.get(group.axes) for r, s in self.table.statuses.items()}
        counts = [count for r in group.ranks if (count := known.get(r)) is not None]
        return len(counts) == len(group.ranks) and 2 * (known[rank] or 0) >= sum(counts)

    def judge(self) -> HangVerdict:
        """Return the root of the hang."""
        for node in self.at:
            self._compare(node)
        self._judge_ends()
        if not self.faults:
            self._judge_idle()
        for kind in KINDS:
            if faults := [fault for fault in self.faults if fault.kind == kind]:
                first, root = faults[0], {rank for fault in faults for rank in fault.root}
                calls = {rank: call for fault in faults[::-1] for rank, call in fault.calls.items()}
                return HangVerdict(kind, tuple(sorted(root)), calls, first.part, first.alike)
        return self._unknown()

    def _judge_ends(self) -> None:
        """Judge the cycles of waits, and the nodes that wait for none."""
        needed_by = group_by((rank, call) for call in self.at for rank in self.edges[call])
        for component in components(self.edges):
            (first, *others) = component
            if others:
                self._judge_cycle(component)
            elif self.edges.get(first):
                continue
            elif isinstance(first, CallNode):
                self._judge_call(first)
            elif first in needed_by:
                self._judge_rank(first, needed_by[first])

    def _judge_rank(self, rank: int, calls: Iterable[CallNode]) -> None:
        """Note a rank that some calls need, and which waits for none."""
        where = self.table.where[rank]
        waits = {r: wait for node in calls for r, wait in self.at[node].items()}
        if where is Where.PASSED and all(node.ends for node in calls):
            self.faults.append(HangVerdict("message", (rank,), waits))
        elif where in SINKS:
            self.faults.append(HangVerdict(SINKS[where], (rank,), waits))
        else:
            self.suspects.add(rank)

    def _judge_cycle(self, component: Collection[Node]) -> None:
        """Note ranks that wait for each other: two groups in opposite orders, or a lost message."""
        ranks = {node for node in component if isinstance(node, int)}
        calls = [node for node in component if isinstance(node, CallNode)]
        if ranks & self.table.vague:
            self.suspects |= ranks
            return
        inside = {node: [n for n in self.edges[node] if n in component] for node in component}
        collectives = {
            node: [n for n in targets if isinstance(n, int) or not n.ends]
            for node, targets in inside.items()
            if isinstance(node, int) or not node.ends
        }
        if cycles := [each for each in components(collectives) if len(each) > 1]:
            root = {node for each in cycles for node in each if isinstance(node, int)}
            waits = self._waits_of(root, inside)
            self.faults.append(HangVerdict("order", tuple(sorted(root)), waits))
            return
        is_closed = all(self.edges[node] == inside[node] for node in component)
        if is_closed and not any(self.may[node] for node in calls):
            ends = {rank for node in calls for rank in node.ends or ()}
            waits = self._waits_of(ends, inside)
            self.faults.append(HangVerdict("message", tuple(sorted(ends)), waits))
        else:
            self.suspects |= ranks

    def _waits_of(
        self, ranks: Iterable[int], inside: Mapping[Node, Collection[Node]]
    ) -> dict[int, Wait]:
        """Return the first call of each rank in which it waits for others of a cycle."""
        nodes = {rank: [node for node in inside[rank] if node in self.at] for rank in sorted(ranks)}
        return {r: self.at[own[0]][r] for r, own in nodes.items() if own}

    def _compare(self, node: CallNode) -> None:
        """Note ranks that have begun different calls as the same one."""
        calls = self._calls_of(node)
        part, alike = find_difference(calls)
        if not part:
            return
        size = len(node.ends or node.group.ranks)
        usual = max(alike, key=len)
        is_odd = len(usual) * 2 > size  # else nothing says which ones are
        root = sorted(r for ranks in alike for r in ranks if not is_odd or r not in usual)
        waits = {rank: Wait(node.group, call) for rank, call in calls.items()}
        self.faults.append(HangVerdict("mismatch", tuple(root), waits, part, alike))

    def _calls_of(self, node: CallNode) -> dict[int, TracedCall]:
        """Return a call as each rank has begun it, as far as it is known."""
        group, ends = node.group, node.ends
        if ends is None:
            calls = {rank: self.table.call_at(rank, group, node.number) for rank in group.ranks}
            return {rank: call for rank, call in calls.items() if call is not None}
        known = {rank: wait.call for rank, wait in self.at[node].items()}
        for rank, wait in self.at[node].items():
            place = -1 - node.number if node.number < 0 else 0
            if (other := self._other_end(rank, wait, place)) is not None:
                known.setdefault(wait.call.peer, other)
        return known

    def _judge_call(self, node: CallNode) -> None:
        """Note a call to which all ranks have come, or may have."""
        members, calls = node.ends or node.group.ranks, self._calls_of(node)
        unknown = {rank for rank in members if not _is_described(calls.get(rank))}
        if self.may[node]:
            idle = {rank for rank in self.may[node] if not self.edges.get(rank)}
            self.suspects |= (idle or self.may[node]) | ({*members} if node.ends else unknown)
            return
        waited = self.table.waited(self.at[node])
        longest = max(waited.values(), default=0.0)
        least = max(LATE, longest / 2)
        late = [rank for rank, seconds in waited.items() if longest - seconds >= least]
        waits = dict(self.at[node])
        if late:
            self.faults.append(HangVerdict("late", tuple(sorted(late)), waits))
        elif (waited and longest < LATE) or self._has_gone_on(node):
            return  # it may be on its way
        elif not self._is_wedge(members, calls, waited.keys()):
            idle = {rank for rank in unknown if self.table.where[rank] is Where.RUNS}
            self.suspects |= idle or unknown or {*self.at[node]}
        else:
            waits |= {rank: Wait(node.group, call) for rank, call in calls.items()}
            self.faults.append(HangVerdict("wedge", tuple(sorted(members)), waits))

    def _has_gone_on(self, node: CallNode) -> bool:
        """Return whether a rank has just completed a call in which others still wait."""
        members = {*(node.ends or node.group.ranks)} - self.at[node].keys()
        return any(seconds < LATE for seconds in self.table.waited(members).values())

    def _is_wedge(
        self, members: Collection[int], calls: Mapping[int, TracedCall], waiting: Collection[int]
    ) -> bool:
        """Return whether all members wait in equal calls, which complete on none of them."""
        return {*waiting} >= {*members} and all(
            rank in calls and calls[rank].is_open and _is_described(calls[rank]) for rank in members
        )

    def _judge_idle(self) -> None:
        """Note the cause if no wait leads to it: it is not known which call needs the rank."""
        table = self.table
        for rank, where in table.where.items():
            is_busy = rank in table.silent and table.silent[rank].state is RankState.BUSY
            is_busy &= not self.suspects or rank in self.suspects
            has_raised = where is Where.LEFT and bool(table.statuses[rank].error)
            if where in (Where.DEAD, Where.STOPPED) or has_raised or (is_busy and where in SINKS):
                self.faults.append(HangVerdict(SINKS[where], (rank,)))

    def _unknown(self) -> HangVerdict:
        """Return the ranks that cannot be excluded, if there are such ranks."""
        where = self.table.where
        hidden = {
            rank
            for rank, place in where.items()
            if place is Where.UNKNOWN or (place is Where.WAITS and not self.edges[rank])
        }
        peers = {
            rank
            for group in self.table.all_groups()
            if not hidden.isdisjoint(group.ranks)
            for rank in group.ranks
        }
        idle = {rank for rank in peers if where[rank] in (Where.RUNS, Where.PASSED)}
        suspects = self.suspects | hidden | idle | self.table.vague
        if any(where[rank] is Where.WAITS for rank in hidden):
            suspects |= self.table.waits.keys()  # one that waits elsewhere may have skipped it
        if not suspects:
            return HangVerdict()
        return HangVerdict("unknown", () if suspects >= where.keys() else tuple(sorted(suspects)))


def _is_described(call: TracedCall | None) -> bool:
    """Return whether a call can be compared with that of a peer."""
    return call is not None and bool((call.name and call.tensors) or call.name == "barrier")


def find_difference(calls: Mapping[int, TracedCall]) -> tuple[str, list[list[int]]]:
    """Return what differs first between calls that are one, and the ranks of each value.

    Sizes may differ between ranks in some collectives, so nothing is compared without a name. The
    two ends of a message have two names.
    """
    named = {rank: call for rank, call in calls.items() if call.name}
    is_message = any(call.is_message for call in named.values())
    is_uneven = any(call.name.startswith(UNEVEN_CALLS) for call in named.values())
    known = {rank: call for rank, call in calls.items() if call.tensors}
    even = {} if is_uneven else known
    parts: dict[str, dict[int, Hashable]] = {
        "operation": {} if is_message else {rank: call.name for rank, call in named.items()},
        "sizes": {rank: tuple(sizes for sizes, _ in call.tensors) for rank, call in even.items()},
        "dtype": {rank: call.dtypes for rank, call in known.items()},
        "tag": {rank: call.tag for rank, call in known.items()},
        "tensors": {rank: (call.tensors, call.more) for rank, call in even.items()},
        "root": {rank: call.root for rank, call in calls.items() if call.root >= 0},
    }
    alike = (
        (part, [*group_by((value, rank) for rank, value in values.items()).values()])
        for part, values in parts.items()
        if named
    )
    return next((each for each in alike if len(each[1]) > 1), ("", []))


def components(edges: Mapping[Node, Collection[Node]]) -> list[set[Node]]:
    """Return the strongly connected components of a graph (Tarjan), without recursion."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    inside: set[Node] = set()
    parts: list[set[Node]] = []
    for start in edges:
        path = [] if start in index else [(start, iter(edges[start]))]
        while path:
            node, targets = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                inside.add(node)
            for target in targets:
                if target not in index:
                    path.append((target, iter(edges.get(target, ()))))
                    break
                if target in inside:
                    low[node] = min(low[node], index[target])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    parts.append({node})
                    while (top := stack.pop()) != node:
                        parts[-1].add(top)
                    inside -= parts[-1]
    return parts
