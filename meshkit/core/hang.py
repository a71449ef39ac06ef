"""Why a collective did not come through, out of what each rank says of itself.

Ranks of one group begin the same collectives in the same order, so a rank that has begun fewer than
its peers is behind: they wait for it. It may itself wait for another one, in another group; the one
to look at first is behind and in no collective, or does not answer at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .call import Call
from .errors import CollectiveError, told
from .layout import Layout
from .runs import format_ranks

# The default group may stand for an axis, so it is made again too.
AGAIN = "mesh.close(), meshkit.shutdown(), and build again on all ranks"
SHOWN = 8  # ranks, or sets of ranks, told one by one


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        rank: which.
        begun: axes, ``"dp sp"``, to the number of collectives begun on its group over them.
        operation: the collective it is in, ``"all_reduce over dp"``; empty where in none.
        line: the line of its own code, ``"train.py:88 (step)"``.
        error: with what it left the guard, where it did, unless that was a collective's error.
    """

    rank: int
    begun: Mapping[str, int] = field(default_factory=dict)
    operation: str = ""
    line: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"left with {self.error}"
        return f"in {self.operation or 'no collective'}, {self.line or 'no line is known'}"


@dataclass(frozen=True)
class Behind:
    """A rank that has begun fewer collectives over some axes than a peer of its group."""

    axes: str
    begun: int
    most: int


def behind(layout: Layout, places: Mapping[int, Place]) -> dict[int, Behind]:
    """The ranks that have begun fewer collectives than a peer, each with the group where most so.

    O(ranks x groups). Ranks that are not among ``places`` are passed over.

    Args:
        layout: the grid.
        places: rank to its place.

    Example:
        >>> at = {rank: Place(rank, {"dp": 7 + (rank != 2)}) for rank in range(4)}
        >>> behind(Layout(dp=2, sp=2), at)
        {2: Behind(axes='dp', begun=7, most=8)}
    """
    found: dict[int, Behind] = {}
    for axes in dict.fromkeys(name for one in places.values() for name in one.begun):
        for row in layout.groups(*axes.split()).tolist():
            begun = {r: places[r].begun[axes] for r in row if axes in _begun(places, r)}
            most = max(begun.values(), default=0)
            for rank, count in begun.items():
                before = found.get(rank, Behind(axes, 0, 0))
                if most - count > before.most - before.begun:
                    found[rank] = Behind(axes, count, most)
    return dict(sorted(found.items()))


def hang(
    call: Call,
    error: str,
    layout: Layout,
    places: Mapping[int, Place],
    silent: Mapping[int, str],
    name: Callable[[int], str],
) -> CollectiveError:
    """The error that all ranks raise.

    Args:
        call: the call to quote.
        error: which collective failed, where, and how, in one line.
        layout: the grid.
        places: the ranks that answered.
        silent: the ranks that did not, with what is known of each.
        name: a rank's coordinate in words.
    """
    late = behind(layout, places)
    first = _first(layout, places, late, silent)
    order = sorted([*late, *silent], key=lambda rank: (rank not in first, rank in silent))
    lines = [
        f"Silent: rank {rank} ({name(rank)}): {silent[rank]}."
        if rank in silent
        else _late(rank, late[rank], places[rank], name)
        for rank in order
    ]
    lines += _others(places, late)
    looks = (
        f"look at rank{'' if len(first) == 1 else 's'} {format_ranks(first)} first" if first else ""
    )
    text = told(
        f"{call}: {error}",
        *_cut(lines),
        fix=f"{looks or 'look at the logs of all ranks'}; then {AGAIN}.",
    )
    return CollectiveError(text, missing_ranks=tuple(silent), behind=tuple(late))


def _begun(places: Mapping[int, Place], rank: int) -> Mapping[str, int]:
    return places[rank].begun if rank in places else {}


def _late(rank: int, late: Behind, place: Place, name: Callable[[int], str]) -> str:
    count = f"has begun {late.begun} of {late.most} collectives over {late.axes}"
    return f"Behind: rank {rank} ({name(rank)}) {count}; {place}."


def _others(places: Mapping[int, Place], late: Iterable[int]) -> list[str]:
    """The ranks that are not behind, those alike together."""
    alike: dict[str, list[int]] = {}
    for rank in sorted(places.keys() - set(late)):
        alike.setdefault(str(places[rank]), []).append(rank)
    return [
        f"Rank{'' if len(r) == 1 else 's'} {format_ranks(r)}: {place}."
        for place, r in alike.items()
    ]


def _first(
    layout: Layout, places: Mapping[int, Place], late: Iterable[int], silent: Mapping[int, str]
) -> list[int]:
    """Where to look: who left, who is behind and waits for nobody, who does not answer."""
    left = [rank for rank in sorted(places) if places[rank].error]
    idle = [rank for rank in late if not places[rank].operation and not places[rank].error]
    awaited = _awaited(layout, places)
    reasons = sorted([*idle, *silent])
    return left or [r for r in reasons if r in awaited] or reasons or list(late)


def _awaited(layout: Layout, places: Mapping[int, Place]) -> set[int]:
    """The ranks of all groups in which a rank is in a collective."""
    names = {rank: one.operation.partition(" over ")[2] for rank, one in places.items()}
    known = {rank: axes for rank, axes in names.items() if axes in places[rank].begun}
    return {int(p) for rank, axes in known.items() for p in layout.peers(rank, *axes.split())}


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"and {more} more."]
