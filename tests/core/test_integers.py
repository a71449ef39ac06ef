"""What counts as an integer."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit.core.integers import integer


class Four:
    def __index__(self) -> int:
        return 4


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4), np.array(4), Four()])
def test_whatever_says_that_it_is_one(value: object) -> None:
    found = integer(value)
    assert found == 4
    assert type(found) is int


@pytest.mark.parametrize("value", [True, False, np.True_, 4.0, np.float64(4), "4", None, [4], b"4"])
def test_what_is_none(value: object) -> None:
    assert integer(value) is None


def test_zero_and_negative_ones_and_large_ones() -> None:
    assert [integer(value) for value in (0, -1, 2**80)] == [0, -1, 2**80]
