"""What counts as an integer, and what divides it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.validate import divisors, parse_integer


class Four:
    def __index__(self) -> int:
        return 4


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4), np.array(4), Four()])
def test_whatever_says_that_it_is_one(value: object) -> None:
    found = parse_integer(value)
    assert found == 4
    assert type(found) is int


@pytest.mark.parametrize("value", [True, False, np.True_, 4.0, np.float64(4), "4", None, [4], b"4"])
def test_what_is_none(value: object) -> None:
    assert parse_integer(value) is None


def test_zero_and_negative_ones_and_large_ones() -> None:
    assert [parse_integer(value) for value in (0, -1, 2**80)] == [0, -1, 2**80]


@settings(deadline=None, max_examples=60, database=None)
@given(st.integers(1, 3000))
def test_divisors_are_those_that_divide(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


def test_divisors_of_a_large_number_take_no_minutes() -> None:
    few = [2**n for n in range(20)]  # those below a million
    assert divisors(2**62) == (*few, *(2**62 // n for n in reversed(few)))
