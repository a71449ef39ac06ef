"""Patterns between two views of one mesh: both sides in the common factors of their axes.

dp=4 tp=2 and its view x=2 y=4 have the common factors 2, 2 and 2. dp is the first two of them, and
y is the last two::

    "o/dp i -> o i/y"    is    "o/dp.0/dp.1 i -> o i/dp.1/tp"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ..errors import SpecError
from ..text import format_sizes
from .cut import Coordinate
from .digits import AxisDigit
from .move import Move, unmarked_axes
from .pattern import AxisType, Dim, Joined, Mark, Pattern, Side

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class CommonAxes:
    """The common factors of the axes of two views, and the factors of each axis."""

    sizes: dict[str, int]  # the size of each factor by name, the outermost first
    left: dict[str, tuple[str, ...]]  # the factors of each axis of the first view
    right: dict[str, tuple[str, ...]]  # the factors of each axis of the second view
    digits: dict[str, AxisDigit]  # the part of an axis of the first view that each factor is

    def rewrite(self, pattern: Pattern) -> Pattern:
        """Return a pattern with the factors in place of the axes."""
        sides = (pattern.left, self.left), (pattern.right, self.right)
        return Pattern(*(self._rewrite_side(side, factors) for side, factors in sides))

    def _rewrite_side(self, side: Side, factors: Mapping[str, tuple[str, ...]]) -> Side:
        items: list[Dim | Joined | Mark] = []
        for item in side.items:
            if isinstance(item, Mark):
                items += self._rewrite_mark(item, factors.get(item.axis, ()))
            elif isinstance(item, Joined):
                items.append(Joined(tuple(_rewrite_dim(dim, factors) for dim in item.dims)))
            else:
                items.append(_rewrite_dim(item, factors))
        return Side(tuple(items))

    def _rewrite_mark(self, mark: Mark, names: tuple[str, ...]) -> list[Mark]:
        marks, index = [], mark.type.holder
        for name in reversed(names):
            index, digit = divmod(index, self.sizes[name])
            marks.append(Mark(AxisType(mark.type.symbol, digit), name))
        return marks[::-1]

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
        if all(len(names) == 1 for names in (*self.left.values(), *self.right.values())):
            return
        for cut in (move.source, move.target):
            if not cut.is_even:
                summary = "the axes of the two views do not cut a dim into equal parts."
                fix = "global sizes that the axes of both views divide."
                raise SpecError(summary, fix=fix)


def _rewrite_dim(dim: Dim, factors: Mapping[str, tuple[str, ...]]) -> Dim:
    return Dim(dim.name, tuple(name for axis in dim.axes for name in factors.get(axis, ())))


def find_common_axes(left: Sizes, right: Sizes) -> CommonAxes:
    """Return the common factors of two views of the same ranks."""
    total = math.prod(left.values())
    if total != math.prod(right.values()):
        raise _no_factors_error(
            left, right, f"They have {total} and {math.prod(right.values())} ranks."
        )
    points = sorted({*_strides(left), *_strides(right), total})
    if any(b % a for a, b in pairwise(points)):
        raise _no_factors_error(left, right, "Their axes have no common factors.")
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
    strides, stride = [], math.prod(sizes.values())
    for size in sizes.values():
        stride //= size
        strides.append(stride)
    return strides


def _factors(sizes: Sizes, names: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
    return {
        axis: tuple(name for point, name in names.items() if stride <= point < stride * sizes[axis])
        for axis, stride in zip(sizes, _strides(sizes), strict=True)
    }


def _no_factors_error(left: Sizes, right: Sizes, evidence: str) -> SpecError:
    summary = f"{format_sizes(left)} and {format_sizes(right)} cannot exchange a tensor."
    return SpecError(summary, evidence, fix="a view whose axes split or join axes of the mesh.")
