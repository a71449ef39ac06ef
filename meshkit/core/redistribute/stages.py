"""The divisions between the steps of a move, and the steps that need no change of a division."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .cut import Cut, append_axes
from .move import Move
from .steps import collective, local
from .steps.step import Step

COPIES = "*=?"


class Stages:
    """The divisions between the steps of a move.

    Attributes:
        move: the move.
        reduced: after the reduce_scatter: the source, cut also over the axes that are reduced.
        sliced: also cut over the axes of which each rank has a copy.
        fillable: the target, also cut over the axes that are filled with zeros.
        gatherable: also cut over the axes that are gathered.
    """

    def __init__(self, move: Move) -> None:
        def source(axes: Sequence[str]) -> Cut:
            return move.source.with_lists(append_axes(move.left, axes, move.right))

        def target(axes: Sequence[str]) -> Cut:
            return move.target.with_lists(append_axes(move.right, axes, move.left))

        self.move = move
        self.reduced = source(move.axes_of("+", "/"))
        self.sliced = source(move.axes_of("+" + COPIES, "/"))
        self.fillable = target(move.axes_of("/", "+"))
        self.gatherable = target(move.axes_of("/", "+@" + COPIES))


def first_steps(move: Move) -> list[Step]:
    """Return the reorders of whole sequences before the other steps."""
    reordered = reorders(move, back=False)
    return [local.SplitDims(move.shown(0)), *reordered] if reordered else []


def reorders(move: Move, *, back: bool) -> list[Step]:
    """Return the reorders into the order of sequence plans, or back into the own order of a dim."""
    chosen = (r for r in move.reorderings if r.whole_first != back)
    return [local.Reorder((), r.dim, r.plan, back) for r in chosen]


def result_order(move: Move) -> tuple[int, ...]:
    """Return the dims in the order of the result."""
    return tuple(dim for entry in move.right_entries for dim in entry)


def source_order(move: Move) -> tuple[int, ...]:
    """Return the dims in the order of the local tensor, which is their own order."""
    return tuple(dim for entry in move.left_entries for dim in entry)


def sums(move: Move, cut: Cut) -> list[Step]:
    """Return the collectives that need no change of the division: all_reduce, broadcast, reduce."""
    result: list[Step] = []
    sizes, types = dict(move.axes), move.type_of
    for kind, axes in (
        ("all_reduce", move.axes_of("+", COPIES)),
        ("reduce", move.axes_of("+", "@")),
        ("broadcast", move.axes_of("@", COPIES)),
    ):
        size = math.prod(sizes[axis] for axis in axes)
        sides = {"reduce": 1, "broadcast": 0}
        root = tuple((axis, types[axis][sides[kind]].holder) for axis in axes if kind in sides)
        if axes:
            result.append(collective.Collective(kind, axes, size, cut, root=root))  # type: ignore[arg-type]
    return result


def least_sums(stages: Stages) -> list[Step]:
    """Return the reductions of a move on as few elements as possible.

    Ranks that hold copies may each reduce another part, so the scatter is on the slices.
    """
    move = stages.move
    reduced = move.axes_of("+", "/")
    size = math.prod(dict(move.axes)[axis] for axis in reduced)
    scatter = collective.Collective("reduce_scatter", reduced, size, stages.sliced)
    return [*sums(move, stages.gatherable), *([scatter] if reduced else [])]


def keep_on_one(move: Move) -> list[Step]:
    """Return the step that leaves a copy, or a result, on one coordinate of some axes."""
    types = move.type_of
    starts = [(axis, types[axis][0].holder) for axis in move.axes_of(COPIES + "@", "+")]
    ends = [(axis, types[axis][1].holder) for axis in move.axes_of(COPIES + "+", "@")]
    holders = tuple(sorted([*starts, *ends], key=lambda pair: list(types).index(pair[0])))
    return [local.Keep(tuple(axis for axis, _ in holders), holders)] if holders else []
