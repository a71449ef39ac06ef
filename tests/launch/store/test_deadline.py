"""Timeouts, deadlines, and work in a thread of its own."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import meshkit
from meshkit.launch.store.deadline import (
    Deadline,
    DeadlineExceededError,
    format_timeout,
    parse_timeout,
    run_with_deadline,
)


def waiting_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "meshkit-waits"}


def test_the_result_and_the_error_of_the_work_pass_through() -> None:
    before = waiting_threads()  # an earlier test may have abandoned one
    assert run_with_deadline(5, lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        run_with_deadline(5, lambda: 1 // 0)
    assert waiting_threads() <= before


def test_a_timeout_error_of_the_work_passes_through() -> None:
    def late() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        run_with_deadline(5, late)


def test_work_that_does_not_end_is_abandoned_at_the_deadline() -> None:
    before = waiting_threads()
    end = threading.Event()
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        run_with_deadline(0.2, lambda: end.wait(30))
    assert 0.2 <= time.monotonic() - began < 5
    end.set()
    for thread in waiting_threads() - before:
        thread.join(10)
        assert not thread.is_alive()


def test_a_late_result_is_passed_on_and_a_late_error_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, end, late = waiting_threads(), threading.Event(), list[float]()

    def divide(number: int) -> float:
        end.wait(30)
        return 1 / number

    for number in (2, 0):
        with pytest.raises(DeadlineExceededError):
            run_with_deadline(0.01, lambda n=number: divide(n), late=late.append)  # type: ignore[misc]
    end.set()
    for thread in waiting_threads() - before:
        thread.join(10)
    assert late == [0.5]
    assert not caplog.records  # concurrent.futures logs an error of a callback


def test_an_error_keeps_no_reference_to_the_work() -> None:
    """Groups and descriptors are freed with the last reference, not with the next collection."""

    class Resource:
        pass

    def fail(resource: Resource) -> None:
        raise ValueError("x")

    resource = Resource()
    reference = weakref.ref(resource)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="x") as caught:
            run_with_deadline(5, lambda resource=resource: fail(resource))  # type: ignore[misc]
        del resource, caught
        assert reference() is None
    finally:
        gc.enable()


def test_a_deadline_keeps_its_timeout_and_counts_down() -> None:
    deadline = Deadline.after(timedelta(seconds=30))
    assert 29 < deadline.left <= 30
    assert not deadline.expired
    assert (str(deadline), str(Deadline.after(1.5))) == ("30 s", "1.5 s")


def test_an_expired_deadline_has_no_time_left_and_does_not_sleep() -> None:
    deadline = Deadline.after(0)
    assert (deadline.left, deadline.expired, deadline.sleep(30)) == (0, True, False)


def test_a_sleep_longer_than_the_rest_does_not_begin() -> None:
    deadline, began = Deadline.after(5), time.monotonic()
    assert deadline.sleep(0.01)
    assert not deadline.sleep(30)
    assert 0.01 <= time.monotonic() - began < 4


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
