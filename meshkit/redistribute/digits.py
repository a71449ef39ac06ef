"""Write the index along a dim, and the index along an axis, as digits that both sides share.

A side of a pattern cuts dims into parts. Two sides may cut one dim at different places. Digits are
the finest factors at which either side cuts, as hours and minutes are digits of a time. For a move
``o/dp/tp i -> o/tp i/dp`` over dp=4 tp=2, o of size 8k has the digits 2, 2, 2 and k::

    index along o            digit 0   digit 1   digit 2   rest
    size                        2         2         2        k
    left: o/dp/tp            |---- dp = 4 ----|-- tp = 2 --|        two digits are dp, one is tp
    right: o/tp              |-- tp --|                             one digit is tp

dp has the digits 2 and 2 of its own, so i, which dp cuts on the right, has them too. Each rank
fixes the digits that its axes own, and holds an array with one dim for each other digit. A step
then only hands a digit from one axis to another. Sizes without common factors have no digits.

The axes of two views of one mesh share digits too. dp=4 tp=2 and its view x=2 y=4 have the digits
2, 2 and 2. dp is the first two of them, and y is the last two::

    "o/dp i -> o i/y"    is    "o/dp.0/dp.1 i -> o i/dp.1/tp"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import SpecError
from .move import Coordinate, Cut, Move, Sizes, unmarked_axes
from .pattern import AxisType, Dim, Mark, Pattern, Side

Digit = tuple[int, int]  # a dim, and the product of the factors of that dim before this one


@dataclass(frozen=True)
class AxisDigit:
    """A digit of the index along an axis: ``index // stride % size``."""

    axis: str
    stride: int  # the product of the factors of the axis after this one
    size: int

    def index(self, coordinate: Coordinate) -> int:
        """Return the index of a coordinate along this factor."""
        return int(coordinate[self.axis]) // self.stride % self.size


@dataclass(frozen=True)
class Digits:
    """The digits that several cuts of one tensor share."""

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
        """Return, for each digit that the cut divides over ranks, the factor that divides it."""
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
        """Return factors of axes in the rank order of the group over these axes."""
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


def overlap_of(digits: Digits, before: Cut, after: Cut) -> tuple[int, set[frozenset[AxisDigit]]]:
    """Return the parts that the digits of both cuts make, and the indices that must be equal.

    Pairs of cuts for which both are equal share equally many elements on every rank.
    """
    left, right = digits.owners(before), digits.owners(after)
    parts = math.prod(map(digits.size, {*left, *right}))
    pairs = {frozenset((left[d], right[d])) for d in left.keys() & right.keys()}
    return parts, {pair for pair in pairs if len(pair) == 2}


# ------------------------------------------------------------------ two views of one mesh


@dataclass(frozen=True)
class CommonAxes:
    """The common factors of the axes of two views, and the factors of each axis."""

    sizes: dict[str, int]  # the size of each factor by name, the outermost first
    left: dict[str, tuple[str, ...]]  # the factors of each axis of the first view
    right: dict[str, tuple[str, ...]]  # the factors of each axis of the second view
    digits: dict[str, AxisDigit]  # the part of an axis of the first view that each factor is

    def rewrite(self, pattern: Pattern) -> Pattern:
        """Return a pattern with the factors in place of the axes."""
        left = self._rewrite_side(pattern.left, self.left)
        return Pattern(left, self._rewrite_side(pattern.right, self.right))

    def _rewrite_side(self, side: Side, factors: Mapping[str, tuple[str, ...]]) -> Side:
        def change(item: Dim | Mark) -> list[Dim | Mark]:
            if isinstance(item, Dim):
                names = (name for axis in item.axes for name in factors.get(axis, ()))
                return [Dim(item.name, tuple(names))]
            marks: list[Dim | Mark] = []
            index = item.type.holder
            for name in reversed(factors.get(item.axis, ())):
                index, digit = divmod(index, self.sizes[name])
                marks.insert(0, Mark(AxisType(item.type.symbol, digit), name))
            return marks

        return side.rewrite(change)

    def unmarked_axes(self, pattern: Pattern) -> list[tuple[int, str]]:
        """Return the axes of the views without a mark on one side, each after that side."""
        result = []
        for side, factor in unmarked_axes(self.rewrite(pattern)):
            axes = (self.left, self.right)[side]
            result.append((side, next(axis for axis in axes if factor in axes[axis])))
        return result

    def coordinate(self, coordinate: Coordinate) -> dict[str, int]:
        """Return the coordinate of a rank along the factors, from that in the first view."""
        return {name: digit.index(coordinate) for name, digit in self.digits.items()}

    def check_even(self, move: Move) -> None:
        """Check that all parts are equal if an axis has several factors."""
        is_split = any(len(names) > 1 for names in (*self.left.values(), *self.right.values()))
        if is_split and not (move.source.is_even and move.target.is_even):
            summary = "the axes of the two views do not cut a dim into equal parts."
            raise SpecError(summary, fix="global sizes that the axes of both views divide.")


def find_common_axes(left: Sizes, right: Sizes) -> CommonAxes | None:
    """Return the common factors of two views of the same ranks, or None if there are none."""
    totals = [math.prod(sizes.values()) for sizes in (left, right)]
    points = sorted({*_strides(left), *_strides(right), *totals})
    if totals[0] != totals[1] or any(b % a for a, b in pairwise(points)):
        return None
    strides = points[:-1][::-1]
    sizes = [above // below for below, above in pairwise(points)][::-1]
    names: dict[int, str] = {}
    digits = {}
    for axis, stride in zip(left, _strides(left), strict=True):
        inside = [s for s in strides if stride <= s < stride * left[axis]]
        for number, part in enumerate(inside):
            names[part] = axis if len(inside) == 1 else f"{axis}.{number}"
            size = sizes[strides.index(part)]
            digits[names[part]] = AxisDigit(axis, part // stride, size)
    common = {names[stride]: size for stride, size in zip(strides, sizes, strict=True)}
    return CommonAxes(common, _factors(left, names), _factors(right, names), digits)


def _strides(sizes: Sizes) -> list[int]:
    """Return the number of ranks between two neighbors along each axis."""
    values = [*sizes.values()]
    return [math.prod(values[number + 1 :]) for number in range(len(values))]


def _factors(sizes: Sizes, names: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
    return {
        axis: tuple(name for point, name in names.items() if stride <= point < stride * sizes[axis])
        for axis, stride in zip(sizes, _strides(sizes), strict=True)
    }
