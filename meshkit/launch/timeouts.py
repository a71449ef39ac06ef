"""Timeouts in seconds or as a timedelta: positive and finite."""

from __future__ import annotations

from datetime import timedelta
from numbers import Real

from ..core.errors import Change, SpecError

Time = float | timedelta

LEAST = 0.001  # seconds; torch's timeouts have millisecond resolution
MOST = 1e9  # seconds, about 30 years, so that sums of timeouts never overflow
ARRIVAL = timedelta(seconds=300)  # default time that ranks wait for each other


def parse_timeout(name: str, value: Time | None) -> timedelta | None:
    """Return a timeout as a timedelta; None stays None."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if number and LEAST <= seconds <= MOST:  # nan is neither
        return timedelta(seconds=float(seconds))
    raise SpecError(
        f"{name} is {value!r}.",
        "A timeout is a positive number of seconds, or a timedelta.",
        fix=(Change(**{name: 60}), "."),
    )


def format_timeout(time: timedelta | None) -> str:
    """Return a timeout as errors show it; None is the backend's default.

    Example:
        >>> format_timeout(timedelta(minutes=5)), format_timeout(None)
        ('300 s', 'default')
    """
    return "default" if time is None else f"{time.total_seconds():g} s"
