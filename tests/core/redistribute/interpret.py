"""Run a plan with numpy, for all ranks of a mesh in one process.

``deal`` cuts a global tensor into the local tensors of all ranks, by one side of a pattern, and
``join`` puts them together. They follow the definitions of the marks and use no plan, so they are
the reference for a plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshkit.core.data.sequence import SequencePlan
from meshkit.core.redistribute.cut import Cut
from meshkit.core.redistribute.move import Entries, Move, local_shape
from meshkit.core.redistribute.pattern import AxisType
from meshkit.core.redistribute.plan import Plan
from meshkit.core.redistribute.steps import ops

Array = NDArray[Any]
Parts = list[Array]  # the local tensor of each rank over the named axes, the last axis fastest

ABSENT = 99  # the value on ranks that do not hold the tensor
REDUCTIONS: dict[str, Any] = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min}


def coordinates(move: Move) -> Iterator[dict[str, int]]:
    """Yield the coordinate of each rank over the axes of a move, the last axis fastest."""
    sizes = dict(move.axes)
    for indices in itertools.product(*map(range, sizes.values())):
        yield dict(zip(sizes, indices, strict=True))


def deal(move: Move, whole: Array, side: int = 0) -> Parts:
    """Return the local tensors of all ranks on a side, 0 or 1, of a global tensor.

    The dims of the global tensor are in the order of the move. The parts of a sum differ.
    """
    cut, entries = _side(move, side)
    whole = _reordered(move, whole, side, back=False)
    parts = []
    for coordinate in coordinates(move):
        part = whole[_index(cut, coordinate)]
        for axis, size in move.axes:
            part = _local_value(part, move.type_of[axis][side], coordinate[axis], size)
        part = part.transpose([dim for entry in entries for dim in entry])
        parts.append(part.reshape(local_shape(entries, cut.shape(coordinate))))
    return parts


def _local_value(part: Array, kind: AxisType, index: int, size: int) -> Array:
    """Return the value of one rank of an axis, out of the value of all of them together."""
    if kind.symbol == "+":  # the factors 2, 3, ... and a last one, so that their sum is 1
        factor = index + 2 if index < size - 1 else 1 - sum(range(2, size + 1))
        return np.asarray(part * factor, part.dtype)
    return np.full_like(part, ABSENT) if kind.symbol == "@" and index != kind.holder else part


def join(
    move: Move, parts: Sequence[Array], side: int = 1, copy: Mapping[str, int] | None = None
) -> Array:
    """Return the global tensor of the local tensors on a side.

    ``copy`` gives the coordinate whose copy is read, by axis; 0 if it is left out.
    """
    cut, entries = _side(move, side)
    order = [dim for entry in entries for dim in entry]
    whole = np.zeros(cut.sizes, parts[0].dtype)
    for coordinate, part in zip(coordinates(move), parts, strict=True):
        if all(_is_read(axis, coordinate[axis], move, side, copy or {}) for axis in coordinate):
            shape = cut.shape(coordinate)
            local = part.reshape([shape[dim] for dim in order])
            whole[_index(cut, coordinate)] += local.transpose(np.argsort(order))
    return _reordered(move, whole, side, back=True)


def _is_read(axis: str, index: int, move: Move, side: int, copy: Mapping[str, int]) -> bool:
    kind = move.type_of[axis][side]
    if kind.symbol == "@":
        return index == kind.holder
    return kind.symbol in "/+" or index == copy.get(axis, 0)


def _side(move: Move, side: int) -> tuple[Cut, Entries]:
    return move.shown(side), move.right_entries if side else move.left_entries


def _index(cut: Cut, coordinate: Mapping[str, int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in cut.region(coordinate))


def _reordered(move: Move, whole: Array, side: int, *, back: bool) -> Array:
    """Return a global tensor with the dims that a side cuts in the order of their plans."""
    for dim, plan, whole_first in move.reorderings:
        if whole_first == bool(side):
            whole = _in_order(whole, dim, plan, back=back)
    return whole


def _in_order(whole: Array, dim: int, plan: SequencePlan, *, back: bool) -> Array:
    """Return a tensor with a dim in the order of a plan, with its padding, or back."""
    inverse = plan.inverse()
    if back:
        return np.take(whole, inverse[: plan.length], dim)
    padding = [(0, (plan.padded - plan.length) * (number == dim)) for number in range(whole.ndim)]
    return np.take(np.pad(whole, padding), np.argsort(inverse), dim)


# ------------------------------------------------------------------ running a plan


def run_plan(plan: Plan, parts: Sequence[Array], op: str = "sum") -> Parts:
    """Return the local tensors of all ranks after the steps of a plan."""
    ranks = [*coordinates(plan.move)]
    values = [*parts]
    for step in plan.steps:
        operations = [step.op(coordinate) for coordinate in ranks]
        if isinstance(operations[0], ops.Collective | ops.AllToAll | ops.Route):
            values = _communicate(ranks, operations, values, op)
        else:
            values = [_run_local(o, v) for o, v in zip(operations, values, strict=True)]
    return values


def _run_local(operation: ops.Op, value: Array) -> Array:
    if isinstance(operation, ops.Arrange):
        value = value if operation.shape is None else value.reshape(operation.shape)
        return value if operation.order is None else value.transpose(operation.order)
    if isinstance(operation, ops.Take):
        return value[operation.index]
    if isinstance(operation, ops.Fill):
        filled = np.zeros(operation.shape, value.dtype)
        filled[operation.index] = value
        return filled
    if isinstance(operation, ops.Reorder):
        return _in_order(value, operation.dim, operation.plan, back=operation.back)
    return value if getattr(operation, "is_kept", True) else np.zeros_like(value)


def _communicate(
    ranks: Sequence[Mapping[str, int]], operations: Sequence[ops.Op], values: Parts, op: str
) -> Parts:
    """Run a collective in each of its groups."""
    axes: tuple[str, ...] = operations[0].axes  # type: ignore[union-attr]
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for number, coordinate in enumerate(ranks):
        others = tuple((axis, index) for axis, index in coordinate.items() if axis not in axes)
        groups.setdefault(others, []).append(number)
    result: Parts = list(values)
    for members in groups.values():
        own = [operations[member] for member in members]
        received = _run_group(own, [values[member] for member in members], op)
        for member, value in zip(members, received, strict=True):
            result[member] = value
    return result


def _run_group(operations: Sequence[Any], values: Parts, op: str) -> Parts:
    first = operations[0]
    if isinstance(first, ops.Collective):
        return _run_collective(first, values, op)
    exchange = _exchange_regions if isinstance(first, ops.Route) else _exchange_blocks
    return [exchange(operations, values, number) for number in range(len(values))]


def _run_collective(operation: ops.Collective, values: Parts, op: str) -> Parts:
    if operation.kind == "all_gather":
        return [np.stack(values).reshape(operation.shape)] * len(values)
    if operation.kind == "broadcast":
        return [values[operation.root]] * len(values)
    total = REDUCTIONS[op](np.stack(values), axis=0).astype(values[0].dtype)
    if operation.kind == "reduce_scatter":
        blocks = total.reshape(operation.size, -1)
        return [block.reshape(operation.shape) for block in blocks]
    if operation.kind == "reduce":
        return [total if i == operation.root else value for i, value in enumerate(values)]
    return [total] * len(values)


def _exchange_blocks(operations: Sequence[ops.AllToAll], values: Parts, number: int) -> Array:
    """Return the blocks that a rank receives in an all_to_all, in the order of the group."""
    blocks = []
    for operation, value in zip(operations, values, strict=True):
        equal = (value.size // len(values),) * len(values)
        sends = operation.sends or equal
        start = sum(sends[:number])
        blocks.append(value.ravel()[start : start + sends[number]])
    return np.concatenate(blocks).reshape(operations[number].shape)


def _exchange_regions(operations: Sequence[ops.Route], values: Parts, number: int) -> Array:
    """Return the sum of the regions that a rank receives."""
    result = np.zeros(operations[number].shape, values[0].dtype)
    for sender, (operation, value) in enumerate(zip(operations, values, strict=True)):
        sent, received = operation.sends[number], operations[number].receives[sender]
        if sent is not None and received is not None:
            result[received] += value[sent]
    return result
