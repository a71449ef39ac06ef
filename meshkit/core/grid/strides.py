"""Axes as sizes and strides: where the members of a group stand, in O(axes).

A step along an axis moves a position by the stride of that axis::

    dp=4 sp=2 tp=2      dp: 4 steps of 4      sp: 2 steps of 2      tp: 2 steps of 1

    (dp, sp)  is  4 of 4, then 2 of 2: 0 2 4 6 8 10 12 14, the same as 8 steps of 2
    (sp, tp)  is  2 of 2, then 2 of 1: 0 1 2 3, the same as 4 steps of 1
    (tp, sp)  is  2 of 1, then 2 of 2: 0 2 1 3, and cannot be said in fewer

Said in as few steps as can be, equal strides mean equal groups, also between two factorizations
of the same ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..arrays import Ints

Strided = tuple[tuple[str, int, int], ...]  # axis, size, stride; the outermost first
Strides = tuple[tuple[int, int], ...]  # size, stride; the outermost first

BLOCK = 8192  # positions at once: 64 KiB of int64


def axis_strides(sizes: Mapping[str, int], num_ranks: int) -> Strided:
    """Each axis with its size and its stride in row-major order.

    Example:
        >>> axis_strides({"dp": 4, "sp": 2}, 8)
        (('dp', 4, 2), ('sp', 2, 1))
    """
    found = []
    for axis, size in sizes.items():
        num_ranks //= size
        found.append((axis, size, num_ranks))
    return tuple(found)


def select(axes: Strided, names: Iterable[str]) -> Strides:
    """Size and stride of some axes, in the order of the names."""
    known = {axis: (size, stride) for axis, size, stride in axes}
    return tuple([known[name] for name in names])


def coalesce(steps: Strides) -> Strides:
    """The same positions in as few steps as can be.

    Args:
        steps: size and stride of each axis, the last the fastest.

    Example:
        >>> coalesce(((4, 4), (1, 4), (2, 2))), coalesce(((2, 1), (2, 2)))
        (((8, 2),), ((2, 1), (2, 2)))
    """
    found: list[tuple[int, int]] = []
    for size, stride in steps:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def offsets(steps: Strides) -> Ints:
    """Where the members of a group stand from its first, int64 (group_size,).

    Example:
        >>> offsets(((2, 1), (2, 2))).tolist()
        [0, 2, 1, 3]
    """
    found = np.zeros(1, dtype=np.int64)
    for size, stride in steps:
        found = np.add.outer(found, np.arange(size, dtype=np.int64) * stride).ravel()
    return found


def group_start(position: int, steps: Strides) -> int:
    """The position at which the group of a position begins: index 0 on each of its axes."""
    return position - sum(position // stride % size * stride for size, stride in steps)


def indices(positions: Ints, axes: Strided) -> Ints:
    """The index along each axis of many positions: int64 (*positions.shape, num_axes).

    Faster than numpy's ``unravel_index``: a whole block is divided by one number, and blocks are so
    short that what lies between stays in the cache.

    Example:
        >>> indices(np.array([5, 7]), axis_strides({"dp": 4, "sp": 2}, 8)).tolist()
        [[2, 1], [3, 1]]
    """
    flat = positions.reshape(-1)
    found = np.empty((len(flat), len(axes)), dtype=np.int64)
    for start in range(0, len(flat), BLOCK):
        rest, block = flat[start : start + BLOCK], found[start : start + BLOCK]
        for place, (_, _, stride) in enumerate(axes):
            index = rest // stride
            block[:, place] = index
            rest = rest - index * stride
    return found.reshape(*positions.shape, len(axes))


def shift_position(position: int, steps: Strides, shift: int, *, wrap: bool) -> int | None:
    """The position ``shift`` steps along an axis; None beyond its ends where not ``wrap``."""
    ((size, stride),) = steps
    here = position // stride % size
    if not wrap and not 0 <= here + shift < size:
        return None
    return position + ((here + shift) % size - here) * stride


def permuted_positions(shape: Sequence[int], chain: Sequence[tuple[int, int]]) -> Ints:
    """Return the positions of a grid in the order of a chain of factors, the last one fastest.

    Args:
        shape: the shape of the grid.
        chain: the factors of each axis. Their product is the axis size.

    Returns:
        int64 (positions,), each position once.

    Example:
        >>> permuted_positions((2, 4), ((1, 2), (0, 2), (1, 2))).tolist()
        [0, 1, 4, 5, 2, 3, 6, 7]
    """
    factors = [pair for pair in chain if pair[1] > 1]  # numpy arrays have few dims
    by_axis = sorted(range(len(factors)), key=lambda i: factors[i][0])  # stable: outermost first
    shape_by_axis = [factors[i][1] for i in by_axis]
    positions = np.arange(math.prod(shape), dtype=np.int64).reshape(shape_by_axis)
    return np.asarray(positions.transpose(np.argsort(by_axis)).ravel())
