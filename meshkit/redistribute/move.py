"""Move: the sizes of axes and dims, and the division of each dim before and after.

A dim of size n over an axis of size p is cut by the rule of ``numpy.array_split``: the first n % p
parts have one element more. A second axis cuts each part again, by the same rule::

    10 over dp=2 sp=2       dp 0: 0-4    sp 0: 0-2  sp 1: 3-4
                            dp 1: 5-9    sp 0: 5-7  sp 1: 8-9

A DTensor is cut as by ``torch.chunk``: 10 over 4 ranks are 3, 3, 3 and 1, not 3, 3, 2 and 2.

A move has no names of dims. Axes of size 1 are dropped. Two patterns that differ in the names of
dims or in the order of marks give equal moves, and so one plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import CoordinateError, SpecError
from ..layout.axes import check_axes_exist
from ..layout.sequence import SequencePlan
from ..text import count_noun
from .pattern import UNMARKED, AxisType, Dim, Pattern, Side

Sizes = Mapping[str, int]
GivenSizes = Mapping[str, "int | SequencePlan"]
Coordinate = Mapping[str, Any]  # axis to index: an int, or an array of the indices of many ranks
AxisLists = tuple[tuple[str, ...], ...]  # the axes that cut each dim, the outer axis first
Entries = tuple[tuple[int, ...], ...]  # the dims of the global tensor in each local dim


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
    is_dtensor: bool = False  # whether parts have the sizes of ``torch.chunk``

    def region(self, coordinate: Coordinate) -> Region:
        """Return the region that the rank at a coordinate holds."""
        counts = dict(self.axes)
        region = []
        for size, axes in zip(self.sizes, self.lists, strict=True):
            interval = Interval(0, size)
            for axis in axes:
                part = split(interval.size, counts[axis], coordinate[axis], self.is_dtensor)
                interval = Interval(interval.start + part.start, part.size)
            region.append(interval)
        return tuple(region)

    def shape(self, coordinate: Coordinate) -> tuple[int, ...]:
        """Return the shape of that region."""
        return tuple(interval.size for interval in self.region(coordinate))

    def append_axes(self, axes: Collection[str], goal: AxisLists) -> Cut:
        """Return the division with axes added at the end of the dims that they cut in a goal."""
        lists = (
            (*own, *(axis for axis in other if axis in axes and axis not in own))
            for own, other in zip(self.lists, goal, strict=True)
        )
        return replace(self, lists=tuple(lists))

    def count(self, dim: int) -> int:
        """Return the number of parts of a dim."""
        counts = dict(self.axes)
        return math.prod(counts[axis] for axis in self.lists[dim])

    @property
    def is_even(self) -> bool:
        """Whether all parts of each dim have the same size."""
        return all(size % self.count(dim) == 0 for dim, size in enumerate(self.sizes))


def split(
    size: Any,  # noqa: ANN401  # an int, or an array of them
    parts: int,
    index: Any,  # noqa: ANN401
    is_dtensor: bool = False,
) -> Interval:
    """Return a part of a dim, by the rule of ``numpy.array_split`` or of ``torch.chunk``."""
    if is_dtensor:
        longest = -(-size // parts)
        start, end = (-_larger(-i * longest, -size) for i in (index, index + 1))
        return Interval(start, end - start)
    least, longer = size // parts, size % parts
    return Interval(index * least - _larger(-index, -longer), least + (index < longer))


def num_elements(region: Region) -> Any:  # noqa: ANN401
    """Return the number of elements of a region."""
    return math.prod(interval.size for interval in region)


def overlap(first: Region, second: Region) -> Region:
    """Return the region that two regions share; an empty one has an interval of size 0."""
    shared = []
    for (start, size), (other, length) in zip(first, second, strict=True):
        begin, end = _larger(start, other), -_larger(-start - size, -other - length)
        shared.append(Interval(begin, _larger(end - begin, 0)))
    return tuple(shared)


def _larger(first: Any, second: Any) -> Any:  # noqa: ANN401
    """Return the larger of two numbers, as ints for ints and as an array for arrays."""
    return first + (second > first) * (second - first)


def slices_within(part: Region, whole: Region) -> tuple[slice, ...]:
    """Return the index of a region in an array that holds another region around it."""
    starts = (inner.start - outer.start for inner, outer in zip(part, whole, strict=True))
    return tuple(slice(s, s + inner.size) for s, inner in zip(starts, part, strict=True))


def local_shape(entries: Entries, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the local tensor, whose dims join some dims of the global one."""
    return tuple(math.prod(shape[dim] for dim in entry) for entry in entries)


class Reordering(NamedTuple):
    """A dim that has the order and the padding of a sequence plan on the side where axes cut it."""

    dim: int
    plan: SequencePlan
    whole_first: bool  # whether the left side has the whole dim, and the right side the parts


@dataclass(frozen=True)
class Move:
    """A pattern with its sizes."""

    # the named axes longer than 1 with their sizes, the outermost axis of the mesh first
    axes: tuple[tuple[str, int], ...]
    # the types of these axes on the left and on the right
    types: tuple[tuple[AxisType, AxisType], ...]
    # the global size of each dim, with padding, in the order of the left side
    sizes: tuple[int, ...]
    left: AxisLists  # the axes that cut each dim on the left side
    right: AxisLists  # the axes that cut each dim on the right side
    left_entries: Entries  # the dims in each dim of the local tensor
    right_entries: Entries  # the same for the result
    reorderings: tuple[Reordering, ...] = ()  # the dims with a sequence plan
    are_dtensors: tuple[bool, bool] = (False, False)  # whether DTensors are on each side

    @cached_property
    def source(self) -> Cut:
        """The division on the left side."""
        return Cut(self.sizes, self.left, self.axes, self.are_dtensors[0])

    @cached_property
    def target(self) -> Cut:
        """The division on the right side."""
        return Cut(self.sizes, self.right, self.axes, self.are_dtensors[1])

    def shown(self, side: int) -> Cut:
        """Return the division on a side, 0 or 1, whose whole dims have no padding."""
        cut, sizes = (self.source, self.target)[side], [*self.sizes]
        for reordering in self.reorderings:
            if reordering.whole_first != bool(side):
                sizes[reordering.dim] = reordering.plan.length
        return replace(cut, sizes=tuple(sizes))

    @cached_property
    def type_of(self) -> dict[str, tuple[AxisType, AxisType]]:
        """The types by axis."""
        return dict(zip((axis for axis, _ in self.axes), self.types, strict=True))

    def axes_of(self, left: str, right: str) -> tuple[str, ...]:
        """Return the axes whose symbols are among these, in the order of the mesh."""
        return tuple(
            axis
            for axis, (before, after) in self.type_of.items()
            if before.symbol in left and after.symbol in right
        )

    def count_ranks(self, axes: Collection[str]) -> int:
        """Return the number of ranks of a group over some axes."""
        return math.prod(size for axis, size in self.axes if axis in axes)


def make_move(
    pattern: Pattern, axes: Sizes, sizes: Mapping[str, int], plans: Mapping[str, SequencePlan] = {}
) -> Move:
    """Return the move of a pattern without ellipsis; ``sizes`` has the global size of each dim."""
    sizes = {**sizes, **{name: plan.padded for name, plan in plans.items()}}
    named = [axis for axis in axes if axis in pattern.types and axes[axis] > 1]
    index = {dim.name: number for number, dim in enumerate(pattern.left.dims)}

    def axis_lists(side: Side) -> AxisLists:
        lists = {dim.name: tuple(axis for axis in dim.axes if axis in named) for dim in side.dims}
        return tuple(lists[name] for name in index)

    def entries(side: Side) -> Entries:
        return tuple(tuple(index[dim.name] for dim in entry) for entry in side.entries)

    left, right = pattern.left, pattern.right
    return Move(
        tuple((axis, axes[axis]) for axis in named),
        tuple(pattern.types[axis] for axis in named),
        tuple(sizes[name] for name in index),
        *(axis_lists(left), axis_lists(right), entries(left), entries(right)),
        tuple(_reorderings(pattern, axes, plans, index)),
    )


def _reorderings(
    pattern: Pattern, axes: Sizes, plans: Mapping[str, SequencePlan], index: Mapping[str, int]
) -> list[Reordering]:
    reorderings = []
    for name, plan in plans.items():
        dims = [dim for side in (pattern.left, pattern.right) for dim in side.dims]
        counts = [count_parts(dim, axes) for dim in dims if dim.name == name]
        if max(counts) != plan.parts or plan.parts % min(counts):
            *others, most = sorted({*counts})
            parts = " and ".join([*map(str, others), count_noun(most, "part")])
            raise SpecError(
                f"the plan of {name} has {count_noun(plan.parts, 'part')}; "
                f"the pattern cuts {name} into {parts}.",
                fix=f"{name}=SequencePlan({plan.length}, {max(counts)}, {plan.order!r}"
                f"{', pad=True' * plan.pad}).",
            )
        changes = plan.order == "zigzag" or plan.padded != plan.length
        if changes and min(counts) == 1 < max(counts):
            reorderings.append(Reordering(index[name], plan, counts[0] == 1))
    return reorderings


def count_parts(dim: Dim, axes: Sizes) -> int:
    """Return the number of parts into which axes cut a dim."""
    return math.prod(axes[axis] for axis in dim.axes)


# ------------------------------------------------------------------ checks


def check_axes(pattern: Pattern, axes: Sizes) -> None:
    """Check that the mesh has the axes, and that each marked index exists on its axis."""
    check_axes_exist(pattern.types, tuple(axes))
    for mark in [*pattern.left.marks, *pattern.right.marks]:
        size = axes.get(mark.axis, 1)
        if mark.type.holder >= size:
            indices = "index" if size == 1 else "indices"
            raise CoordinateError(
                f"{mark} is outside the axis.",
                f"{mark.axis} has {size} {indices}, 0 to {size - 1}.",
                fix=f"@{mark.axis}:{size - 1}{', or another index of the axis' * (size > 1)}.",
                axis=mark.axis,
                index=mark.type.holder,
                size=size,
            )


def check_op(pattern: Pattern, op: str) -> None:
    """Check the name of the reduction, and that partial sums (+) begin only if it is sum."""
    if op not in ("sum", "max", "min", "avg"):
        fix = 'op="sum", which is the default, or op="max", op="min", op="avg".'
        is_mean = op in ("mean", "average")
        raise SpecError(f"op is {op!r}.", fix='op="avg".' if is_mean else fix)
    begins = [axis for axis, (a, b) in pattern.types.items() if b.symbol == "+" != a.symbol]
    if op != "sum" and begins:
        axis = begins[0]
        raise SpecError(
            f"+{axis} on the right side is a sum, and op is {op!r}.",
            "Ranks without a part hold 0, which is neutral for a sum only.",
            fix=f'op="sum", or ={axis} in place of +{axis}.',
        )


def unmarked_axes(pattern: Pattern) -> list[tuple[int, str]]:
    """Return the axes without a mark on one side, each after that side: 0 is the left one."""
    types = pattern.types.items()
    return [(pair.index(UNMARKED), axis) for axis, pair in types if UNMARKED in pair]


def check_gradient(pattern: Pattern, unmarked: Sequence[tuple[int, str]]) -> None:
    """Raise if the gradient is not determined: axes have no mark on one side."""
    if not unmarked:
        return
    side = unmarked[0][0]
    axes = [axis for other, axis in unmarked if other == side]
    place, text = (("left", pattern.left), ("right", pattern.right))[side]
    own, same = (" ".join(symbol + axis for axis in axes) for symbol in "*=")
    noun, verb = " and ".join(axes), "has" if len(axes) == 1 else "have"
    choices = (f'"{f"{text} {marks}".strip()}"' for marks in (own, same))
    raise SpecError(
        f"{noun} {verb} no mark on the {place} side, and the tensor requires a gradient.",
        f"{own}: each rank of {noun} does its own part of the work; gradients are summed.",
        f"{same}: all ranks of {noun} do the same work; their gradients are equal.",
        fix=f"{', or '.join(choices)}, on the {place} side; or x.detach().",
        axis=axes[0],
    )
