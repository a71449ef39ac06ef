"""Check that the operations of ranks that were played one by one match: pure, from their traces.

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
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from ..layout.axes import data_axes
from ..text import count_noun, format_sizes, group_by
from .record import ANY, MAX_NAMED, MESSAGES, Group, GroupRecord, Mismatch, Names, Operation, Trace


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
        of_group = {rank: by_rank[rank].get(key, ()) for rank in ranks}
        rows = {rank: [op for op in ops if not op.is_message] for rank, ops in of_group.items()}
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
    return group_by((trace.groups[each.group].key, each) for each in trace.operations)


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
    received = ((r, op) for r, t in traces.items() for op in t.operations if op.name == "recv")
    takes_any = {rank for rank, op in received if op.peer == ANY}
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


_End = tuple[tuple[object, ...], int]  # a group or channel, and one of its ranks


class _Point(NamedTuple):
    """The condition that ends an operation: starts of some ranks at its group or channel."""

    channel: tuple[object, ...]
    ranks: tuple[int, ...]  # the played ranks that must have started it
    turn: int  # from 0


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
                own = point.channel, rank
                started[own] += 1
                queue.extend(r for r in waiting.pop(own, ()) if r in blocked)
            else:
                ends = ((point.channel, other) for other in point.ranks)
                late = next((end for end in ends if started[end] <= point.turn), None)
                if late is not None:
                    blocked[rank] = number, late[1]
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
    line = f"{count_noun(len(ranks), 'rank')} along {along} wait for each other:"
    text = "\n".join([line, *texts])
    members = tuple(sorted(ranks))
    return Mismatch(groups[0], members, operations[0], text, "order", _lines(operations))


def uneven_data(traces: Mapping[int, Trace], names: Names) -> list[str]:
    """Return a line for ranks that differ along data axes only and run other numbers of operations.

    Such ranks may read different numbers of samples without communicating over the data axes.
    """
    if not names.layouts:
        return []
    data = data_axes(names.layouts[0].sizes)
    ended = {rank: names.coordinate(rank) for rank, trace in traces.items() if trace.has_ended}
    classes = group_by(
        (tuple(index for axis, index in at.items() if axis not in data), rank)
        for rank, at in ended.items()
        if at
    )
    lines = []
    for ranks in classes.values():
        counts = {rank: _counts(traces[rank], names) for rank in ranks}
        for rank in ranks[1:]:
            first = counts[ranks[0]]
            axes = [a for a in {**first, **counts[rank]} if first[a] != counts[rank][a]]
            if axes:
                over = ", ".join(
                    f"{counts[rank][a]} and {first[a]} over {a or 'other groups'}" for a in axes
                )
                lines.append(
                    f"{names.rank(rank)} and {names.rank(ranks[0])} differ along "
                    f"{' and '.join(data)} only and run other numbers of operations: {over}."
                )
                break
    return lines


def _counts(trace: Trace, names: Names) -> Counter[str]:
    axes = [names.group(group.members).name for group in trace.groups]
    return Counter(axes[op.group] for op in trace.operations if op.name != "new_group")


def differs_from(trace: Trace, corner: Trace, names: Names) -> str:
    """Return the first operation in which a rank differs from the one that stands for it."""
    pairs = zip_longest(_relative(trace, names), _relative(corner, names))
    for number, (own, other) in enumerate(pairs):
        if own != other:
            ops = [t.operations[number : number + 1] for t in (trace, corner)]
            texts = [f"{op[0]}{_peer_of(op[0])} ({op[0].line})" if op else "nothing" for op in ops]
            return f"operation {number} is {texts[0]}, and there {texts[1]}"
    return ""


def _peer_of(operation: Operation) -> str:
    words = {"send": " to rank", "recv": " from rank"}
    return f"{words[operation.name]} {operation.peer}" if operation.is_message else ""


def _relative(trace: Trace, names: Names) -> Iterable[tuple[object, ...]]:
    """Yield the operations of a rank with all ranks replaced by their places in groups."""
    groups = [names.group(group.members) for group in trace.groups]
    for op in trace.operations:
        group, root, peer = groups[op.group], op.root, op.peer
        if op.name == "new_group":
            yield op.name, group.axes
            continue
        if peer != ANY:
            peer = group.members.index(peer) - group.members.index(trace.rank)
        root = group.members.index(root) if root != ANY else ANY
        yield op.name, group.axes, op.dtype, op.numel, op.detail, root, peer % len(group.members)
