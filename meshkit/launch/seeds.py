"""Seed every random generator a trainer is likely to draw from."""

from __future__ import annotations

import random

import numpy as np
import torch

from ..core.call import Call
from ..core.errors import SpecError, told
from ..core.integers import integer


def check_seed(call: Call, seed: object) -> int | None:
    """The seed as a plain int; None stays None.

    Raises:
        SpecError: where it is not None and not an int from 0 to 2**32 - 1, numpy's range.
    """
    number = integer(seed)
    if seed is not None and (number is None or not 0 <= number < 2**32):
        text = told(
            f"{call}: seed is {seed!r}.",
            "Python, numpy and torch all take ints from 0 to 4294967295.",
            fix=f"{call.but(seed=0)}.",
        )
        raise SpecError(text)
    return number


def seed_all(seed: int) -> None:
    """Seed python's, numpy's and torch's global generators, those of accelerators included."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
