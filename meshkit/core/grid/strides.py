"""Sizes and strides of axes: the positions of the members of a group, in O(axes).

A step along an axis moves a position by the stride of that axis::

    dp=4 sp=2 tp=2      dp: 4 steps of 4      sp: 2 steps of 2      tp: 2 steps of 1

    (dp, sp)  is  4 of 4, then 2 of 2: 0 2 4 6 8 10 12 14, the same as 8 steps of 2
    (sp, tp)  is  2 of 2, then 2 of 1: 0 1 2 3, the same as 4 steps of 1
    (tp, sp)  is  2 of 1, then 2 of 2: 0 2 1 3, which is no single step

With as few steps as possible, equal strides mean equal groups, also between two factorizations of
the same ranks: see :meth:`meshkit.Layout.strides`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..arrays import Ints

AxisStrides = tuple[tuple[str, int, int], ...]  # axis, size, stride; the outermost first
Strides = tuple[tuple[int, int], ...]  # size, stride; the outermost first


def offsets(steps: Strides) -> Ints:
    """Return the distance of each member of a group from its first one: int64 (group_size,)."""
    distances = np.zeros(1, dtype=np.int64)
    for size, stride in steps:
        distances = np.add.outer(distances, np.arange(size, dtype=np.int64) * stride).ravel()
    return distances


def group_start(position: int, steps: Strides) -> int:
    """Return the first position of a position's group: index 0 on each of its axes."""
    return position - sum(position // stride % size * stride for size, stride in steps)


def indices(positions: Ints, shape: Sequence[int]) -> Ints:
    """Return the index along each axis of many positions: int64 (*positions.shape, num_axes)."""
    return np.stack(np.unravel_index(positions, tuple(shape)), axis=-1).astype(np.int64, copy=False)


def shift_position(position: int, size: int, stride: int, shift: int, *, wrap: bool) -> int | None:
    """Return the position ``shift`` steps along an axis; None beyond its ends without ``wrap``."""
    index = position // stride % size
    if not wrap and not 0 <= index + shift < size:
        return None
    return position + ((index + shift) % size - index) * stride


def permuted_positions(shape: Sequence[int], chain: Sequence[tuple[int, int]]) -> Ints:
    """Return the positions of a grid in the order of a chain of factors, the last one fastest.

    Example:
        >>> permuted_positions((2, 4), ((1, 2), (0, 2), (1, 2))).tolist()
        [0, 1, 4, 5, 2, 3, 6, 7]
    """
    factors = [pair for pair in chain if pair[1] > 1]  # numpy arrays have few dims
    by_axis = sorted(range(len(factors)), key=lambda i: factors[i][0])  # stable: outermost first
    shape_by_axis = [factors[i][1] for i in by_axis]
    positions = np.arange(math.prod(shape), dtype=np.int64).reshape(shape_by_axis)
    return np.asarray(positions.transpose(np.argsort(by_axis)).ravel())
