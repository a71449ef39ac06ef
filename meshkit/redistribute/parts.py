"""Which ranks of a mesh hold which part of a tensor, before or after a move to another mesh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..layout.layout import Layout
from ..text import Ints
from .move import Cut, Interval, Region, num_elements, split
from .steps import Holders

Cell = tuple[int, ...]  # the index along each axis that cuts the tensor, in the order of the mesh


class Replica(NamedTuple):
    """The part of the tensor that a rank holds, and the number of its copy."""

    cell: Cell
    copy: int


@dataclass(frozen=True)
class End:
    """One side of a move between meshes: its ranks, and the division of the tensor over them."""

    layout: Layout
    cut: Cut
    fixed: Holders  # axes along which one coordinate alone holds the tensor

    @cached_property
    def cut_axes(self) -> tuple[str, ...]:
        """The axes that cut the tensor, in the order of the mesh."""
        cut = {axis for axes in self.cut.lists for axis in axes}
        return tuple(axis for axis in self.layout.axes if axis in cut)

    @cached_property
    def copy_axes(self) -> tuple[str, ...]:
        """The axes longer than 1 along which all ranks hold copies, in the order of the mesh."""
        other = {*self.cut_axes, *(axis for axis, _ in self.fixed)}
        return tuple(a for a, size in self.layout.sizes.items() if size > 1 and a not in other)

    @cached_property
    def num_copies(self) -> int:
        """The number of ranks that hold each part."""
        return math.prod(self.layout.sizes[axis] for axis in self.copy_axes)

    def place(self, rank: int) -> Replica | None:
        """Return the part that a rank holds, or None if it holds none."""
        if rank not in self.layout:
            return None
        coordinate = self.layout.coordinate(rank)
        if any(coordinate[axis] != index for axis, index in self.fixed):
            return None
        copy = 0
        for axis in self.copy_axes:
            copy = copy * self.layout.sizes[axis] + coordinate[axis]
        return Replica(tuple(coordinate[axis] for axis in self.cut_axes), copy)

    @cached_property
    def ranks(self) -> Ints:  # (sizes of the cut axes ..., copies)
        """The ranks that hold each part."""
        axes = self.layout.axes
        fixed = dict(self.fixed)
        grid = self.layout.grid[tuple(fixed.get(axis, slice(None)) for axis in axes)]
        free = [axis for axis in axes if axis not in fixed]
        cut = [free.index(axis) for axis in self.cut_axes]
        order = [*cut, *(number for number in range(len(free)) if number not in cut)]
        grid = grid.transpose(order)
        table: Ints = grid.reshape(*grid.shape[: len(cut)], self.num_copies)
        return table

    def region(self, cell: Cell) -> Region:
        """Return the region of a part in the global tensor."""
        return self.cut.region(dict(zip(self.cut_axes, cell, strict=True)))

    def cells(self, region: Region) -> Iterator[tuple[Cell, Region]]:
        """Yield the parts that overlap a region. Cost: O(axes) for each of them."""
        if not num_elements(region):
            return
        sizes = dict(self.cut.axes)
        dims = []
        for size, axes, wanted in zip(self.cut.sizes, self.cut.lists, region, strict=True):
            counts = [sizes[axis] for axis in axes]
            parts = find_parts(Interval(0, size), counts, wanted, self.cut.is_dtensor)
            dims.append([(dict(zip(axes, at, strict=True)), part) for at, part in parts])
        for chosen in itertools.product(*dims):
            coordinate = {axis: index for at, _ in chosen for axis, index in at.items()}
            cell = tuple(coordinate[axis] for axis in self.cut_axes)
            yield cell, tuple(part for _, part in chosen)

    @property
    def largest(self) -> int:
        """The elements of the largest part."""
        return int(num_elements(self.region((0,) * len(self.cut_axes))))


def find_part(size: int, parts: int, position: int, is_dtensor: bool = False) -> int:
    """Return the part of a dim that holds a position, by the rule of :func:`split`."""
    if is_dtensor:
        return position // -(-size // parts)
    least, longer = divmod(size, parts)
    edge = longer * (least + 1)
    return position // (least + 1) if position < edge else longer + (position - edge) // least


def find_parts(
    dim: Interval, counts: Sequence[int], wanted: Interval, is_dtensor: bool = False
) -> Iterator[tuple[tuple[int, ...], Interval]]:
    """Yield the parts of a dim that overlap an interval, with their index along each axis."""
    if not counts:
        yield (), dim
        return
    first = max(wanted.start - dim.start, 0)
    last = min(wanted.start + wanted.size - dim.start, dim.size) - 1
    begin, end = (find_part(dim.size, counts[0], at, is_dtensor) for at in (first, last))
    for index in range(begin, end + 1):
        start, size = split(dim.size, counts[0], index, is_dtensor)
        inner = Interval(dim.start + start, size)
        for rest, part in find_parts(inner, counts[1:], wanted, is_dtensor):
            yield (index, *rest), part


def columns_of(layout: Layout, ranks: Ints) -> dict[str, Ints]:
    """Return the coordinates of ranks along each axis."""
    return dict(zip(layout.axes, layout.coordinates(ranks).T, strict=True))
