"""The steps of a move of any sizes: routes of regions, and the sums before or after them."""

from __future__ import annotations

import math

from .cut import Cut
from .stages import COPIES, Stages, keep_on_one, reorders, result_order, sums
from .steps import collective, local
from .steps.step import Step


def region_steps(stages: Stages) -> list[Step]:
    """Return the steps for any sizes: routes of regions, and the sums before or after them."""
    move, types = stages.move, stages.move.type_of
    result: list[Step] = [local.SplitDims(move.source)]
    sizes = dict(move.axes)
    reduced = move.axes_of("+", "/")
    if reduced:
        count = math.prod(sizes[axis] for axis in reduced)
        result.append(collective.Route(reduced, move.source, stages.reduced, summed=count))
    senders = tuple((axis, types[axis][0].holder) for axis in move.axes_of("@", "/@"))
    receivers = tuple((axis, types[axis][1].holder) for axis in move.axes_of("/@", "@"))
    moved = {*_changed(stages.reduced, stages.fillable), *(axis for axis, _ in senders)}
    axes = tuple(axis for axis in sizes if axis in moved)
    source, target = stages.reduced, stages.fillable
    route: list[Step] = []
    if axes:
        route = [collective.Route(axes, source, target, senders, receivers)]
    elif source != target:
        route = [local.TakeRegion(source, target, move.axes_of(COPIES, "/"))]
    first = _least_elements(source) <= _least_elements(target)
    reductions = sums(move, source if first else target)
    result += [*reductions, *route] if first else [*route, *reductions]
    result += keep_on_one(move)
    if filled := move.axes_of("/", "+"):
        result.append(local.FillRegion(target, move.target, filled))
    result += reorders(move, back=True)
    shown = move.shown(1)
    order = local.SplitDims(shown, result_order(move))
    return [*result, order, local.JoinDims(shown, move.right_entries)]


def _changed(source: Cut, target: Cut) -> list[str]:
    """Return the axes of a division whose ranks have another part of their dim in the other one."""
    changed: list[str] = []
    for before, after in zip(source.lists, target.lists, strict=True):
        same = 0
        while same < min(len(before), len(after)) and before[same] == after[same]:
            same += 1
        changed += before[same:]
    return changed


def _least_elements(cut: Cut) -> float:
    """Return the mean number of elements of a part."""
    return math.prod(size / cut.count(dim) for dim, size in enumerate(cut.sizes))
