"""Check that the operations of ranks that were played one by one match: pure, from their traces.

A trace has the operations of a rank in the order of its program, each with its group, and the
moments at which the rank waits for one of them::

    rank 0   start 0: all_reduce over tp     wait 0     start 1: send to 4 over pp     wait 1
    rank 4   start 0: all_reduce over tp     wait 0     start 1: recv from 0 over pp   wait 1

* The ranks of a group must start equal collectives in equal order.
* Every send must have its receive: the n-th of a pair and tag, with equal dtype and size.
* Groups of different ranks must have different numbers in torch's count of groups.
* No ranks may wait for each other. All ranks run until they wait: a collective ends when every
  played rank of its group has started it, a message when both ends have.

A rank that was not played is taken to do what its peers expect. A rank that raised is compared up
to its error, and nobody waits for it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from .errors import CoordinateError
from .layout import Layout
from .text import count_noun, format_sizes

MAX_NAMED = 4  # ranks with one operation that a line names
ANY = -1  # the peer of a receive from whichever rank sends first; the size that may differ
MESSAGES = ("send", "recv")


# received values: made up, those of this rank until the next pass knows better, those of played
# ranks, which stand for the others of the group, or those of all its ranks
Source = Literal["made up", "own", "played", "all"]


class GroupRecord(NamedTuple):
    """A group that a rank has created."""

    members: tuple[int, ...]  # global ranks, in order
    serial: int  # how many groups of equal members the rank has created before
    description: str = ""

    @property
    def key(self) -> GroupRecord:
        """The same group without its description, which ranks may give differently."""
        return self._replace(description="")


class Operation(NamedTuple):
    """A collective or a message of one rank."""

    name: str  # ``"all_reduce"``, ``"send"``...
    group: int  # index into the groups of the trace
    dtype: str = ""  # ``"f32"``
    shape: tuple[int, ...] = ()  # of its first tensor
    numel: int = 0  # elements of all its tensors; ANY if they may differ between ranks
    detail: str = ""  # the reduction; for an agreement what is compared
    root: int = ANY  # global rank of the root
    peer: int = ANY  # global rank of the other end of a message
    tag: int = 0
    num_bytes: int = 0  # that the rank hands over
    line: str = ""  # of the program, ``"train.py:88"``

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.name in MESSAGES

    @property
    def content(self) -> tuple[object, ...]:
        """The parts that must be equal on all ranks of the group."""
        return self.name, self.dtype, self.numel, self.detail, self.root

    def __str__(self) -> str:
        if self.name in ("agree", "new_group"):
            return f"{self.name} {self.detail}".rstrip()
        words = [self.name, self.dtype, f"{[*self.shape]}" if self.dtype else "", self.detail]
        words += [f"root {self.root}"] * (self.root != ANY)
        words += [f"tag {self.tag}"] * (self.tag != 0)
        return " ".join(word for word in words if word)


@dataclass(eq=False)
class Trace:
    """The operations of one played rank."""

    rank: int
    groups: list[GroupRecord] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    # an index of an operation that begins, or -1 - index when the rank waits for its end
    events: list[int] = field(default_factory=list)
    layouts: list[dict[str, int]] = field(default_factory=list)  # sizes of the meshes it built
    memory: dict[str, int] = field(default_factory=dict)  # kind to bytes
    # the first read of received values from each source: operations before it, line of the program
    reads: dict[Source, tuple[int, str]] = field(default_factory=dict)
    num_names: int = 0  # groups that torch has counted on this rank, those of other ranks included
    has_ended: bool = True  # whether its program ended without an error


@dataclass(frozen=True)
class Group:
    """A group of ranks: its axes in the mesh, and its members. ``axes`` is empty if unknown."""

    axes: tuple[str, ...]
    members: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its axes as text, ``"dp sp"``."""
        return " ".join(self.axes)

    def __str__(self) -> str:
        shown = [*map(str, self.members)]
        if len(shown) > MAX_NAMED:
            shown = [*shown[:2], "...", shown[-1]]
        return f"{self.name} group [{', '.join(shown)}]".lstrip()


@dataclass(frozen=True)
class Mismatch:
    """Ranks whose operations do not match.

    Attributes:
        group: the group, with ``.axes`` and ``.members``.
        ranks: the ranks that differ from most others, or all if there is no majority.
        operation: the operation of the first of these ranks, with ``.name`` and ``.line``.
        text: all of it, with coordinates and lines.
        check: the check that failed: ``"collectives"``, ``"p2p"`` or ``"order"``.
        lines: the lines of the program that the text has.
        read: the line of the program at which a rank has read made-up values before; else empty.
    """

    group: Group
    ranks: tuple[int, ...]
    operation: Operation
    text: str
    check: str
    lines: tuple[str, ...]
    read: str = ""


@dataclass(frozen=True, eq=False)
class Names:
    """The names of ranks and groups, by the meshes of the program."""

    layouts: Sequence[Layout]  # the first one names ranks
    known: dict[tuple[int, ...], tuple[str, ...]] = field(default_factory=dict)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank; empty if unknown."""
        layout = self.layouts[0] if self.layouts else None
        return layout.coordinate(rank) if layout is not None and rank in layout else {}

    def rank(self, rank: int) -> str:
        """Return a rank with its coordinate: ``rank 7 (dp=3 tp=1)``."""
        coordinate = format_sizes(self.coordinate(rank))
        return f"rank {rank} ({coordinate})" if coordinate else f"rank {rank}"

    def group(self, members: tuple[int, ...]) -> Group:
        """Return a group with its axes."""
        if members not in self.known:
            axes = (axes_of(layout, members) for layout in self.layouts)
            self.known[members] = next((names for names in axes if names), ())
        return Group(self.known[members], members)

    def within(self, group: Group, rank: int) -> str:
        """Return a rank by its indices in a group: ``pp=7``."""
        coordinate = self.coordinate(rank)
        is_named = group.axes and all(axis in coordinate for axis in group.axes)
        if is_named and len(group.axes) < len(coordinate):
            return format_sizes({axis: coordinate[axis] for axis in group.axes})
        return f"rank {rank}"


def axes_of(layout: Layout, members: Sequence[int]) -> tuple[str, ...]:
    """Return the axes of which some ranks are a group; empty if they are none."""
    try:
        coordinates = layout.coordinates(members)  # (num_members, num_axes)
    except CoordinateError:
        return ()
    varies = (coordinates != coordinates[0]).any(axis=0)
    axes = tuple(axis for axis, does in zip(layout.axes, varies, strict=True) if does)
    if not axes or layout.size(*axes) != len(members):
        return ()
    return axes if sorted(members) == sorted(layout.peers(members[0], *axes).tolist()) else ()


def find_mismatches(traces: Mapping[int, Trace], names: Names) -> list[Mismatch]:
    """Return everything that does not match, in the order of groups.

    The order of waits is looked at only if all else matches, since it would only repeat the rest.
    """
    mismatches = [
        *_groups_of_one_number(traces, names),
        *_unequal_sequences(traces, names),
        *_lone_messages(traces, names),
    ]
    return mismatches or _cycle(traces, names)


def _groups(traces: Mapping[int, Trace]) -> dict[GroupRecord, list[int]]:
    """Return the played members of each group with several of them."""
    groups = dict.fromkeys(group.key for trace in traces.values() for group in trace.groups)
    played = {group: [rank for rank in group.members if rank in traces] for group in groups}
    return {group: ranks for group, ranks in played.items() if len(ranks) > 1}


def _groups_of_one_number(traces: Mapping[int, Trace], names: Names) -> Iterable[Mismatch]:
    """Return the first groups of different ranks to which torch gives one number.

    torch numbers a group by the groups that the rank has counted before. The number is the prefix
    of the keys by which the ranks of a group connect.
    """
    numbers: dict[tuple[int, str], dict[tuple[int, ...], tuple[int, Operation]]] = defaultdict(dict)
    for rank, trace in traces.items():
        worlds = 0  # default groups: torch counts from 0 again after each
        for op in trace.operations:
            if op.name != "new_group" or not op.detail.removeprefix("name ").isdecimal():
                continue  # a group of use_local_synchronization is named by its ranks
            worlds += op.detail == "name 0"
            groups = numbers[worlds, op.detail]
            groups.setdefault(trace.groups[op.group].members, (rank, op))
            if len(groups) > 1 and max(map(len, groups)) > 1:
                parts = [
                    f"{Group((), members)} on {names.rank(creator)} ({created.line})"
                    for members, (creator, created) in groups.items()
                ]
                yield Mismatch(
                    names.group(trace.groups[op.group].members),
                    tuple(creator for creator, _ in groups.values()),
                    op,
                    f"Ranks create different groups as number {op.detail.split()[1]} of torch: "
                    f"{', '.join(parts)}.\n"
                    "  Both connect by the keys of that number, and wait. Call new_group on all "
                    "ranks, for the same groups in the same order.",
                    "collectives",
                    _lines(created for _, created in groups.values()),
                )
                return


def uncounted_groups(traces: Mapping[int, Trace], names: Names) -> list[str]:
    """Return a line for a rank that has not called ``new_group`` as often as the others."""
    counts = {rank: trace.num_names for rank, trace in traces.items() if trace.has_ended}
    most = max(counts, key=lambda rank: counts[rank], default=0)
    least = min(counts, key=lambda rank: counts[rank], default=0)
    if not counts or counts[most] == counts[least]:
        return []
    operations = [op for op in traces[most].operations if op.name == "new_group"]
    more = counts[most] - counts[least]
    return [
        f"{names.rank(most)} calls new_group {count_noun(more, 'time')} more than "
        f"{names.rank(least)}, at last at {operations[-1].line}. A gloo group waits for its own "
        "ranks only; NCCL with device_id, and TORCH_DIST_INIT_BARRIER=1, wait for all ranks."
    ]


def _unequal_sequences(traces: Mapping[int, Trace], names: Names) -> Iterable[Mismatch]:
    by_rank = {rank: _by_group(trace) for rank, trace in traces.items()}
    for key, ranks in _groups(traces).items():
        rows = {
            rank: [op for op in by_rank[rank].get(key, ()) if not op.is_message] for rank in ranks
        }
        columns = zip_longest(*rows.values())
        for number, column in enumerate(columns):
            at = dict(zip(rows, column, strict=True))
            at = {r: op for r, op in at.items() if op is not None or traces[r].has_ended}
            contents = {rank: None if op is None else op.content for rank, op in at.items()}
            if len(set(contents.values())) > 1:
                found = _mismatch(names.group(key.members), number, at, contents, names)
                yield _after_read(found, at, traces)
                break


def _after_read(
    mismatch: Mismatch, at: Mapping[int, Operation | None], traces: Mapping[int, Trace]
) -> Mismatch:
    """Return a mismatch that says so if it follows a read of values that were made up."""
    for rank, op in at.items():
        trace = traces[rank]
        before, line = trace.reads.get("made up", (len(trace.operations) + 1, ""))
        end = (n for n, other in enumerate(trace.operations) if other is op)
        if before <= next(end, len(trace.operations)):
            text = f"\n  It follows a value that was made up, read at {line or 'an unknown line'}."
            return replace(mismatch, text=mismatch.text + text, read=line or "unknown")
    return mismatch


def _by_group(trace: Trace) -> dict[GroupRecord, list[Operation]]:
    keys = [group.key for group in trace.groups]
    operations: dict[GroupRecord, list[Operation]] = defaultdict(list)
    for operation in trace.operations:
        operations[keys[operation.group]].append(operation)
    return operations


def _mismatch(
    group: Group,
    number: int,
    operations: Mapping[int, Operation | None],
    contents: Mapping[int, object],
    names: Names,
) -> Mismatch:
    """Return the mismatch of ranks that are at different operations of one group."""
    counts = Counter(contents.values())
    most, votes = counts.most_common(1)[0]
    is_majority = 2 * votes > len(contents)
    odd = [rank for rank in contents if not (is_majority and contents[rank] == most)]
    others = [rank for rank in contents if rank not in odd]
    named = [*odd[:MAX_NAMED], *others[:1]]
    parts = [_at(operations, contents, content, group, names) for content in counts]
    more = f" and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
    ranks = f"{', '.join(map(names.rank, named[:-1]))}{more} and {names.rank(named[-1])}"
    text = (
        f"Ranks along {group.name or group} do not match: {ranks}.\n"
        f"  Operation {number} of the {group}: {', '.join(parts)}."
    )
    own = next((operations[rank] for rank in odd if operations[rank] is not None), None)
    shown = own or next(op for op in operations.values() if op is not None)
    return Mismatch(group, tuple(odd), shown, text, "collectives", _lines(operations.values()))


def _lines(operations: Iterable[Operation | None]) -> tuple[str, ...]:
    """Return the lines of the program at which operations are, sorted."""
    return tuple(sorted({op.line for op in operations if op is not None and op.line}))


def _at(
    operations: Mapping[int, Operation | None],
    contents: Mapping[int, object],
    content: object,
    group: Group,
    names: Names,
) -> str:
    """Return an operation with the ranks that are at it and their line."""
    ranks = [rank for rank in contents if contents[rank] == content]
    shown = [names.within(group, rank) for rank in ranks[:MAX_NAMED]]
    where = ", ".join(shown) + (f" and {len(ranks) - MAX_NAMED} more" if ranks[MAX_NAMED:] else "")
    operation = operations[ranks[0]]
    if operation is None:
        return f"no more on {where}"
    others = [op for op in operations.values() if op is not None]
    return f"{_describe(operation, others)} on {where} ({operation.line or 'line unknown'})"


def _describe(operation: Operation, others: Sequence[Operation]) -> str:
    """Return an operation as text; of an agreement only the facts that differ."""
    if operation.name != "agree" or not operation.detail:
        return str(operation)
    facts = [json.loads(op.detail) for op in others if op.name == "agree" and op.detail]
    own = json.loads(operation.detail)
    differing = {k: v for k, v in own.items() if any(other.get(k) != v for other in facts)}
    call = own.get("call") or "agree"
    return f"{call}({format_sizes({k: v for k, v in differing.items() if k != 'call'}, ', ')})"


def _lone_messages(traces: Mapping[int, Trace], names: Names) -> Iterable[Mismatch]:
    """Return the first message of each pair that has no equal other end."""
    ends = _message_ends(traces)
    for key, source, target, tag in dict.fromkeys(channel for _, channel in ends):
        channel = key, source, target, tag
        sends, receives = (ends.get((name, channel), []) for name in MESSAGES)
        group = names.group(key.members)
        for sent, received in zip_longest(sends, receives):
            at = {source: sent and sent[1], target: received and received[1]}
            if any(op is None and not traces[rank].has_ended for rank, op in at.items()):
                break  # it might have come after the error
            contents = {rank: op and (op.dtype, op.numel) for rank, op in at.items()}
            if len({*contents.values()}) > 1:
                number = next(end[0] for end in (received, sent) if end is not None)
                found = _message_mismatch(group, number, at, source, names)
                yield _after_read(found, at, traces)
                break


MessageEnds = dict[
    tuple[str, tuple[GroupRecord, int, int, int]], list[tuple[int, Operation]]
]  # send or recv, (group, source, target, tag) to the number in the group and the operation


def _message_ends(traces: Mapping[int, Trace]) -> MessageEnds:
    """Return the sends and receives between played ranks."""
    ends: MessageEnds = defaultdict(list)
    takes_any = {
        rank
        for rank, t in traces.items()
        for op in t.operations
        if op.name == "recv" and op.peer == ANY
    }
    for rank, trace in traces.items():
        keys = [group.key for group in trace.groups]
        counts: Counter[int] = Counter()
        for op in trace.operations:
            counts[op.group] += 1
            if op.is_message and op.peer in traces:
                pair = (rank, op.peer) if op.name == "send" else (op.peer, rank)
                if pair[1] not in takes_any:
                    channel = keys[op.group], *pair, op.tag
                    ends[op.name, channel].append((counts[op.group] - 1, op))
    return ends


def _message_mismatch(
    group: Group, number: int, at: Mapping[int, Operation | None], source: int, names: Names
) -> Mismatch:
    ranks = tuple(sorted(at, reverse=True))
    parts = []
    for rank in ranks:
        operation, where = at[rank], names.within(group, rank)
        what = f"{operation} on {where} ({operation.line})" if operation else ""
        parts.append(what or f"no {'send' if rank == source else 'recv'} on {where}")
    text = (
        f"Ranks along {group.name or group} do not match: {' and '.join(map(names.rank, ranks))}.\n"
        f"  Operation {number} of the {group}: {', '.join(parts)}."
    )
    shown = next(operation for operation in at.values() if operation is not None)
    return Mismatch(group, ranks, shown, text, "p2p", _lines(at.values()))


class _Point(NamedTuple):
    """The condition that ends an operation: starts of some ranks at its group or channel."""

    channel: tuple[object, ...]
    ranks: tuple[int, ...]  # the played ranks that must have started it
    turn: int  # from 0


class _End(NamedTuple):
    """One rank at a group or channel."""

    channel: tuple[object, ...]
    rank: int


def _cycle(traces: Mapping[int, Trace], names: Names) -> list[Mismatch]:
    """Return the ranks that wait for each other, if any do."""
    ended = {rank: trace for rank, trace in traces.items() if trace.has_ended}
    numbers: dict[GroupRecord, int] = {}
    points = {rank: _points(trace, ended, numbers) for rank, trace in ended.items()}
    started: Counter[_End] = Counter()
    position = dict.fromkeys(ended, 0)
    waiting: dict[_End, set[int]] = defaultdict(set)
    queue, blocked = deque(ended), dict[int, tuple[int, int]]()  # rank to operation, awaited rank
    while queue:
        rank = queue.popleft()
        blocked.pop(rank, None)
        events = ended[rank].events
        while position[rank] < len(events):
            event = events[position[rank]]
            number = event if event >= 0 else -event - 1
            point = points[rank][number]
            if event >= 0:
                own = _End(point.channel, rank)
                started[own] += 1
                queue.extend(r for r in waiting.pop(own, ()) if r in blocked)
            else:
                ends = (_End(point.channel, other) for other in point.ranks)
                late = next((end for end in ends if started[end] <= point.turn), None)
                if late is not None:
                    blocked[rank] = number, late.rank
                    waiting[late].add(rank)
                    break
            position[rank] += 1
    for first in blocked:
        path = [first]
        while blocked.get(path[-1], (0, -1))[1] in blocked and len(set(path)) == len(path):
            path.append(blocked[path[-1]][1])
        if len(set(path)) < len(path):
            return [_cycle_mismatch(path[path.index(path[-1]) : -1], blocked, traces, names)]
    return []


def _points(
    trace: Trace, played: Mapping[int, Trace], numbers: dict[GroupRecord, int]
) -> list[_Point]:
    """Return what ends each operation of a rank. ``numbers`` gets a number for each group."""
    keys = [numbers.setdefault(group.key, len(numbers)) for group in trace.groups]
    members = [tuple(rank for rank in group.members if rank in played) for group in trace.groups]
    counts: Counter[tuple[object, ...]] = Counter()
    points = []
    for op in trace.operations:
        ranks: tuple[int, ...] = members[op.group]
        channel: tuple[object, ...] = (keys[op.group],)
        if op.is_message:
            pair = (trace.rank, op.peer) if op.name == "send" else (op.peer, trace.rank)
            channel, ranks = (*channel, *pair, op.tag), tuple(r for r in pair if r in played)
            if op.peer == ANY:
                ranks = ()
        elif op.name == "new_group":
            ranks = ()  # a backend may connect its ranks later
        points.append(_Point(channel, ranks, counts[channel]))
        counts[channel] += 1
    return points


def _cycle_mismatch(
    ranks: Sequence[int],
    blocked: Mapping[int, tuple[int, int]],
    traces: Mapping[int, Trace],
    names: Names,
) -> Mismatch:
    texts, groups, operations = [], [], []
    for rank in ranks:
        trace, (number, other) = traces[rank], blocked[rank]
        operation = trace.operations[number]
        group = names.group(trace.groups[operation.group].members)
        groups.append(group)
        operations.append(operation)
        texts.append(
            f"  {names.rank(rank)} waits in {operation} of the {group} ({operation.line}) "
            f"for {names.rank(other)}."
        )
    along = " and ".join(dict.fromkeys(group.name or str(group) for group in groups))
    text = "\n".join(
        [f"{count_noun(len(ranks), 'rank')} along {along} wait for each other:", *texts]
    )
    members = tuple(sorted(ranks))
    return Mismatch(groups[0], members, operations[0], text, "order", _lines(operations))
