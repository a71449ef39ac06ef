"""Integers, indices and arrays of them as callers pass them; divisors.

Everything with ``__index__`` is an integer, except a bool.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Ints
from .call import changes, format_value
from .errors import CALL, CoordinateError, SpecError
from .text import article, count_noun, plural

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MAX_FACTOR = 10**6  # the largest factor tried, so that an error does not take minutes


def parse_integer(value: object) -> int | None:
    """Return an integer as a plain int; None for a bool, a float, a str and everything else."""
    if type(value) is int:  # the usual case; the rest is several times slower
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def is_number(value: object) -> bool:
    """Return whether a value is a real number of Python or numpy, and not a bool."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order; beyond 10**12 those with a factor up to 10**6."""
    small = [n for n in range(1, min(math.isqrt(number), MAX_FACTOR) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def check_integer(name: str, value: object, *, axis: str | None = None) -> int:
    """Return an integer as a plain int."""
    number = parse_integer(value)
    if number is None:
        kind = article(type(value).__name__)
        raise CoordinateError(
            f"{name} is {format_value(value)}, {kind}.",
            fix=f"pass {name} as an int.",
            axis=axis,
            index=value,
        )
    return number


def check_index(axis: str, value: object, size: int) -> int:
    """Return an index along an axis as a plain int."""
    index = value if type(value) is int else check_integer(axis, value, axis=axis)
    if not 0 <= index < size:
        raise CoordinateError(
            f"{axis}={index} is outside the axis.",
            f"{axis} has {size} {'index' if size == 1 else 'indices'}, 0 to {size - 1}.",
            fix=f"{axis}={min(max(index, 0), size - 1)}.",
            axis=axis,
            index=index,
            size=size,
        )
    return index


def check_integers(name: str, values: ArrayLike) -> Ints:
    """Return the values as an int64 array of their shape."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        line = f"{name} are {array.dtype}, not integers."
        raise CoordinateError(line, fix=f"{name}.astype(int).")
    return array.astype(np.int64, copy=False)


def check_coordinate_complete(coordinate: Collection[str], axes: tuple[str, ...]) -> None:
    """Check that a coordinate names every axis."""
    missing = [axis for axis in axes if axis not in coordinate]
    if missing:
        fix = f"{changes(**dict.fromkeys(missing, 0))}."
        line = f"{CALL} leaves out {', '.join(missing)}."
        raise CoordinateError(line, fix=fix, axis=missing[0])


def check_divides(num_ranks: int, num_nodes: int) -> None:
    """Check that ranks divide evenly over nodes."""
    if num_ranks % num_nodes == 0:
        return
    valid = divisors(num_ranks)
    below = max(n for n in valid if n < num_nodes)
    nearest = [below, *(n for n in valid if n > num_nodes)][:2]
    verb = "does" if num_ranks == 1 else "do"
    ranks, nodes = count_noun(num_ranks, "rank"), count_noun(num_nodes, "node")
    line = f"{ranks} {verb} not divide over {nodes}."
    fix = f"{' or '.join(map(str, nearest))} {plural('node', nearest[-1])}."
    raise SpecError(line, fix=fix, world_size=num_ranks)
