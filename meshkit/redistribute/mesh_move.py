"""Plan a move between two meshes: which rank sends which part of a tensor to which rank.

A part that a rank of the target wants is cut at the parts of the source, into *pieces*::

    source  o/dp i, dp=2       target  o i/tp, tp=2          pieces
            0 0 0 0                    0 0 1 1               a a b b
            1 1 1 1                    0 0 1 1               c c d d

Ranks that hold copies of a part each send an equal share of it. Ranks that want copies of a part
each receive an equal share, a *block*, and then gather the other blocks among themselves. So each
element leaves the source once, and a rank receives what it lacks, and no more. Shares and blocks
are ranges of the elements of a part, piece after piece, so that ranks exchange few messages.

If one of the ranks that want copies holds a piece already, the others receive all of that piece.

A rank plans its own messages only. Two ranks exchange at most one, whose boxes both compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..layout.layout import Layout
from ..layout.sequence import SequencePlan
from .digits import CommonAxes, find_common_axes
from .move import Cut, Interval, Move, Region, make_move, num_elements, overlap, split
from .parts import Cell, End, columns_of, find_part, find_parts
from .pattern import AxisType, Dim, Mark, Pattern, Side, drop_axes
from .plan import dim_order, reorders
from .steps import Arrange, Rule, Step, part_shape

TO = "to."  # stands before the name of an axis of the target in the pattern of a move


class Message(NamedTuple):
    """The elements that two ranks exchange: boxes in the global tensor, one after the other."""

    peer: int  # the other rank
    boxes: tuple[Region, ...]


class Gather(NamedTuple):
    """The blocks that ranks which want copies gather among themselves, equal on all of them."""

    own: tuple[Region, ...]  # the boxes of this rank's block
    # the boxes of all blocks one after the other; or of each block, in the order of the group
    runs: tuple[tuple[Region, ...], ...]
    size: int  # the elements of a block; some blocks may have fewer


class Piece(NamedTuple):
    """The elements that one part of the source and one part of the target share.

    The pieces of a part are sent one after the other, so each has a start in that order::

        part of the source    | piece 0 | piece 1       | piece 2 |
                              0         source_start of piece 1
    """

    box: Region
    size: int  # its elements
    cell: Cell  # the part of the source
    wanted_cell: Cell  # the part of the target
    source_start: int  # the elements of the source's part that are sent before it
    target_start: int  # the same in the target's part, counting only pieces that are gathered
    is_gathered: bool  # whether ranks that want copies receive a block each

    def wanted(self, chunk: int, chunks: int) -> Interval:
        """Return a chunk of the piece, in the target's part."""
        start, size = split(self.size, chunks, chunk)
        return Interval(self.target_start + start, size)


@dataclass(frozen=True)
class MeshMove:
    """A pattern between two meshes, with its sizes."""

    move: Move  # over the axes of both; those of the target have the prefix ``to.``
    source: End
    target: End

    @cached_property
    def is_disjoint(self) -> bool:
        """Whether no rank is in both meshes."""
        return are_disjoint(self.source.layout, self.target.layout)

    @cached_property
    def before(self) -> tuple[Step, ...]:
        """The steps from the local tensor of the source to its part, in the order of the move."""
        moved = reorders(self.move, back=False)
        shown = self.move.shown(0) if moved else self.move.source
        return (Arrange(Rule(part_shape, (shown,))), *moved)

    @cached_property
    def after(self) -> tuple[Step, ...]:
        """The steps from a part of the target to its local tensor."""
        shown, entries = self.move.shown(1), self.move.right_entries
        ordered = Arrange(Rule(part_shape, (shown,)), dim_order(entries))
        last = Arrange(Rule(part_shape, (shown, entries)))
        return (*reorders(self.move, back=True), ordered, last)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank over the axes of the move; 0 outside a mesh."""
        ends = ("", self.source.layout), (TO, self.target.layout)
        result: dict[str, int] = {}
        for prefix, layout in ends:
            own = layout.coordinate(rank) if rank in layout else dict.fromkeys(layout.axes, 0)
            result.update({f"{prefix}{axis}": index for axis, index in own.items()})
        return result

    def count_chunks(self, limit: int) -> int:
        """Return the number of equal parts in which pieces travel, of at most a limit a rank."""
        return max(1, -(-max(self.source.largest, self.target.largest) // limit))

    def sends(self, rank: int, chunk: int = 0, chunks: int = 1) -> list[Message]:
        """Return the messages that a rank sends. Cost: O(its messages)."""
        place = self.source.place(rank)
        if place is None:
            return []
        region = self.source.region(place.cell)
        share = split(num_elements(region), self.source.num_copies, place.copy)
        messages = []
        for wanted_cell, _ in self.target.cells(_rows(region, share)):
            piece = self._piece(place.cell, wanted_cell)
            held = Interval(share.start - piece.source_start, share.size)
            peers = self.target.ranks[wanted_cell]
            if piece.is_gathered:
                total, block = self._blocks(wanted_cell)
                low, high = _clip(held, Interval(0, piece.size))
                first, last = ((piece.target_start + end) // block for end in (low, high - 1))
                for index in range(first, last + 1):
                    wanted = _block(total, block, index, chunk, chunks)
                    boxes = _part_of(piece, held, wanted)
                    messages += [Message(int(peers[index]), boxes)] * bool(boxes)
                continue
            if boxes := _part_of(piece, held, piece.wanted(chunk, chunks)):
                lacking = (int(peer) for peer in peers if not self._holds(int(peer), place.cell))
                messages += [Message(peer, boxes) for peer in lacking]
        return messages

    def receives(self, rank: int, chunk: int = 0, chunks: int = 1) -> list[Message]:
        """Return the messages that a rank receives. Cost: O(its messages)."""
        place = self.target.place(rank)
        if place is None:
            return []
        total, block = self._blocks(place.cell)
        own = _block(total, block, place.copy, chunk, chunks)
        messages = []
        for piece in self._pieces(place.cell, own):
            if self._holds(rank, piece.cell):
                continue
            wanted = own if piece.is_gathered else piece.wanted(chunk, chunks)
            low, high = _clip(wanted, Interval(piece.target_start, piece.size))
            if low >= high:
                continue
            held, copies = num_elements(self.source.region(piece.cell)), self.source.num_copies
            ends = (piece.source_start - piece.target_start + end for end in (low, high - 1))
            first, last = (find_part(held, copies, end) for end in ends)
            for copy in range(first, last + 1):
                share = split(held, copies, copy)
                share = share._replace(start=share.start - piece.source_start)
                boxes = _part_of(piece, share, wanted)
                messages.append(Message(int(self.source.ranks[piece.cell][copy]), boxes))
        return messages

    def gather(self, rank: int, chunk: int = 0, chunks: int = 1) -> Gather | None:
        """Return the blocks that a rank gathers with those that want the same part, or None."""
        place = self.target.place(rank)
        if place is None or self.target.num_copies == 1:
            return None
        total, block = self._blocks(place.cell)
        size = _block(block, block, 0, chunk, chunks).size
        if not size:
            return None
        own = self._boxes(place.cell, _block(total, block, place.copy, chunk, chunks))
        if chunks == 1:  # the blocks are consecutive
            return Gather(own, (self._boxes(place.cell, Interval(0, total)),), size)
        copies = range(self.target.num_copies)
        ranges = (_block(total, block, copy, chunk, chunks) for copy in copies)
        return Gather(own, tuple(self._boxes(place.cell, part) for part in ranges), size)

    def _boxes(self, wanted_cell: Cell, wanted: Interval) -> tuple[Region, ...]:
        """Return the boxes in a range of the pieces of a part that are gathered.

        Cost: O(1) if the pieces are its rows in order, else O(pieces).
        """
        if self._is_in_rows(wanted_cell):
            region, start = self.target.region(wanted_cell), wanted.start
            return boxes_of(region, start, start + wanted.size)
        pieces = (piece for piece in self._pieces(wanted_cell, wanted) if piece.is_gathered)
        parts = (_part_of(piece, Interval(0, piece.size), wanted) for piece in pieces)
        return tuple(box for boxes in parts for box in boxes)

    def keeps(self, rank: int) -> Region | None:
        """Return the region that a rank holds before and wants after, or None."""
        held, wanted = self.source.place(rank), self.target.place(rank)
        if held is None or wanted is None:
            return None
        region = overlap(self.source.region(held.cell), self.target.region(wanted.cell))
        return region if num_elements(region) else None

    def received(self, rank: int) -> int:
        """Return the elements that a rank lacks, and so receives."""
        place = self.target.place(rank)
        if place is None:
            return 0
        kept = self.keeps(rank)
        whole = num_elements(self.target.region(place.cell))
        return int(whole - (0 if kept is None else num_elements(kept)))

    def busiest(self) -> int:
        """Return the rank that receives most. Cost: O(ranks of the target)."""
        layout, ranks = self.target.layout, self.target.ranks.ravel()
        wanted = self.target.cut.region(columns_of(layout, ranks))
        lacking = np.broadcast_to(num_elements(wanted), ranks.shape).copy()
        both = np.isin(ranks, self.source.ranks)
        if both.any():
            ends = self.target, self.source
            pair = (end.cut.region(columns_of(end.layout, ranks[both])) for end in ends)
            lacking[both] -= num_elements(overlap(*pair))
        return int(ranks[np.argmax(lacking)])

    def sent(self, rank: int) -> int:
        """Return the elements that a rank sends before ranks gather copies."""
        return sum(int(num_elements(box)) for m in self.sends(rank) for box in m.boxes)

    def _pieces(self, wanted_cell: Cell, wanted: Interval) -> Iterator[Piece]:
        """Yield the pieces of a part of the target, at least those that overlap a range of it."""
        region = self.target.region(wanted_cell)
        rows = _rows(region, wanted) if self.is_disjoint else region
        for cell, _ in self.source.cells(rows):
            yield self._piece(cell, wanted_cell)

    def _is_in_rows(self, wanted_cell: Cell) -> bool:
        """Return whether the pieces of a part are its rows in order: only those are cut."""
        cut, region = self.source.cut, self.target.region(wanted_cell)
        rule = cut.is_dtensor
        counts = [[dict(cut.axes)[axis] for axis in axes] for axes in cut.lists]
        inner = zip(cut.sizes[1:], counts[1:], region[1:], strict=True)
        return self.is_disjoint and all(
            len([*itertools.islice(find_parts(Interval(0, n), parts, wanted, rule), 2)]) == 1
            for n, parts, wanted in inner
        )

    def _piece(self, cell: Cell, wanted_cell: Cell) -> Piece:
        """Return the piece of a part of the source in a part of the target."""
        region, wanted = self.source.region(cell), self.target.region(wanted_cell)
        box = overlap(region, wanted)
        shared = box, int(num_elements(box)), cell, wanted_cell, _elements_before(box, region)
        if self.is_disjoint:
            return Piece(*shared, _elements_before(box, wanted), is_gathered=True)
        starts = self._gathered(wanted_cell)[0]
        return Piece(*shared, starts.get(cell, 0), cell in starts)

    def _blocks(self, wanted_cell: Cell) -> tuple[int, int]:
        """Return the elements of a part of the target that are gathered, and those of a block."""
        if self.is_disjoint:
            total = int(num_elements(self.target.region(wanted_cell)))
        else:
            total = self._gathered(wanted_cell)[1]
        return total, -(-total // self.target.num_copies)

    def _gathered(self, wanted_cell: Cell) -> tuple[dict[Cell, int], int]:
        """Return where each piece begins that ranks gather, and the elements of all of them."""
        if wanted_cell not in self._known:
            wanted, starts, total = self.target.region(wanted_cell), {}, 0
            for cell, region in self.source.cells(wanted):
                if not np.isin(self.target.ranks[wanted_cell], self.source.ranks[cell]).any():
                    starts[cell] = total
                    total += int(num_elements(overlap(region, wanted)))
            self._known[wanted_cell] = starts, total
        return self._known[wanted_cell]

    @cached_property
    def _known(self) -> dict[Cell, tuple[dict[Cell, int], int]]:
        return {}

    def _holds(self, rank: int, cell: Cell) -> bool:
        """Return whether a rank holds a part of the source."""
        place = None if self.is_disjoint else self.source.place(rank)
        return place is not None and place.cell == cell


@lru_cache(maxsize=64)
def are_disjoint(first: Layout, second: Layout) -> bool:
    """Return whether no rank is in both layouts."""
    return not np.intersect1d(first.grid, second.grid).size


def find_views(source: Layout, target: Layout) -> CommonAxes | None:
    """Return the common factors of two layouts that are views of equal ranks in equal order."""
    if source.rank_positions != target.rank_positions:
        return None
    return find_common_axes(source.sizes, target.sizes)


def axes_of_both(source: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the axes of two meshes by name, those of the target with a prefix."""
    return {**source, **{f"{TO}{axis}": size for axis, size in target.items()}}


def join_axes(pattern: Pattern, source: Mapping[str, int], target: Mapping[str, int]) -> Pattern:
    """Return a pattern over the axes of both meshes, without those that a mesh does not have."""

    def rename(item: Dim | Mark) -> list[Dim | Mark]:
        if isinstance(item, Dim):
            return [Dim(item.name, tuple(f"{TO}{axis}" for axis in item.axes))]
        return [Mark(item.type, f"{TO}{item.axis}")]

    left = drop_axes(Pattern(pattern.left, pattern.left), source).left
    right = drop_axes(Pattern(pattern.right, pattern.right), target).right
    return Pattern(left, right.rewrite(rename))


def summed_axes(side: Side, layout: Layout) -> tuple[str, ...]:
    """Return the axes longer than 1 over which a side is a sum, in the order of the mesh."""
    sums = {axis for axis, kind in side.types.items() if kind.symbol == "+"}
    return tuple(axis for axis, size in layout.sizes.items() if size > 1 and axis in sums)


def sum_pattern(side: Side) -> Pattern:
    """Return the pattern that replaces the parts of sums by the sums."""

    def mark(item: Dim | Mark) -> list[Dim | Mark]:
        is_sum = isinstance(item, Mark) and item.type.symbol == "+"
        return [Mark(AxisType("="), item.axis)] if isinstance(item, Mark) and is_sum else [item]

    return Pattern(side, side.rewrite(mark))


def make_mesh_move(
    joined: Pattern,
    source: Layout,
    target: Layout,
    sizes: Mapping[str, int],
    plans: Mapping[str, SequencePlan] = {},
    are_dtensors: tuple[bool, bool] = (False, False),
) -> MeshMove:
    """Return the move of a pattern of :func:`join_axes`; sums on the left are done before it."""
    move = make_move(joined, axes_of_both(source.sizes, target.sizes), sizes, plans)
    move = replace(move, are_dtensors=are_dtensors)
    left = tuple(
        (axis, before.holder)
        for axis, (before, _) in move.type_of.items()
        if not axis.startswith(TO) and before.symbol == "@"
    )
    right = tuple(
        (axis.removeprefix(TO), after.holder)  # of a sum, the first rank has it, and others zeros
        for axis, (_, after) in move.type_of.items()
        if axis.startswith(TO) and after.symbol in "@+"
    )
    lists = tuple(tuple(axis.removeprefix(TO) for axis in axes) for axes in move.right)
    before = Cut(move.sizes, move.left, tuple(source.sizes.items()), are_dtensors[0])
    after = Cut(move.sizes, lists, tuple(target.sizes.items()), are_dtensors[1])
    return MeshMove(move, End(source, before, left), End(target, after, right))


# ------------------------------------------------------------------ boxes


def boxes_of(region: Region, start: int, end: int) -> tuple[Region, ...]:
    """Return the boxes with a range of the elements of a region, in row-major order."""
    return tuple(_boxes(region, start, end)) if start < end else ()


def _boxes(region: Region, start: int, end: int) -> Iterator[Region]:
    if not region:
        yield ()
        return
    outer, inner = region[0], region[1:]
    row = int(num_elements(inner))
    first, after = start // row, -(-end // row)
    if after - first == 1:  # a part of one row
        for box in _boxes(inner, start - first * row, end - first * row):
            yield (Interval(outer.start + first, 1), *box)
        return
    if start % row:
        yield from _boxes(region, start, (first + 1) * row)
        first += 1
    whole = end // row
    if first < whole:
        yield (Interval(outer.start + first, whole - first), *inner)
    if end % row:
        yield from _boxes(region, whole * row, end)


def _part_of(piece: Piece, held: Interval, wanted: Interval) -> tuple[Region, ...]:
    """Return the boxes of a piece in a range of the piece, and in a range of what is wanted."""
    low, high = _clip(held, Interval(0, piece.size))
    first, last = _clip(wanted, Interval(piece.target_start, piece.size))
    ends = max(low, first - piece.target_start), min(high, last - piece.target_start)
    return boxes_of(piece.box, *ends)


def _block(total: int, block: int, index: int, chunk: int, chunks: int) -> Interval:
    """Return a chunk of a block; the last blocks may have fewer elements."""
    start, size = split(block, chunks, chunk)
    start = min(index * block + start, total)
    return Interval(start, min(size, total - start))


def _clip(part: Interval, whole: Interval) -> tuple[int, int]:
    """Return the ends of what two ranges share; the second is not larger if it is nothing."""
    return max(part.start, whole.start), min(part.start + part.size, whole.start + whole.size)


def _rows(region: Region, part: Interval) -> Region:
    """Return the rows of a region that have a range of its elements, piece after piece."""
    if not region or not part.size:
        return region
    outer, inner = region[0], region[1:]
    row = int(num_elements(inner))
    first, after = part.start // row, -(-(part.start + part.size) // row)
    return (Interval(outer.start + first, after - first), *inner)


def _elements_before(piece: Region, region: Region) -> int:
    """Return the number of elements of a region in the pieces before one, in row-major order."""
    before, wide = 0, 1
    for dim, (inner, outer) in enumerate(zip(piece, region, strict=True)):
        before += wide * (inner.start - outer.start) * num_elements(region[dim + 1 :])
        wide *= inner.size
    return int(before)
