"""Write the report of a collective that failed or hangs, from the status of each rank.

The judge (``verdict.py``) finds the root: the ranks for which others wait, and which wait for none.
The report names it first, then the ranks behind, and then what all others do::

    Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives over dp; in no collective, load.py:9
    Ranks 0, 1: wait 8.0 s in all_reduce over dp, [4] float32, begun at train.py:18 (step)

A rank is behind that has begun fewer collectives than a peer. It may itself wait in another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import CollectiveError
from ..launch.disagreement import REBUILD_ADVICE, RankStatus, TracedCall, describe_coordinate
from ..launch.judges import Arrivals, Decision, Judge, RankState, Sighting
from ..layout.layout import Layout
from ..text import format_ranks, group_by, plural, shorten
from .table import NO_ROWS, Rows, Table, Wait, Where, groups_over
from .verdict import HangVerdict, Waits

MAX_LINES = 8  # lines about single ranks, or about ranks with equal status
STATES = {
    RankState.ENDED: "it has ended",
    RankState.STOPPED: "it is stopped",
    RankState.UNKNOWN: "not known here whether it runs",
    RankState.BUSY: "it runs, but does not answer",
}
NO_ANSWER = Sighting(RankState.UNKNOWN, "no answer")

# returns, for those of some ranks that left the guard before, the status that they posted
ReadExits = Callable[[Sequence[int]], Mapping[int, "RankStatus"]]
HARMLESS = ("", "unknown", "late")  # kinds that alone are no report of a hang that is suspected


class Lag(NamedTuple):
    """The collectives over some axes that a rank has begun, and the most that a peer has begun."""

    axes: str
    begun: int
    most: int

    def __str__(self) -> str:
        return f"{self.begun} of {self.most} collectives over {self.axes}"


def lagging_ranks(
    layout: Layout, statuses: Mapping[int, RankStatus], rows: Rows = NO_ROWS
) -> dict[int, Lag]:
    """Return the ranks that have begun fewer collectives than a peer, with their largest lag."""
    lags: dict[int, Lag] = {}
    for axes, begun in _counts(layout, statuses, rows):
        most = max(begun.values(), default=0)
        for rank, count in begun.items():
            before = lags.get(rank, Lag(axes, 0, 0))
            if most - count > before.most - before.begun:
                lags[rank] = Lag(axes, count, most)
    return dict(sorted(lags.items()))


def _counts(
    layout: Layout, statuses: Mapping[int, RankStatus], rows: Rows
) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield the axes of each group, and how many collectives its ranks have begun there."""
    for axes in dict.fromkeys(name for status in statuses.values() for name in status.begun):
        for row in groups_over(layout, axes, rows):
            known = [rank for rank in row if rank in statuses and axes in statuses[rank].begun]
            yield axes, {rank: statuses[rank].begun[axes] for rank in known}


def who_is_behind(
    layout: Layout,
    summary: str,
    read_exits: ReadExits,
    *,
    known: float,
    read_silent: ReadExits = lambda _: {},
    rows: Rows = NO_ROWS,
) -> Judge:
    """Return the judge of a roll call, whose decision is the report of all ranks.

    Without a summary a hang is only suspected: the decision holds a report if a rank is behind or
    silent.

    Args:
        layout: the ranks of the mesh.
        summary: the first line of the report.
        read_exits: returns the status of those of some ranks that left the guard before.
        known: seconds for the answers if a rank has left that explains the failure.
        read_silent: returns what is known of some ranks that do not answer, from another source.
        rows: the groups of views whose guards are inside that of the mesh.
    """

    def judge(seen: Arrivals) -> Decision | None:
        answers = {r: RankStatus.from_facts(r, a.facts) for r, a in seen.arrived.items()}
        gone = read_exits(seen.missing)
        missing = {r: seen.seen.get(r, NO_ANSWER) for r in seen.missing}
        has_left = {r for r, status in gone.items() if status.has_left}
        can_answer = [r for r in missing.keys() - has_left if missing[r].state != RankState.ENDED]
        statuses, is_early = {**gone, **answers}, bool(can_answer) and not seen.expired
        if is_early and not (
            has_left
            and seen.waited >= known
            and _causes(statuses, lagging_ranks(layout, statuses, rows))
        ):
            return None  # a rank that left a guard well may be in the next one, and answer there
        known_ranks = has_left | {r for r in gone if not missing[r].state.is_certain}
        if is_early:  # a rank that runs had no time to answer
            known_ranks |= {r for r in missing if not missing[r].state.is_certain}
        silent = {r: sighting for r, sighting in missing.items() if r not in known_ranks}
        statuses |= read_silent([*silent])
        report = hang_error(summary, layout, statuses, silent, rows)
        is_hang = report.behind or report.missing_ranks or report.kind not in HARMLESS
        is_report = summary or is_hang
        return Decision(report if is_report else None)

    return judge


def hang_error(
    summary: str,
    layout: Layout,
    statuses: Mapping[int, RankStatus],
    silent: Mapping[int, Sighting],
    rows: Rows = NO_ROWS,
) -> CollectiveError:
    """Return the error that all ranks raise; without a summary, it says which ranks wait."""
    waits = Waits(Table(layout, statuses, silent, rows))
    table, fault = waits.table, waits.judge()
    lags = lagging_ranks(layout, statuses, rows)
    if fault.kind in ("", "unknown"):  # the counts may tell more
        idle = [r for r in lags if table.where[r] is not Where.WAITS and r not in silent]
        likely = [rank for rank in idle if rank in fault.root] or [*fault.root] or idle
        # a rank that waits may be behind because of any other one
        counted = () if fault.kind else lags
        fault = HangVerdict(fault.kind or ("behind" if idle else ""), tuple(likely or counted))
    left = [rank for rank in sorted(statuses) if statuses[rank].has_left and rank not in lags]
    states = {rank: silence.state for rank, silence in silent.items()}
    named = {*lags, *left, *silent}
    if fault.kind == "busy":
        named |= {*fault.root}
    first = sorted(named, key=lambda r: (r not in fault.root, states.get(r, -1), r))
    lines = [*_root_lines(table, fault), *(_rank_line(table, rank, lags) for rank in first)]
    alike = group_by((_describe(table, rank), rank) for rank in sorted(statuses.keys() - named))
    for (verb, text), ranks in alike.items():
        doing = _say(verb, text, max(table.waited(ranks).values(), default=0.0), len(ranks))
        lines.append(f"{plural('Rank', len(ranks))} {format_ranks(ranks)}: {doing}.")
    return CollectiveError(
        summary or _summary(table),
        *shorten(lines, MAX_LINES, "."),
        fix=f"{_fix(table, fault)}; then {REBUILD_ADVICE}.",
        missing_ranks=_missing(table, lags, states),
        behind=tuple(lags),
        kind=fault.kind,
        root=fault.root,
    )


def _summary(table: Table) -> str:
    """Return the first line of a report of ranks that hang without an error of their own."""
    waiting = sorted(table.waits)
    if not waiting:
        return "ranks begin no collective."
    waits = "waits" if len(waiting) == 1 else "wait"
    return f"{plural('rank', len(waiting))} {format_ranks(waiting)} {waits} for others."


def _rank_line(table: Table, rank: int, lags: Mapping[int, Lag]) -> str:
    """Return the line of a rank that is behind, has left, or has not answered."""
    name = f"rank {rank} ({describe_coordinate(table.layout, rank)})"
    count = f"has begun {lags[rank]}" if rank in lags else ""
    if rank in table.silent:
        state, text = table.silent[rank]
        kind = "Busy" if state is RankState.BUSY else "Silent"
        return f"{kind}: {name}: {text}; {STATES[state]}{f'; it {count}' * bool(count)}."
    status = table.statuses[rank]
    if status.has_left and not count:
        return f"Left: {name} {status}."
    doing = _say(*_describe(table, rank), status.waited, 1)
    return f"Behind: {name} {count}; {doing}." if count else f"Busy: {name}: {doing}."


def _root_lines(table: Table, fault: HangVerdict) -> list[str]:
    """Return the lines of a root that lies in calls, and not in a rank alone."""
    if fault.kind == "late":
        return [_late_line(table, fault, rank) for rank in fault.root]
    if fault.kind not in ("mismatch", "order", "message", "wedge"):
        return []
    calls_of = sorted(fault.calls.items())
    alike = group_by((_describe_wait(table, rank, wait), rank) for rank, wait in calls_of)
    odd_first = sorted(alike.items(), key=lambda item: fault.root[:1] != tuple(item[1][:1]))
    calls = "; ".join(
        f"{plural('rank', len(ranks))} {format_ranks(ranks)} in {text}" for text, ranks in odd_first
    )
    ends = {
        "mismatch": "these are one call of the group, and differ",
        "order": "the groups are used in opposite orders, so these ranks wait for each other",
        "message": f"the other end does not come{_missing_ends(fault)}",
        "wedge": "all have begun it, with equal sizes, and it completes on none",
    }
    return [f"{fault.kind.capitalize()}: {calls}: {ends[fault.kind]}."]


def _missing_ends(fault: HangVerdict) -> str:
    """Return the messages that no rank has begun, as text."""
    ends = [
        f"rank {wait.call.peer} begins no {'receive from' if wait.call.is_send else 'send to'} "
        f"rank {rank}"
        for rank, wait in sorted(fault.calls.items())
        if wait.call.is_message and wait.call.peer in fault.root
    ]
    return f": {', '.join(shorten(ends, MAX_LINES))}" if ends else ""


def _late_line(table: Table, fault: HangVerdict, rank: int) -> str:
    """Return the line of a rank that came late, but before the report."""
    group = fault.calls[rank].group
    waited = table.waited(r for r, wait in fault.calls.items() if wait.group == group)
    name = f"rank {rank} ({describe_coordinate(table.layout, rank)})"
    seconds = max(waited.values()) - waited[rank]
    operation = _operation(table, rank, fault.calls[rank])
    return f"Late: {name} began {operation} {seconds:.1f} s after the first."


def _describe(table: Table, rank: int) -> tuple[str, str]:
    """Return whether a rank waits, and the text on what it does."""
    status, waits = table.statuses[rank], table.waits.get(rank)
    if waits is None or rank in table.silent or not (waits or status.function):
        return "", str(status)
    if waits:
        return "wait", _describe_wait(table, rank, waits[0])
    return "wait", f"{status.operation}, {status.line or 'no line is known'}"


def _say(verb: str, text: str, seconds: float, number: int) -> str:
    """Return the text on what so many ranks do, and for how long at most."""
    time = f" {seconds:.1f} s" * (seconds > 0)
    return f"{verb}{'s' * (number == 1)}{time} in {text}" if verb else text


def _describe_wait(table: Table, rank: int, wait: Wait) -> str:
    """Return a call in which a rank waits, with its sizes and its line."""
    status, call = table.statuses.get(rank), wait.call
    parts = [_operation(table, rank, wait), call.content]
    line = call.line or (status.line if status is not None else "")
    is_begun_there = bool(call.line) or (status is not None and status.sees_waits)
    parts += [f"{'begun' if is_begun_there else 'now'} at {line}" if line else "no line is known"]
    return ", ".join(filter(None, parts))


def _operation(table: Table, rank: int, wait: Wait) -> str:
    """Return the operation of a call with its group, ``"send to rank 3 over pp"``."""
    call, status = wait.call, table.statuses.get(rank)
    name = call.name or (status.function if status is not None else "") or "a collective"
    peer = f" {'to' if call.is_send else 'from'} rank {call.peer}" * (call.peer >= 0)
    peer += f" with root {call.root}" * (call.root >= 0)
    return f"{name}{peer} over {wait.group.axes}"


def _fix(table: Table, fault: HangVerdict) -> str:
    """Return what to do about the root, or where to look."""
    ranks = f"{plural('rank', len(fault.root))} {format_ranks(fault.root)}"
    operations = [*dict.fromkeys(_operation(table, r, w) for r, w in sorted(fault.calls.items()))]
    if fault.kind == "mismatch":
        return _fix_mismatch(table, fault)
    if fault.kind == "order":
        return f"make {' and '.join(operations[:2])} in one order on all ranks"
    if fault.kind == "message" and len(fault.root) > 1:
        return f"give each send one receive, in one order, on {ranks}"
    if fault.kind == "wedge":
        on_nccl = any(not table.statuses[r].sees_waits for r in fault.root if r in table.statuses)
        log = "run with NCCL_DEBUG=INFO, and " if on_nccl else ""
        return f"{log}look at the network and the devices of {ranks}: the calls are equal"
    if fault.root:
        return f"look at {ranks} first"
    places = Counter(status.line for status in table.statuses.values() if status.line)
    if len(places) > 1:  # the ranks are in different collectives of a group
        return f"do all ranks reach {min(places, key=places.__getitem__)}? Look there"
    return "look at the logs of all ranks"


def _fix_mismatch(table: Table, fault: HangVerdict) -> str:
    """Return which part of a call to make equal, with its values and their ranks."""
    texts = [
        f"{_describe_part(fault.calls[ranks[0]].call, fault.part)} on {_place(table, ranks)}"
        for ranks in fault.alike
    ]
    values, wait = ", ".join(shorten(texts, MAX_LINES)), fault.calls[fault.alike[0][0]]
    name = "the message" if wait.call.is_message else wait.call.name or "the collective"
    if fault.part == "operation":
        return f"make one call over {wait.group.axes}: {values}"
    return f"make the {fault.part} of {name} over {wait.group.axes} equal: {values}"


def _describe_part(call: TracedCall, part: str) -> str:
    """Return one part of a call as text."""
    sizes = ", ".join(str([*sizes]) for sizes, _ in call.tensors)
    dtypes = ", ".join(call.dtypes)
    texts = {"operation": call.name, "sizes": sizes, "dtype": dtypes, "tensors": call.content}
    return (texts | {"tag": f"{call.tag}", "root": f"rank {call.root}"})[part]


def _place(table: Table, ranks: Sequence[int]) -> str:
    """Return ranks as text, a single one with its coordinate."""
    text = f"{plural('rank', len(ranks))} {format_ranks(sorted(ranks))}"
    return f"{text} ({describe_coordinate(table.layout, ranks[0])})" if len(ranks) == 1 else text


def _missing(table: Table, lags: Iterable[int], states: Mapping[int, RankState]) -> tuple[int, ...]:
    """Return the ranks that have ended or are stopped; else those of unknown state, or the busy.

    A busy rank may only be slow: it is left out if a rank that has answered explains the failure.
    """
    certain = [rank for rank, state in states.items() if state.is_certain]
    unknown = [rank for rank, state in states.items() if state is RankState.UNKNOWN]
    is_explained = bool(_causes(table.statuses, lags))
    is_explained |= any(table.where[r] is not Where.WAITS for r in lags if r not in states)
    return tuple(sorted(certain or unknown or ([] if is_explained else states)))


def _causes(statuses: Mapping[int, RankStatus], late: Iterable[int]) -> list[int]:
    """Return the ranks that left and explain a failure.

    A rank that has posted its counts, and is behind no peer, explains nothing.
    """
    left = [rank for rank in sorted(statuses) if statuses[rank].has_left]
    return [r for r in left if statuses[r].error or r in late or not statuses[r].begun]
