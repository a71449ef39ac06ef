"""Cut: a global tensor whose dims are cut over axes, and the region that each rank holds.

A dim of size n over an axis of size p is cut by the rule of ``numpy.array_split``: the first n % p
parts have one element more. A second axis cuts each part again, by the same rule::

    10 over dp=2 sp=2       dp 0: 0-4    sp 0: 0-2  sp 1: 3-4
                            dp 1: 5-9    sp 0: 5-7  sp 1: 8-9
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Coordinate = Mapping[str, Any]  # axis to index: an int, or an array of the indices of many ranks
AxisLists = tuple[tuple[str, ...], ...]  # the axes that cut each dim, the outer axis first


class Interval(NamedTuple):
    """Consecutive indices of a dim: ints, or arrays with those of many ranks."""

    start: Any
    size: Any


Region = tuple[Interval, ...]  # one interval a dim


@dataclass(frozen=True)
class Cut:
    """The division of a global tensor over axes."""

    sizes: tuple[int, ...]  # the global size of each dim
    lists: AxisLists  # the axes that cut each dim, the outer axis first
    # the sizes of the axes of the mesh, by name; the outermost axis first
    axes: tuple[tuple[str, int], ...]

    def region(self, coordinate: Coordinate) -> Region:
        """Return the region that the rank at a coordinate holds."""
        counts = dict(self.axes)
        region = []
        for size, axes in zip(self.sizes, self.lists, strict=True):
            interval = Interval(0, size)
            for axis in axes:
                part = split(interval.size, counts[axis], coordinate[axis])
                interval = Interval(interval.start + part.start, part.size)
            region.append(interval)
        return tuple(region)

    def shape(self, coordinate: Coordinate) -> tuple[int, ...]:
        """Return the shape of that region."""
        return tuple(interval.size for interval in self.region(coordinate))

    def with_lists(self, lists: AxisLists) -> Cut:
        """Return the same tensor, cut over other axes."""
        return Cut(self.sizes, lists, self.axes)

    def count(self, dim: int) -> int:
        """Return the number of parts of a dim."""
        counts = dict(self.axes)
        return math.prod(counts[axis] for axis in self.lists[dim])

    @property
    def is_even(self) -> bool:
        """Whether all parts of each dim have the same size."""
        return all(size % self.count(dim) == 0 for dim, size in enumerate(self.sizes))


def split(size: Any, parts: int, index: Any) -> Interval:  # noqa: ANN401  # ints or arrays of them
    """Return a part of a dim, by the rule of ``numpy.array_split``.

    Example:
        >>> [tuple(split(10, 4, index)) for index in range(4)]
        [(0, 3), (3, 3), (6, 2), (8, 2)]
    """
    least, longer = size // parts, size % parts
    extra = index - (index > longer) * (index - longer)  # the smaller of the two, also for arrays
    return Interval(index * least + extra, least + (index < longer))


def num_elements(region: Region) -> Any:  # noqa: ANN401
    """Return the number of elements of a region."""
    return math.prod(interval.size for interval in region)


def overlap(first: Region, second: Region) -> Region:
    """Return the region that two regions share; an empty one has an interval of size 0."""
    return tuple(_overlap(*pair) for pair in zip(first, second, strict=True))


def _overlap(first: Interval, second: Interval) -> Interval:
    start = _larger(first.start, second.start)
    stop = -_larger(-first.start - first.size, -second.start - second.size)
    return Interval(start, _larger(stop - start, 0))


def _larger(first: Any, second: Any) -> Any:  # noqa: ANN401
    return first + (second > first) * (second - first)


def slices_within(part: Region, whole: Region) -> tuple[slice, ...]:
    """Return the index of a region in an array that holds another region around it."""
    starts = [inner.start - outer.start for inner, outer in zip(part, whole, strict=True)]
    return tuple(
        slice(start, start + inner.size) for start, inner in zip(starts, part, strict=True)
    )


def append_axes(lists: AxisLists, axes: Sequence[str], goal: AxisLists) -> AxisLists:
    """Return the lists with axes added at the end of the dims that they cut in other lists.

    Example:
        >>> append_axes((("dp",), ()), ["tp"], (("tp", "dp"), ()))
        (('dp', 'tp'), ())
    """
    return tuple(
        (*own, *(axis for axis in other if axis in axes and axis not in own))
        for own, other in zip(lists, goal, strict=True)
    )
