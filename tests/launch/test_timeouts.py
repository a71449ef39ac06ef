"""Timeouts as callers pass them, and as errors show them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import meshkit
from meshkit.launch.timeouts import format_timeout, parse_timeout


@pytest.mark.parametrize("value", [30, 30.0, np.int64(30), np.float32(30), timedelta(seconds=30)])
def test_seconds_and_timedelta_are_equal(value: Any) -> None:
    assert parse_timeout("timeout", value) == timedelta(seconds=30)


def test_none_stays_none() -> None:
    assert parse_timeout("timeout", None) is None


@pytest.mark.parametrize(
    "value",
    [
        0,
        1e-7,
        -1,
        True,
        float("inf"),
        float("nan"),
        "30",
        timedelta(0),
        1e300,
        10**400,
        timedelta.max,
    ],
)
def test_an_invalid_timeout_is_an_error(value: Any) -> None:
    with pytest.raises(meshkit.SpecError) as caught:
        parse_timeout("timeout", value)
    assert str(caught.value) == (
        f"timeout is {value!r}.\n"
        "  A timeout is a positive number of seconds, or a timedelta.\n"
        "  Fix: timeout=60."
    )


def test_a_timeout_as_text() -> None:
    texts = [format_timeout(time) for time in (None, timedelta(minutes=5), timedelta(seconds=0.5))]
    assert texts == ["default", "300 s", "0.5 s"]
