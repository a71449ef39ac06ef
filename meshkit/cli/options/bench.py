"""The sizes, operations and groups of ``meshkit bench``, as typed."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from ...bench.results.collectives import OPERATIONS, sweep_sizes
from ...core.errors import SpecError
from .numbers import read_count

SIZES = "1K:16M:16"
FACTOR = 4
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # powers of two, as nccl-tests reads them


def read_size(text: str) -> int:
    """Read a number of bytes, with K, M or G for 2^10, 2^20 and 2^30."""
    match = re.fullmatch(r"([0-9]{1,13})([KMG]?)", text.upper(), re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1024, 64K or 16M")
    return int(match[1]) << UNITS[match[2]]


def format_size(number: int) -> str:
    """Return a number of bytes as :func:`read_size` reads it."""
    if number == 0:
        return "0"
    unit = next(unit for unit in reversed(UNITS) if number % (1 << UNITS[unit]) == 0)
    return f"{number >> UNITS[unit]}{unit}"


def read_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of a sweep: one size, or the least and the most with a factor between."""
    parts = text.split(":")
    if len(parts) > 3 or (len(parts) == 3 and not re.fullmatch("[0-9]{1,6}", parts[2], re.ASCII)):
        raise ArgumentTypeError(f"{text!r} is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M")
    least, most = read_size(parts[0]), read_size(parts[-1] if len(parts) == 1 else parts[1])
    try:
        return sweep_sizes(least, most, int(parts[2]) if len(parts) == 3 else FACTOR)
    except SpecError as error:
        raise ArgumentTypeError(f"{text!r} has no sizes from 1 byte to 1024G") from error


def check_sizes(text: str) -> str:
    """Return the text unchanged, as it is quoted in errors. Raises as :func:`read_sizes`."""
    read_sizes(text)
    return text


def read_operations(text: str) -> tuple[str, ...]:
    """Read operations that are separated by commas."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in OPERATIONS:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(OPERATIONS)}")
    return names


def read_max_alone(text: str) -> int | None:
    """Read the number of groups that are measured alone at most; None for all."""
    return None if text == "all" else read_count(text)


def check_max_alone(text: str) -> str:
    """Return the text unchanged, as it is quoted in errors. Raises as :func:`read_max_alone`."""
    read_max_alone(text)
    return text
