"""Numbers as typed."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from meshkit.cli.options.numbers import read_gigabytes, read_seconds


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "nan", "inf", "1e99", "0.0001"])
def test_an_invalid_time(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        read_seconds(text)
    assert str(error.value) == f"{text!r} is not a number of seconds above zero"


def test_a_time() -> None:
    assert [read_seconds(text) for text in ("0.001", "60", "1e3")] == [0.001, 60, 1000]


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "nan", "inf", "1e6"])
def test_an_invalid_number_of_gigabytes(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        read_gigabytes(text)
    assert str(error.value) == f"{text!r} is not a number of GB above zero"
