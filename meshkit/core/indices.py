"""Ranks and indices as callers give them: refused with the numbers where they cannot be."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from .call import Call
from .errors import CoordinateError, told
from .integers import integer
from .seats import Ints, Seats
from .words import article, count_noun


def check_integer(call: Call | str, what: str, value: object, *, axis: str | None = None) -> int:
    """The value as a plain int.

    Raises:
        CoordinateError: for a bool, a float, a str and everything else that is no integer.
    """
    number = integer(value)
    if number is None:
        kind = article(type(value).__name__)
        text = told(f"{call}: {what} is {value!r}, {kind}.", fix=f"pass {what} as an int.")
        raise CoordinateError(text, axis=axis, index=value)
    return number


def check_index(call: Call, axis: str, value: object, size: int) -> int:
    """An index along an axis as a plain int.

    Raises:
        CoordinateError: where it is not from 0 to ``size - 1``.
    """
    index = check_integer(call, axis, value, axis=axis)
    if not 0 <= index < size:
        text = told(
            f"{call}: {axis}={index} is outside the axis.",
            f"{axis} has {size} {'index' if size == 1 else 'indices'}, 0 to {size - 1}.",
            fix=f"{call.but(**{axis: min(max(index, 0), size - 1)})}.",
        )
        raise CoordinateError(text, axis=axis, index=index, size=size)
    return index


def check_integers(call: Call | str, what: str, values: ArrayLike) -> Ints:
    """The values as an int64 array of their shape.

    Raises:
        CoordinateError: for an array of anything but integers.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        line = f"{call}: {what} are {array.dtype}, not integers."
        raise CoordinateError(told(line, fix=f"{what}.astype(int)."))
    return array.astype(np.int64, copy=False)


def check_none_left_out(call: Call, given: Collection[str], axes: tuple[str, ...]) -> None:
    """Refuse a coordinate that does not name every axis.

    Raises:
        CoordinateError: with the axes that are left out.
    """
    missing = [axis for axis in axes if axis not in given]
    if missing:
        fix = f"{call.but(**dict.fromkeys(missing, 0))}."
        line = f"{call} leaves out {', '.join(missing)}."
        raise CoordinateError(told(line, fix=fix), axis=missing[0])


def not_inside(name: str, rank: int, layout: object, seats: Seats) -> CoordinateError:
    """The error of a rank that has no place in a layout."""
    text = told(
        f"{name}: rank {rank} is not in {layout!r}.",
        f"It has {count_noun(len(seats), 'rank')}, {seats}.",
        fix=f"a rank {seats}.",
    )
    return CoordinateError(text, index=rank, size=len(seats))
