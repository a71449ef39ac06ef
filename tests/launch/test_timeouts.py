"""Times as callers give them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import meshkit
from meshkit.core.call import Call
from meshkit.launch.timeouts import parse_timeout

CALL = Call("init", kwargs={"timeout": 0})


@pytest.mark.parametrize("value", [30, 30.0, np.int64(30), np.float32(30), timedelta(seconds=30)])
def test_seconds_and_timedelta_are_the_same(value: Any) -> None:
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
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(meshkit.SpecError) as caught:
        parse_timeout("timeout", value)
    assert str(caught.value) == (
        f"init(timeout=0): timeout is {value!r}.\n"
        "  A timeout is a positive number of seconds, or a timedelta.\n"
        "  Fix: init(timeout=60)."
    )
