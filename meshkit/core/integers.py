"""What counts as an integer: everything that says it is one, except a bool."""

from __future__ import annotations

import operator

import numpy as np


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
