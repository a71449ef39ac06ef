"""Numbers as typed."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from meshkit.cli.options import read_counts, read_gigabytes, read_integer, read_seconds


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "nan", "inf", "1e10", "0.0005"])
def test_an_invalid_time(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        read_seconds(text)
    assert str(error.value) == f"{text!r} is not a number of seconds from 0.001 to 1e9"


def test_a_time() -> None:
    assert [read_seconds(text) for text in ("0.001", "60", "1e3")] == [0.001, 60, 1000]


@pytest.mark.parametrize("text", ["1234567890123456789", "-1234567890123456789"])
def test_a_number_of_too_many_digits(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        read_integer(text)
    assert str(error.value) == f"{text!r} has more than 18 digits"


def test_a_number_of_18_digits() -> None:
    assert read_integer("-" + "9" * 18) == -(10**18) + 1


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "nan", "inf", "1e6"])
def test_an_invalid_number_of_gigabytes(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        read_gigabytes(text)
    assert str(error.value) == f"{text!r} is not a number of GB above 0 and below a million"


def test_numbers_as_typed() -> None:
    assert read_counts("7,8") == (7, 8)
    assert [read_gigabytes(text) for text in ("80", "0.5")] == [80, 0.5]
