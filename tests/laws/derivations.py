"""Second derivations of the formulas of meshkit, which share no code with it.

They use plain integers (the rule of Horner, and divmod over strides) or numpy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from meshkit import Layout

law = settings(deadline=None, max_examples=60, database=None)


@st.composite
def factorizations(draw: st.DrawFn, number: int) -> dict[str, int]:
    """Return sizes whose product is a number, the outermost first."""
    sizes = []
    while number > 1 and len(sizes) < 4:
        size = draw(st.sampled_from([n for n in range(1, number + 1) if number % n == 0]))
        sizes.append(size)
        number //= size
    return {f"v{index}": size for index, size in enumerate([*sizes, number])}


def index_tuples(layout: Layout) -> Iterator[tuple[int, ...]]:
    """Return every index tuple, the last index fastest."""
    return itertools.product(*(range(size) for size in layout.sizes.values()))


def horner(indices: Sequence[int], shape: Sequence[int]) -> int:
    """Return the row-major position of an index tuple, by the rule of Horner."""
    position = 0
    for index, size in zip(indices, shape, strict=True):
        position = position * size + index
    return position


def digits(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index tuple of a position, by divmod from the innermost axis outwards."""
    indices = []
    for size in reversed(shape):
        position, index = divmod(position, size)
        indices.append(index)
    return tuple(reversed(indices))


def groups_by_strides(layout: Layout, axes: Sequence[str]) -> list[list[int]]:
    """Return groups by plain ints: a dict of rows, keyed by the indices that all members share."""
    rows: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
    for position, rank in enumerate(map(int, layout.ranks)):
        coordinate = dict(zip(layout.axes, digits(position, layout.shape), strict=True))
        fixed = tuple(index for axis, index in coordinate.items() if axis not in axes)
        rows.setdefault(fixed, {})[tuple(coordinate[axis] for axis in axes)] = rank
    return [[row[key] for key in sorted(row)] for _, row in sorted(rows.items())]


def groups_by_numpy(layout: Layout, axes: Sequence[str]) -> np.ndarray:
    """Return groups by a transpose and a reshape: (num_groups, group_size)."""
    grid = np.array(layout.ranks).reshape(layout.shape)
    dims = [layout.axes.index(axis) for axis in axes]
    outer = [dim for dim in range(grid.ndim) if dim not in dims]
    group_size = math.prod(layout.shape[dim] for dim in dims)
    return grid.transpose(*outer, *dims).reshape(-1, group_size)


def members(rows: np.ndarray) -> set[tuple[int, ...]]:
    """Return the rows as tuples of ranks."""
    return {tuple(row) for row in rows.tolist()}
