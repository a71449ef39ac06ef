"""Digits: the common factors into which several cuts divide the dims and the axes.

For dp=4 tp=2 and ``o/dp/tp i -> o/tp i/dp``, o has the factors 2, 2, 2 and the rest::

    left    dp is the factors 1 and 2 of o, tp is the factor 3
    right   tp is the factor 1 of o, dp is the first factor of i, of size 4

dp is cut between its two factors of o, so i has the factors 2, 2 and the rest. A local tensor is an
array with one dim for each digit that no axis has. Sizes without common factors have no digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .cut import Coordinate, Cut

Digit = tuple[int, int]  # a dim, and the product of the factors of that dim before this one


@dataclass(frozen=True)
class AxisDigit:
    """A factor of an axis."""

    axis: str
    stride: int  # the product of the factors of the axis after this one
    size: int

    def index(self, coordinate: Coordinate) -> int:
        """Return the index of a coordinate along this factor."""
        return int(coordinate[self.axis]) // self.stride % self.size


@dataclass(frozen=True)
class Digits:
    """The common factors of cuts."""

    # for each dim, the products at which a cut may stand, ascending from 1 to the size
    points: tuple[tuple[int, ...], ...]
    axes: dict[str, int]  # the size of each axis by name, the outermost first

    def of_dim(self, dim: int) -> list[Digit]:
        """Return the digits of a dim, the outermost first."""
        return [(dim, point) for point in self.points[dim][:-1]]

    def size(self, digit: Digit) -> int:
        """Return the size of a digit."""
        points = self.points[digit[0]]
        return points[points.index(digit[1]) + 1] // digit[1]

    def sizes(self, digits: Iterable[Digit]) -> tuple[int, ...]:
        """Return the sizes of several digits."""
        return tuple(map(self.size, digits))

    def owners(self, cut: Cut) -> dict[Digit, AxisDigit]:
        """Return the factor of an axis that has each digit which a cut divides over ranks."""
        owners = {}
        for dim, axis, before in appearances(cut):
            size = self.axes[axis]
            for digit in self.of_dim(dim):
                if before <= digit[1] < before * size:
                    factor = self.size(digit)
                    stride = size * before // (digit[1] * factor)
                    owners[digit] = AxisDigit(axis, stride, factor)
        return owners

    def order(self, factors: Iterable[AxisDigit]) -> list[AxisDigit]:
        """Return factors of axes in the order in which they number the ranks of a group."""
        number = {axis: index for index, axis in enumerate(self.axes)}
        return sorted(factors, key=lambda factor: (number[factor.axis], -factor.stride))


def appearances(cut: Cut) -> list[tuple[int, str, int]]:
    """Return each axis with the dim that it cuts, and the number of parts before its cut."""
    sizes, result = dict(cut.axes), []
    for dim, axes in enumerate(cut.lists):
        before = 1
        for axis in axes:
            result.append((dim, axis, before))
            before *= sizes[axis]
    return result


def find_digits(cuts: Sequence[Cut]) -> Digits | None:
    """Return the common factors of cuts of one tensor, or None if there are none."""
    first = cuts[0]
    places = [place for cut in cuts for place in appearances(cut)]
    axis_points = {axis: {1, size} for axis, size in first.axes}
    dim_points: list[set[int]] = [{1} for _ in first.sizes]
    count = -1
    while count != (count := sum(map(len, (*axis_points.values(), *dim_points)))):
        for dim, axis, before in places:
            after = before * max(axis_points[axis])
            between = [p for p in dim_points[dim] if before < p < after]
            if any(point % before for point in between):
                return None
            axis_points[axis].update(point // before for point in between)
            dim_points[dim].update(before * point for point in axis_points[axis])
    points = [(*sorted(p), size) for p, size in zip(dim_points, first.sizes, strict=True)]
    chains = [*points, *(sorted(chain) for chain in axis_points.values())]
    if any(b % a or not b for chain in chains for a, b in pairwise(chain)):
        return None
    return Digits(tuple(map(tuple, points)), dict(first.axes))


def is_same_overlap(digits: Digits, first: tuple[Cut, Cut], second: tuple[Cut, Cut]) -> bool:
    """Return whether, on every rank, two pairs of cuts share equally many elements."""
    return _overlap_of(digits, *first) == _overlap_of(digits, *second)


def _overlap_of(digits: Digits, before: Cut, after: Cut) -> tuple[int, set[frozenset[AxisDigit]]]:
    """Return the parts that the digits of both cuts make, and the indices that must be equal."""
    left, right = digits.owners(before), digits.owners(after)
    parts = math.prod(map(digits.size, {*left, *right}))
    pairs = {frozenset((left[d], right[d])) for d in left.keys() & right.keys()}
    return parts, {pair for pair in pairs if len(pair) == 2}
