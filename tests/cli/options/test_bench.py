"""Sizes, operations and groups of ``meshkit bench``, as typed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from meshkit.bench.results import OPERATIONS
from meshkit.cli.bench import (
    SIZES,
    check_max_alone,
    format_size,
    read_max_alone,
    read_operations,
    read_size,
    read_sizes,
)

REFUSED: list[tuple[Callable[[str], object], str, str]] = [
    (read_size, "", "'' is not a number of bytes, such as 1024, 64K or 16M"),
    (read_size, "1T", "'1T' is not a number of bytes, such as 1024, 64K or 16M"),
    (read_size, "1.5K", "'1.5K' is not a number of bytes, such as 1024, 64K or 16M"),
    (read_size, "\u0661", "'\u0661' is not a number of bytes, such as 1024, 64K or 16M"),
    (read_sizes, "4:2", "'4:2' has no sizes from 1 byte to 1024G"),
    (read_sizes, "0", "'0' has no sizes from 1 byte to 1024G"),
    (read_sizes, "1:2:1", "'1:2:1' has no sizes from 1 byte to 1024G"),
    (read_sizes, "1:2:x", "'1:2:x' is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M"),
    (read_sizes, "1:2:3:4", "'1:2:3:4' is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M"),
    (read_max_alone, "0", "'0' is not a whole number of 1 or more"),
    (check_max_alone, "some", "'some' is not a whole number of 1 or more"),
    (read_operations, "reduce", f"'reduce' is not one of {', '.join(OPERATIONS)}"),
    (read_operations, "broadcast,", f"'' is not one of {', '.join(OPERATIONS)}"),
]


@pytest.mark.parametrize(("read", "text", "text_of_error"), REFUSED)
def test_an_invalid_text(read: Callable[[str], object], text: str, text_of_error: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        read(text)
    assert str(error.value) == text_of_error


def test_the_largest_sizes_are_read_as_they_are_formatted() -> None:
    for size in (2**40, 2**40 - 4, 10**12):
        assert read_size(format_size(size)) == size


def test_a_size_is_formatted_with_the_largest_unit_that_divides_it() -> None:
    assert [format_size(size) for size in (65536, 100, 3 << 30, 0)] == ["64K", "100", "3G", "0"]


def test_operations_and_groups_as_typed() -> None:
    assert read_operations("broadcast,all_reduce,broadcast") == ("broadcast", "all_reduce")
    assert [read_max_alone(text) for text in ("16", "all")] == [16, None]


def test_sizes_as_typed() -> None:
    assert read_sizes("1K:64K") == (1024, 4096, 16384, 65536)
    assert read_sizes("1K:4K:2") == (1024, 2048, 4096)
    assert read_sizes("1k:1M:1024") == (1024, 1048576)
    assert read_sizes("1G") == (2**30,)
    assert read_sizes(SIZES) == (1024, 16384, 262144, 4194304)
