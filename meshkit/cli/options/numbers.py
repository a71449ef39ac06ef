"""Numbers as typed on a command line."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError

DIGITS = 18  # so that the number fits into int64
INTEGER = re.compile(rf"-?[0-9]{{1,{DIGITS}}}")


def read_count(text: str) -> int:
    """Read a number of ranks, nodes or samples, 1 or more."""
    return read_integer(text, least=1)


def read_integer(text: str, least: int | None = None) -> int:
    """Read a whole number."""
    if INTEGER.fullmatch(text) and (least is None or int(text) >= least):
        return int(text)
    if re.fullmatch("-?[0-9]+", text) and len(text.lstrip("-")) > DIGITS:
        raise ArgumentTypeError(f"{text!r} has more than {DIGITS} digits")
    limit = "" if least is None else f" of {least} or more"
    raise ArgumentTypeError(f"{text!r} is not a whole number{limit}")


def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers of 1 or more, separated by commas."""
    return tuple(read_count(part) for part in text.split(","))


def read_seconds(text: str) -> float:
    """Read a time in seconds, from 0.001 to 1e9."""
    number = _read_float(text)
    if not 0.001 <= number <= 1e9:  # nan fails every comparison, so it is rejected
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0.001 to 1e9")
    return number


def read_gigabytes(text: str) -> float:
    """Read a number of GB above 0 and below a million."""
    number = _read_float(text)
    if not 0 < number < 1e6:  # nan fails every comparison, so it is rejected
        raise ArgumentTypeError(f"{text!r} is not a number of GB above 0 and below a million")
    return number


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
