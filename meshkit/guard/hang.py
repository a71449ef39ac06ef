"""Decide why a collective failed or hangs, from the status of each rank.

Ranks of one group begin the same collectives in the same order. A rank that has begun fewer than
its peers is behind, and the peers wait for it. A rank behind may itself wait in another group. The
first suspect is a rank behind that is in no collective, or a rank that does not answer::

    rank 0    has begun 8 of 8 over dp    in all_reduce over dp     waits for rank 2
    rank 2    has begun 7 of 8 over dp    in all_gather over tp     behind, but waits for rank 3
    rank 3    has begun 4 of 5 over tp    in load_batch             behind: the cause
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import CollectiveError
from ..launch.disagreement import REBUILD_ADVICE, RankStatus, describe_coordinate
from ..launch.judges import Arrivals, Decision, Judge, RankState, Sighting
from ..layout.layout import Layout
from ..text import Ints, format_ranks, plural, shorten

MAX_LINES = 8  # lines about single ranks, or about ranks with equal status
STATES = {
    RankState.ENDED: "it has ended",
    RankState.STOPPED: "it is stopped",
    RankState.UNKNOWN: "not known here whether it runs",
    RankState.BUSY: "it runs, but does not answer",
}
NO_ANSWER = Sighting(RankState.UNKNOWN, "no answer")

LATE = 1.0  # seconds, at least, by which a rank is late, and half of the longest wait

# returns, for those of some ranks that left the guard before, the status that they posted
ReadExits = Callable[[Sequence[int]], Mapping[int, "RankStatus"]]
Rows = Mapping[str, Ints]  # axes of a view as text to its groups, (num_groups, group_size)
NO_ROWS: Rows = {}


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


def with_waits(
    layout: Layout, statuses: Mapping[int, RankStatus], rows: Rows = NO_ROWS
) -> dict[int, RankStatus]:
    """Return the statuses with the waits that ranks on nccl do not see.

    Such a rank waits in any operation that reads a result. If it has begun a collective that a peer
    has not, it may wait for that peer.
    """
    waits: dict[int, str] = {}
    for axes, begun in _counts(layout, statuses, rows):
        waits |= {rank: axes for rank, count in begun.items() if count > min(begun.values())}
    return {
        rank: replace(status, function=status.function or "a collective", group=waits[rank])
        if rank in waits and not (status.sees_waits or status.group or status.left_guard)
        else status
        for rank, status in statuses.items()
    }


def late_ranks(
    layout: Layout, statuses: Mapping[int, RankStatus], rows: Rows = NO_ROWS
) -> dict[int, float]:
    """Return ranks that began the collective of their group late, with the seconds they were late.

    They came back just before they reported, so that they are behind no more.
    """
    late: dict[int, float] = {}
    for axes in dict.fromkeys(status.group for status in statuses.values() if status.function):
        for row in _groups(layout, axes, rows):
            inside = [statuses[r] for r in row if r in statuses and statuses[r].group == axes]
            longest = max((status.waited for status in inside), default=0.0)
            least = max(LATE, longest / 2)
            late |= {s.rank: longest - s.waited for s in inside if longest - s.waited >= least}
    return dict(sorted(late.items()))


def _counts(
    layout: Layout, statuses: Mapping[int, RankStatus], rows: Rows
) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield the axes of each group, and how many collectives its ranks have begun there."""
    for axes in dict.fromkeys(name for status in statuses.values() for name in status.begun):
        for row in _groups(layout, axes, rows):
            known = [rank for rank in row if rank in statuses and axes in statuses[rank].begun]
            yield axes, {rank: statuses[rank].begun[axes] for rank in known}


def _groups(layout: Layout, axes: str, rows: Rows) -> list[list[int]]:
    """Return the groups over some axes of the mesh or of a view; none if they are unknown."""
    names = axes.split()
    known = bool(names) and {*names} <= {*layout.axes}
    groups: list[list[int]] = (
        rows[axes].tolist() if axes in rows else layout.groups(names).tolist() if known else []
    )
    return groups


def who_is_behind(
    layout: Layout, summary: str, read_exits: ReadExits, *, known: float, rows: Rows = NO_ROWS
) -> Judge:
    """Return the judge of a roll call, whose decision is the report of all ranks.

    Without a summary a hang is only suspected: the decision holds a report if a rank is behind or
    silent.

    Args:
        layout: the ranks of the mesh.
        summary: the first line of the report.
        read_exits: returns the status of those of some ranks that left the guard before.
        known: seconds for the answers if a rank has left that explains the failure.
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
        report = hang_error(summary, layout, statuses, silent, rows)
        is_report = summary or report.behind or report.missing_ranks
        return Decision(report if is_report else None)

    return judge


def hang_error(
    summary: str,
    layout: Layout,
    statuses: Mapping[int, RankStatus],
    silent: Mapping[int, Sighting],
    rows: Rows = NO_ROWS,
) -> CollectiveError:
    """Return the error that all ranks raise."""
    statuses = with_waits(layout, statuses, rows)
    late = lagging_ranks(layout, statuses, rows)
    first = _first_suspects(layout, statuses, late, silent, rows)
    left = [rank for rank in sorted(statuses) if statuses[rank].has_left and rank not in late]
    states = {rank: silence.state for rank, silence in silent.items()}
    lines = []
    for rank in sorted(
        {*late, *left, *silent}, key=lambda r: (r not in first, states.get(r, -1), r)
    ):
        name = f"rank {rank} ({describe_coordinate(layout, rank)})"
        count = f"has begun {late[rank]}" if rank in late else ""
        if rank in silent:
            kind = "Busy" if states[rank] is RankState.BUSY else "Silent"
            more = f"; it {count}" * bool(count)
            lines.append(f"{kind}: {name}: {silent[rank].text}; {STATES[states[rank]]}{more}.")
        elif rank in left:
            lines.append(f"Left: {name} {statuses[rank]}.")
        else:
            lines.append(f"Behind: {name} {count}; {statuses[rank]}.")
    slow = {} if first else late_ranks(layout, statuses, rows)
    lines += [
        f"Late: rank {rank} ({describe_coordinate(layout, rank)}) began {statuses[rank].operation} "
        f"{seconds:.1f} s after the first."
        for rank, seconds in slow.items()
    ]
    first = first or [*slow]
    alike: dict[str, list[int]] = {}
    for rank in sorted(statuses.keys() - {*late, *left, *silent}):
        alike.setdefault(str(statuses[rank]), []).append(rank)
    lines += [
        f"{plural('Rank', len(ranks))} {format_ranks(ranks)}: {status}."
        for status, ranks in alike.items()
    ]
    fix = f"look at {plural('rank', len(first))} {format_ranks(first)} first"
    places = Counter(status.line for status in statuses.values() if status.line)
    if not first and len(places) > 1:  # the ranks are in different collectives of a group
        fix = f"do all ranks reach {min(places, key=places.__getitem__)}? Look there"
    elif not first:
        fix = "look at the logs of all ranks"
    return CollectiveError(
        summary,
        *shorten(lines, MAX_LINES, "."),
        fix=f"{fix}; then {REBUILD_ADVICE}.",
        missing_ranks=_missing(statuses, late, states),
        behind=tuple(late),
    )


def _missing(
    statuses: Mapping[int, RankStatus], late: Iterable[int], states: Mapping[int, RankState]
) -> tuple[int, ...]:
    """Return the ranks that have ended or are stopped; else those of unknown state, or the busy.

    A busy rank may only be slow: it is left out if a rank that has answered explains the failure.
    """
    certain = [rank for rank, state in states.items() if state.is_certain]
    unknown = [rank for rank, state in states.items() if state is RankState.UNKNOWN]
    is_explained = bool(_causes(statuses, late))
    is_explained |= any(not statuses[rank].function for rank in late)
    return tuple(sorted(certain or unknown or ([] if is_explained else states)))


def _first_suspects(
    layout: Layout,
    statuses: Mapping[int, RankStatus],
    late: Iterable[int],
    silent: Mapping[int, Sighting],
    rows: Rows,
) -> list[int]:
    """Return the causes, or the ranks that have ended, or that wait for none, or are silent."""
    certain = [rank for rank in sorted(silent) if silent[rank].state.is_certain]
    idle = [rank for rank in late if not statuses[rank].function and not statuses[rank].has_left]
    unknown = [rank for rank in silent if silent[rank].state is RankState.UNKNOWN]
    waits = {status.group for status in statuses.values() if status.group in status.begun}
    awaited = {
        peer
        for axes in waits  # else a group of the user
        for row in _groups(layout, axes, rows)
        if any(rank in statuses and statuses[rank].group == axes for rank in row)
        for peer in row
    }
    kinds = [certain, sorted([*idle, *unknown]), sorted(silent)]
    waits_for = [[rank for rank in ranks if rank in awaited] for ranks in kinds]
    causes = _causes(statuses, late)
    return next((ranks for ranks in [causes, *waits_for, *kinds] if ranks), list(late))


def _causes(statuses: Mapping[int, RankStatus], late: Iterable[int]) -> list[int]:
    """Return the ranks that left and explain a failure.

    A rank that has posted its counts, and is behind no peer, explains nothing.
    """
    left = [rank for rank in sorted(statuses) if statuses[rank].has_left]
    return [r for r in left if statuses[r].error or r in late or not statuses[r].begun]
