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

from meshkit import SequencePlan
from meshkit.redistribute.move import Cut, Entries, Move, local_shape
from meshkit.redistribute.pattern import AxisType
from meshkit.redistribute.plan import Plan
from meshkit.redistribute.steps import (
    AllToAll,
    Arrange,
    CollectiveStep,
    Fill,
    GroupStep,
    Keep,
    Reorder,
    Route,
    Step,
    Take,
)

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
        bound = [step.bind(coordinate) for coordinate in ranks]
        if isinstance(step, GroupStep):
            values = _communicate(ranks, bound, values, op)
        else:
            values = [_run_local(s, v) for s, v in zip(bound, values, strict=True)]
    return values


def _run_local(step: Step, value: Array) -> Array:
    match step:
        case Arrange(shape=shape, order=order):
            value = value if shape is None else value.reshape(shape)
            return value if order is None else value.transpose(order)
        case Take(index=index):
            return value[index]
        case Fill(shape=shape, index=index):
            filled = np.zeros(shape, value.dtype)
            filled[index] = value
            return filled
        case Reorder(dim=dim, plan=plan, back=back):
            return _in_order(value, dim, plan, back=back)
        case Keep(is_kept=is_kept):
            return value if is_kept else np.zeros_like(value)
    raise AssertionError(step)


def _communicate(
    ranks: Sequence[Mapping[str, int]], steps: Sequence[Any], values: Parts, op: str
) -> Parts:
    """Run a collective in each of its groups."""
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for number, coordinate in enumerate(ranks):
        others = tuple((a, index) for a, index in coordinate.items() if a not in steps[0].axes)
        groups.setdefault(others, []).append(number)
    result: Parts = list(values)
    for members in groups.values():
        own = [steps[member] for member in members]
        received = _run_group(own, [values[member] for member in members], op)
        for member, value in zip(members, received, strict=True):
            result[member] = value
    return result


def _run_group(steps: Sequence[Any], values: Parts, op: str) -> Parts:
    if isinstance(steps[0], CollectiveStep):
        return _run_collective(steps[0], values, op)
    exchange = _exchange_regions if isinstance(steps[0], Route) else _exchange_blocks
    return [exchange(steps, values, number) for number in range(len(values))]


def _run_collective(step: CollectiveStep, values: Parts, op: str) -> Parts:
    if step.kind == "all_gather":
        return [np.stack(values).reshape(step.shape)] * len(values)
    if step.kind == "broadcast":
        return [values[step.root_rank]] * len(values)
    total = REDUCTIONS[op](np.stack(values), axis=0).astype(values[0].dtype)
    if step.kind == "reduce_scatter":
        return [block.reshape(step.shape) for block in total.reshape(step.size, -1)]
    if step.kind == "reduce":
        return [total if i == step.root_rank else value for i, value in enumerate(values)]
    return [total] * len(values)


def block_sizes(shares: Sequence[int] | None, elements: int, num_ranks: int) -> list[int]:
    """Return the elements of a block for each rank, out of all elements that an exchange moves."""
    shares = [1] * num_ranks if shares is None else shares
    return [elements // sum(shares) * share for share in shares]


def _exchange_blocks(steps: Sequence[AllToAll], values: Parts, number: int) -> Array:
    """Return the blocks that a rank receives in an all_to_all, in the order of the group."""
    blocks = []
    for step, value in zip(steps, values, strict=True):
        sends = block_sizes(step.sends, value.size, len(values))
        start = sum(sends[:number])
        blocks.append(value.ravel()[start : start + sends[number]])
    return np.concatenate(blocks).reshape(steps[number].shape)


def _exchange_regions(steps: Sequence[Route], values: Parts, number: int) -> Array:
    """Return the sum of the regions that a rank receives."""
    result = np.zeros(steps[number].shape, values[0].dtype)
    for sender, (step, value) in enumerate(zip(steps, values, strict=True)):
        sent, received = step.sends[number], steps[number].receives[sender]
        if sent is not None and received is not None:
            result[received] += value[sent]
    return result
