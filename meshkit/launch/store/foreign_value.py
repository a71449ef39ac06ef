"""The error of a value at the store that no rank wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ...core.errors import LaunchError

Value = TypeVar("Value")
FAULTS = AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError
MAX_DIGITS = 15  # of a number that ranks count
MAX_SHOWN = 60  # characters of the value that the error shows


@contextmanager
def reading(key: str, value: str | bytes) -> Iterator[None]:
    """Raise an error that names the key if the block cannot read its value."""
    try:
        yield
    except FAULTS as error:
        raise foreign_value_error(key, value) from error


def read_value(key: str, value: str | bytes, parse: Callable[[str], Value]) -> Value:
    """Return the value of a key, parsed."""
    try:
        return parse(value if isinstance(value, str) else value.decode())
    except FAULTS as error:
        raise foreign_value_error(key, value) from error


def read_number(key: str, value: str | bytes) -> int:
    """Return the value of a key as a number, 0 or more."""
    if not value.isdigit() or len(value) > MAX_DIGITS:
        raise foreign_value_error(key, value)
    return int(value)


def foreign_value_error(key: str, value: str | bytes) -> LaunchError:
    """Return the error of a value that no rank of the job wrote."""
    shown = repr(value[:MAX_SHOWN]) + "..." * (len(value) > MAX_SHOWN)
    return LaunchError(
        f"the key {key!r} of the job's store has a value that no rank wrote.",
        f"It is {len(value)} bytes: {shown}.",
        "Something else writes to this store.",
        fix="give the job a port or a file of its own: export MASTER_PORT=<a free port> on all "
        "ranks, or init_method=.",
    )
