"""Times as callers give them: seconds or timedelta, always more than zero and finite."""

from __future__ import annotations

from datetime import timedelta
from numbers import Real

from ..core.call import Call
from ..core.errors import SpecError, told

Time = float | timedelta

LEAST = 0.001  # seconds; torch counts in milliseconds
MOST = 1e9  # seconds, some thirty years; sums of times stay far from any limit
ARRIVAL = timedelta(seconds=300)  # how long ranks wait for each other where nothing is said


def duration(call: Call, name: str, value: Time | None) -> timedelta | None:
    """A time as a timedelta; None stays None.

    Args:
        call: the call to quote.
        name: the argument.
        value: seconds, or a timedelta.

    Raises:
        SpecError: where it is not a finite number of seconds, a millisecond or more.
    """
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if number and LEAST <= seconds <= MOST:  # nan is neither
        return timedelta(seconds=float(seconds))
    text = told(
        f"{call}: {name} is {value!r}.",
        "A time is a number of seconds above zero, or a timedelta.",
        fix=f"{call.but(**{name: 60})}.",
    )
    raise SpecError(text)


def in_words(time: timedelta | None) -> str:
    """A time as errors show it; None is the backend's own default.

    Example:
        >>> in_words(timedelta(minutes=5)), in_words(None)
        ('300 s', 'default')
    """
    return "default" if time is None else f"{time.total_seconds():g} s"
