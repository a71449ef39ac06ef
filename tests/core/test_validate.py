"""Integers, indices and arrays of them as callers pass them; divisors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError
from meshkit.core.validate import (
    check_coordinate_complete,
    check_index,
    check_integer,
    check_integers,
    divisors,
    is_number,
    parse_integer,
)


class Four:
    def __index__(self) -> int:
        return 4


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4), np.array(4), Four()])
def test_everything_with_an_index_method_is_an_integer(value: object) -> None:
    number = parse_integer(value)
    assert number == 4
    assert type(number) is int


@pytest.mark.parametrize("value", [True, False, np.True_, 4.0, np.float64(4), "4", None, [4], b"4"])
def test_other_values_are_no_integers(value: object) -> None:
    assert parse_integer(value) is None


def test_zero_negative_and_large_integers() -> None:
    assert [parse_integer(value) for value in (0, -1, 2**80)] == [0, -1, 2**80]


@settings(deadline=None, max_examples=60, database=None)
@given(st.integers(1, 3000))
def test_divisors_equal_those_of_trial_division(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


def test_divisors_of_a_large_number_are_limited() -> None:
    few = [2**n for n in range(20)]  # those below a million
    assert divisors(2**62) == (*few, *(2**62 // n for n in reversed(few)))


@pytest.mark.parametrize("value", [3, np.int32(3), np.array(3)])
def test_check_integer_returns_a_plain_int(value: object) -> None:
    assert type(check_integer("rank", value)) is int
    assert check_integer("rank", value) == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None])
def test_check_integer_raises_an_error_with_the_value(value: object) -> None:
    with pytest.raises(CoordinateError) as caught:
        check_integer("rank", value)
    assert caught.value.index is value


@pytest.mark.parametrize("index", [0, 3])
def test_the_first_and_last_index_of_an_axis(index: int) -> None:
    assert check_index("dp", index, 4) == index


@pytest.mark.parametrize(("index", "nearest"), [(-1, 0), (4, 3), (2**70, 3)])
def test_an_index_outside_raises_an_error_with_the_nearest_one(index: int, nearest: int) -> None:
    with pytest.raises(CoordinateError) as caught:
        check_index("dp", index, 4)
    assert (caught.value.axis, caught.value.index, caught.value.size) == ("dp", index, 4)
    assert caught.value.fix == f"dp={nearest}."


def test_check_integers_keeps_the_shape() -> None:
    array = check_integers("ranks", np.array([[1, 2]], dtype=np.uint8))
    assert array.dtype == np.int64
    assert array.tolist() == [[1, 2]]
    assert check_integers("ranks", []).tolist() == []
    with pytest.raises(CoordinateError, match="ranks are float64, not integers"):
        check_integers("ranks", [1.0])


def test_a_coordinate_must_name_every_axis() -> None:
    check_coordinate_complete({"tp": 0, "dp": 1}, ("dp", "tp"))
    with pytest.raises(CoordinateError) as caught:
        check_coordinate_complete({"sp": 0}, ("dp", "sp", "tp"))
    assert caught.value.axis == "dp"
    assert str(caught.value).startswith("this call leaves out dp, tp.")


def test_numbers_are_real_and_no_bool() -> None:
    assert all(is_number(value) for value in (0, 1.5, np.float32(1), np.int8(1)))
    assert not any(is_number(value) for value in (True, "1", None, 1j, [1]))
