"""Move: the sizes of axes and dims, and the division of each dim before and after.

A move has no names of dims. Axes of size 1 are dropped. Two patterns that differ in the names of
dims or in the order of marks give equal moves, and so one plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..errors import CoordinateError, SpecError
from ..grid.axis_names import check_axes_exist
from ..sequence import SequencePlan
from ..text import count_noun
from .cut import AxisLists, Cut
from .pattern import UNMARKED, AxisType, Pattern, Side

Sizes = Mapping[str, int]
Entries = tuple[tuple[int, ...], ...]  # the dims of the global tensor in each local dim


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

    @cached_property
    def _hash(self) -> int:
        return hash((self.axes, self.types, self.sizes, self.left, self.right))

    def __hash__(self) -> int:  # cached: plans are looked up by their move
        return self._hash

    @cached_property
    def source(self) -> Cut:
        """The division on the left side."""
        return Cut(self.sizes, self.left, self.axes)

    @cached_property
    def target(self) -> Cut:
        """The division on the right side."""
        return Cut(self.sizes, self.right, self.axes)

    def shown(self, side: int) -> Cut:
        """Return the division on a side, 0 or 1, whose whole dims have no padding."""
        cut, sizes = (self.source, self.target)[side], [*self.sizes]
        for reordering in self.reorderings:
            if reordering.whole_first != bool(side):
                sizes[reordering.dim] = reordering.plan.length
        return Cut(tuple(sizes), cut.lists, cut.axes)

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


def make_move(
    pattern: Pattern, axes: Sizes, sizes: Mapping[str, int], plans: Mapping[str, SequencePlan] = {}
) -> Move:
    """Return the move of a pattern without ellipsis; ``sizes`` has the global size of each dim."""
    sizes = {**sizes, **{name: plan.padded for name, plan in plans.items()}}
    named = [axis for axis in axes if axis in pattern.types and axes[axis] > 1]
    index = {dim.name: number for number, dim in enumerate(pattern.left.dims)}
    return Move(
        tuple((axis, axes[axis]) for axis in named),
        tuple(pattern.types[axis] for axis in named),
        tuple(sizes[name] for name in index),
        _axis_lists(pattern.left, named, index),
        _axis_lists(pattern.right, named, index),
        tuple(tuple(index[dim.name] for dim in entry) for entry in pattern.left.entries),
        tuple(tuple(index[dim.name] for dim in entry) for entry in pattern.right.entries),
        tuple(_reorderings(pattern, axes, plans, index)),
    )


def _axis_lists(side: Side, named: Collection[str], index: Mapping[str, int]) -> AxisLists:
    lists = {dim.name: tuple(axis for axis in dim.axes if axis in named) for dim in side.dims}
    return tuple(lists[name] for name in index)


def _reorderings(
    pattern: Pattern, axes: Sizes, plans: Mapping[str, SequencePlan], index: Mapping[str, int]
) -> list[Reordering]:
    reorderings = []
    for name, plan in plans.items():
        counts = [
            math.prod(axes[axis] for axis in dim.axes)
            for side in (pattern.left, pattern.right)
            for dim in side.dims
            if dim.name == name
        ]
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


def check_axes(pattern: Pattern, axes: Sizes) -> None:
    """Check that the mesh has the axes, and that each marked index exists on its axis."""
    check_axes_exist(pattern.types, tuple(axes))
    for mark in [*pattern.left.marks, *pattern.right.marks]:
        size = axes.get(mark.axis, 1)
        if mark.type.holder >= size:
            raise CoordinateError(
                f"{mark} is outside the axis.",
                f"{mark.axis} has {size} {'index' if size == 1 else 'indices'}, 0 to {size - 1}.",
                fix=f"@{mark.axis}:{size - 1}{', or another index of the axis' * (size > 1)}.",
                axis=mark.axis,
                index=mark.type.holder,
                size=size,
            )


def check_op(pattern: Pattern, op: str) -> None:
    """Check the name of the reduction, and that partial sums (+) begin only if it is sum."""
    if op not in ("sum", "max", "min", "avg"):
        fix = 'op="sum", which is the default, or op="max", op="min", op="avg".'
        if op in ("mean", "average"):
            fix = 'op="avg".'
        raise SpecError(f"op is {op!r}.", fix=fix)
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


def local_shape(entries: Entries, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the local tensor, whose dims join some dims of the global one."""
    return tuple(math.prod(shape[dim] for dim in entry) for entry in entries)
