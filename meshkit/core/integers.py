"""What counts as an integer: everything that says it is one, except a bool; and what divides it."""

from __future__ import annotations

import math
import operator

import numpy as np

TRIED = 10**6  # factors, so that an error does not take minutes


def integer(value: object) -> int | None:
    """The value as a plain int; None for a bool, a float, a str and everything else.

    Example:
        >>> integer(4), integer(np.int64(4)), integer(True), integer(4.0), integer("4")
        (4, 4, None, None, None)
    """
    if type(value) is int:  # nearly always; what follows takes several times as long
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def is_number(value: object) -> bool:
    """Return whether a value is a real number of Python or numpy, and not a bool.

    Example:
        >>> is_number(4), is_number(np.float32(0.5)), is_number(True), is_number("4")
        (True, True, False, False)
    """
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, in ascending order; beyond 10**12 those with a factor of 10**6 or less.

    Example:
        >>> divisors(12)
        (1, 2, 3, 4, 6, 12)
    """
    small = [n for n in range(1, min(math.isqrt(number), TRIED) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))
