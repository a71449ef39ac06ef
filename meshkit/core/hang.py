"""The state of a rank that does not answer: how certain it is that the rank is the reason.

The error of a collective that failed or hangs, from the status of each rank.

Ranks of one group begin the same collectives in the same order. A rank that has begun fewer than
its peers is behind, and they wait for it. The rank behind may wait in another group. The first
suspect is behind and in no collective, or does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from .errors import CollectiveError
from .layout import Layout
from .text import format_ranks, plural, shorten


class Life(IntEnum):
    """The state of a rank that does not answer, from the most certain cause of a hang on."""

    ENDED = 0
    STOPPED = 1
    UNKNOWN = 2  # it gives no sign of life here
    BUSY = 3  # its process runs

    @property
    def is_certain(self) -> bool:
        """Whether such a rank cannot answer."""
        return self <= Life.STOPPED


def most_certain(lives: Mapping[int, Life]) -> tuple[int, ...]:
    """Return the ranks that have ended or are stopped; else those without a sign of life, or all.

    A rank whose process runs may only be slow, so it never stands beside one that cannot answer.
    """
    certain = [rank for rank, life in lives.items() if life.is_certain]
    unknown = [rank for rank, life in lives.items() if life is Life.UNKNOWN]
    return tuple(certain or unknown or lives)


# An axis may use the default group, so it is created again too.
REBUILD_ADVICE = "mesh.close(), meshkit.shutdown(), and build again on all ranks"
MAX_LINES = 8  # lines about single ranks, or about ranks with equal status


@dataclass(frozen=True)
class RankStatus:
    """The collectives and the line of code that a rank is in."""

    rank: int
    begun: Mapping[str, int] = field(default_factory=dict)  # axes ("dp sp") to collectives
    operation: str = ""  # current collective, ``"all_reduce over dp"``; empty outside
    line: str = ""  # of user code, ``"train.py:88 (step)"``
    error: str = ""  # error with which it left the guard, other than a collective's; else empty
    ended_by: str = ""  # call by which it stopped using the mesh, ``"mesh.close()"``; else empty

    def __str__(self) -> str:
        if self.error:
            return f"left with {self.error}"
        if self.ended_by:
            return f"has called {self.ended_by}"
        return f"in {self.operation or 'no collective'}, {self.line or 'no line is known'}"

    @property
    def has_left(self) -> bool:
        """Whether it takes part in no more collectives."""
        return bool(self.error or self.ended_by)


@dataclass(frozen=True)
class Silence:
    """A rank that does not answer: the state of its process, and the known facts as text."""

    life: Life
    facts: str


@dataclass(frozen=True)
class Lag:
    """A rank that has begun fewer collectives over some axes than a peer of its group."""

    axes: str
    begun: int
    most: int


def lagging_ranks(layout: Layout, statuses: Mapping[int, RankStatus]) -> dict[int, Lag]:
    """Return the ranks that have begun fewer collectives than a peer, with their largest lag."""
    lags: dict[int, Lag] = {}
    for axes in dict.fromkeys(name for status in statuses.values() for name in status.begun):
        for row in layout.groups(*axes.split()).tolist():
            begun = {r: statuses[r].begun[axes] for r in row if axes in _begun(statuses, r)}
            most = max(begun.values(), default=0)
            for rank, count in begun.items():
                before = lags.get(rank, Lag(axes, 0, 0))
                if most - count > before.most - before.begun:
                    lags[rank] = Lag(axes, count, most)
    return dict(sorted(lags.items()))


def hang_error(
    summary: str,
    layout: Layout,
    statuses: Mapping[int, RankStatus],
    silent: Mapping[int, Silence],
    format_coordinate: Callable[[int], str],
) -> CollectiveError:
    """Return the error that all ranks raise."""
    late = lagging_ranks(layout, statuses)
    first = _first_suspects(layout, statuses, late, silent)
    left = [rank for rank in sorted(statuses) if statuses[rank].has_left and rank not in late]
    lives = {rank: silence.life for rank, silence in silent.items()}
    order = sorted([*late, *left, *silent], key=lambda r: (r not in first, lives.get(r, -1), r))
    lines = [
        _format_silence(rank, silent[rank], format_coordinate)
        if rank in silent
        else _format_status(rank, late.get(rank), statuses[rank], format_coordinate)
        for rank in order
    ]
    lines += _format_others(statuses, {*late, *left})
    ranks = f"{plural('rank', len(first))} {format_ranks(first)} first"
    target = ranks if first else "the logs of all ranks"
    return CollectiveError(
        summary,
        *shorten(lines, MAX_LINES, "."),
        fix=f"look at {target}; then {REBUILD_ADVICE}.",
        missing_ranks=_missing(statuses, late, silent),
        behind=tuple(late),
    )


def _missing(
    statuses: Mapping[int, RankStatus], late: Iterable[int], silent: Mapping[int, Silence]
) -> tuple[int, ...]:
    """Return the silent ranks that are the reason, as far as known."""
    lives = {rank: silence.life for rank, silence in silent.items()}
    is_explained = any(status.has_left for status in statuses.values())
    is_explained |= any(not statuses[rank].operation for rank in late)
    if is_explained:  # by a rank that has answered: a rank whose process runs is only busy
        lives = {rank: life for rank, life in lives.items() if life is not Life.BUSY}
    return tuple(sorted(most_certain(lives)))


def _begun(statuses: Mapping[int, RankStatus], rank: int) -> Mapping[str, int]:
    return statuses[rank].begun if rank in statuses else {}


def _format_silence(rank: int, silence: Silence, format_coordinate: Callable[[int], str]) -> str:
    kind = "Busy" if silence.life is Life.BUSY else "Silent"
    return f"{kind}: rank {rank} ({format_coordinate(rank)}): {silence.facts}."


def _format_status(
    rank: int, late: Lag | None, status: RankStatus, format_coordinate: Callable[[int], str]
) -> str:
    if late is None:
        return f"Left: rank {rank} ({format_coordinate(rank)}) {status}."
    count = f"has begun {late.begun} of {late.most} collectives over {late.axes}"
    return f"Behind: rank {rank} ({format_coordinate(rank)}) {count}; {status}."


def _format_others(statuses: Mapping[int, RankStatus], late: Iterable[int]) -> list[str]:
    """Return a line for each status that ranks have which are not behind."""
    alike: dict[str, list[int]] = {}
    for rank in sorted(statuses.keys() - set(late)):
        alike.setdefault(str(statuses[rank]), []).append(rank)
    return [
        f"{plural('Rank', len(ranks))} {format_ranks(ranks)}: {status}."
        for status, ranks in alike.items()
    ]


def _first_suspects(
    layout: Layout,
    statuses: Mapping[int, RankStatus],
    late: Iterable[int],
    silent: Mapping[int, Silence],
) -> list[int]:
    """Return the ranks that left, or have ended, or else that wait for none, or are silent."""
    left = [rank for rank in sorted(statuses) if statuses[rank].has_left]
    certain = [rank for rank in sorted(silent) if silent[rank].life.is_certain]
    idle = [rank for rank in late if not statuses[rank].operation and not statuses[rank].has_left]
    unknown = [rank for rank in silent if silent[rank].life is Life.UNKNOWN]
    awaited = _awaited_ranks(layout, statuses)
    kinds = [certain, sorted([*idle, *unknown]), sorted(silent)]
    waits_for = [[rank for rank in ranks if rank in awaited] for ranks in kinds]
    return next((ranks for ranks in [left, *waits_for, *kinds] if ranks), list(late))


def _awaited_ranks(layout: Layout, statuses: Mapping[int, RankStatus]) -> set[int]:
    """Return the ranks of all groups in which a rank is in a collective."""
    names = {rank: status.operation.partition(" over ")[2] for rank, status in statuses.items()}
    known = {rank: axes for rank, axes in names.items() if axes in statuses[rank].begun}
    return {int(p) for rank, axes in known.items() for p in layout.peers(rank, *axes.split())}
