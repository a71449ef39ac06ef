"""Ranks and indices as callers give them: refused with the numbers where they cannot be."""

from __future__ import annotations

from .call import Call
from .errors import CoordinateError, told
from .integers import integer
from .words import article


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
