"""Maps: rank to coordinate, coordinate to rank, all groups, for 8 to 1,048,576 ranks.

The grid is dp x sp=2 x tp=2. In bulk numpy is the floor, and the goal holds from ``BULK`` ranks on:
below that a call's own checks weigh more than the work. The other peers are asked up to
``PEERS_UP_TO`` ranks, where the goal for them holds too; beyond, a call of theirs takes ten
seconds. Both sides must give equal answers before anything is timed.

One question about one rank is compared with the same question on 8 ranks, and so is the memory of a
layout that has answered: neither may grow.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import meshkit

from .clock import in_turns
from .peers import EVERY, NUMPY, Groups, Peer, Place
from .rows import ITSELF, Goal, Row, compared, missing

SCALES = (8, 64, 1024, 65_536, 1_048_576)
QUICK = (8, 64)
BULK = PEERS_UP_TO = 65_536
FLOOR, PEERS, FLAT = Goal("ratio", "<=", 1.5), Goal("ratio", "<=", 0.01), Goal("ratio", "<=", 1.5)
ASKED = 16  # ranks that one question is asked about, spread over all
Ask = Callable[[], object]
Question = Callable[..., Any]  # of a peer


def run(quick: bool) -> list[Row]:
    """All rows, work by work; a peer that is not installed is named once a work."""
    scales, repeats = (QUICK, 3) if quick else (SCALES, 7)
    works = (bulk_rows, group_rows, coordinate_rows, rank_rows, place_rows)
    found = [row for work in works for ranks in scales for row in work(ranks, repeats)]
    return [*named_once(found), *flat_rows(scales, repeats), *memory_rows(scales)]


def named_once(rows: Sequence[Row]) -> list[Row]:
    """The rows, and of a peer that is not installed the one of the most ranks, once a work."""
    last = {(row.what, row.peer): row for row in rows if row.lacks is not None}
    return [row for row in rows if row.lacks is None or row is last[row.what, row.peer]]


def layout_of(ranks: int) -> meshkit.Layout:
    """The grid."""
    return meshkit.factor_world(ranks, sp=2, tp=2)


def asked(ranks: int) -> list[int]:
    """Some ranks, spread over all, the last among them."""
    return sorted({(ranks - 1) * part // (ASKED - 1) for part in range(ASKED)})


def same(what: str, peer: str, ours: object, theirs: object) -> None:
    """Refuse to time two sides that do not say the same.

    Raises:
        RuntimeError: where they differ.
    """
    if ours != theirs:
        raise RuntimeError(f"{what}: meshkit and {peer} differ: {ours!r} and {theirs!r}")


# --- in bulk -------------------------------------------------------------------------------------


def bulk_rows(ranks: int, repeats: int) -> list[Row]:
    """The coordinates of all ranks, beside ``unravel_index``."""
    what, layout, every = "rank -> coordinate, all ranks", layout_of(ranks), np.arange(ranks)
    shape = layout.shape
    theirs = np.stack(np.unravel_index(every, shape), axis=-1)
    same(what, "numpy", True, np.array_equal(layout.coordinates(every), theirs))
    times = in_turns(
        lambda: layout.coordinates(every), lambda: np.unravel_index(every, shape), repeats
    )
    return [compared(what, ranks, "numpy", "s", times, FLOOR if ranks >= BULK else None)]


def group_rows(ranks: int, repeats: int) -> list[Row]:
    """All groups of every axis, beside all who have them."""
    what, layout = "all groups of every axis", layout_of(ranks)

    def ours() -> Groups:
        return [layout.groups(axis) for axis in layout.axes]

    def row(peer: Peer, question: Question) -> Row:
        theirs = question(layout.sizes)
        same(what, peer.name, [rows_of(axis) for axis in ours()], [*map(rows_of, theirs())])
        return compared(
            what, ranks, peer.name, "s", in_turns(ours, theirs, repeats), goal(peer, ranks)
        )

    return [each for peer in EVERY for each in row_of_peer(what, ranks, peer, peer.groups, row)]


def rows_of(groups: ArrayLike) -> list[list[int]]:
    """Groups as lists, in one order."""
    return sorted(np.asarray(groups).tolist())


# --- one question --------------------------------------------------------------------------------


def coordinate_rows(ranks: int, repeats: int) -> list[Row]:
    """The coordinate of one rank, asked for ranks spread over all."""
    layout = layout_of(ranks)
    return question_rows(
        "rank -> coordinate, one rank",
        ranks,
        repeats,
        layout.coordinate,
        lambda peer: peer.coordinate,
        asked(ranks),
        lambda peer: None if peer is NUMPY else goal(peer, ranks),
    )


def rank_rows(ranks: int, repeats: int) -> list[Row]:
    """The rank at one coordinate."""
    layout = layout_of(ranks)
    return question_rows(
        "coordinate -> rank, one rank",
        ranks,
        repeats,
        lambda at: layout.rank(**at),
        lambda peer: peer.rank,
        [layout.coordinate(rank) for rank in asked(ranks)],
        lambda _: None,
    )


def question_rows(
    what: str,
    ranks: int,
    repeats: int,
    ours: Callable[[Any], object],
    of: Callable[[Peer], Any],
    about: Sequence[Any],
    aim: Callable[[Peer], Goal | None],
) -> list[Row]:
    """One question, asked in turns about several ranks, beside all who can answer it."""

    def row(peer: Peer, question: Question) -> Row:
        theirs = question(layout_of(ranks).sizes)
        same(what, peer.name, [*map(ours, about)], [*map(theirs, about)])
        times = in_turns(each(ours, about), each(theirs, about), repeats)
        return compared(what, ranks, peer.name, "s", times, aim(peer))

    return [each for peer in EVERY for each in row_of_peer(what, ranks, peer, of(peer), row)]


def each(question: Callable[[Any], object], about: Sequence[Any]) -> Ask:
    """The question about the next of several, over and over."""
    turn = cycle(about)
    return lambda: question(next(turn))


def place_rows(ranks: int, repeats: int) -> list[Row]:
    """From sizes to the coordinate and the groups of one rank, as a trainer starts."""
    what, sizes, rank = "sizes -> my coordinate and my groups", layout_of(ranks).sizes, ranks // 3

    def ours() -> Place:
        layout = meshkit.factor_world(ranks, sp=sizes["sp"], tp=sizes["tp"])
        return layout.coordinate(rank), [layout.peers(rank, axis).tolist() for axis in sizes]

    def row(peer: Peer, question: Question) -> Row:
        same(what, peer.name, ours(), question(sizes, rank))
        times = in_turns(ours, lambda: question(sizes, rank), repeats)
        return compared(what, ranks, peer.name, "s", times, goal(peer, ranks))

    return [each for peer in EVERY for each in row_of_peer(what, ranks, peer, peer.place, row)]


def row_of_peer(
    what: str, ranks: int, peer: Peer, question: Question | None, row: Callable[[Peer, Any], Row]
) -> list[Row]:
    """The row of a peer: none where it has no such question, or is too slow to be asked."""
    if question is None or (peer is not NUMPY and ranks > PEERS_UP_TO):
        return []
    if not peer.installed:
        return [missing(what, ranks, peer.name, "s", peer.package)]
    return [row(peer, question)]


def goal(peer: Peer, ranks: int) -> Goal | None:
    """What is aimed at beside a peer; nothing below the scale for which it was set."""
    if ranks < PEERS_UP_TO:
        return None
    return FLOOR if peer is NUMPY else PEERS


# --- what may not grow ---------------------------------------------------------------------------


def questions(layout: meshkit.Layout) -> dict[str, Ask]:
    """What one rank asks about itself."""
    rank, at = layout.num_ranks - 2, layout.coordinate(layout.num_ranks - 2)
    return {
        "layout.coordinate": lambda: layout.coordinate(rank),
        "layout.rank": lambda: layout.rank(**at),
        "layout.neighbor": lambda: layout.neighbor(rank, "dp"),
        "layout.peers, a group of 2": lambda: layout.peers(rank, "tp"),
    }


def flat_rows(scales: Sequence[int], repeats: int) -> list[Row]:
    """Each question on many ranks, beside the same on 8."""
    small = questions(layout_of(8))
    return [
        compared(what, ranks, ITSELF, "s", in_turns(ask, small[what], 3 * repeats), FLAT)
        for what in small
        for ranks in scales
        for ask in [questions(layout_of(ranks))[what]]
    ]


def memory_rows(scales: Sequence[int]) -> list[Row]:
    """What a layout holds once it has answered all of them, beside the same on 8 ranks."""
    held = {ranks: [float(memory(ranks))] for ranks in scales}
    what = "memory of a layout that has answered"
    return [compared(what, n, ITSELF, "B", (held[n], held[min(scales)]), FLAT) for n in scales]


def memory(ranks: int) -> int:
    """Bytes that Python and numpy hold more for a layout, less what is cached once for all."""
    for ask in questions(layout_of(ranks)).values():
        ask()
    tracemalloc.start()
    try:
        layout = layout_of(ranks)
        for ask in questions(layout).values():
            ask()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
