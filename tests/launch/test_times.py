"""Timeouts, deadlines, and work in a thread of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

import meshkit
from meshkit.launch.times import (
    Deadline,
    DeadlineExceededError,
    parse_timeout,
    run_with_deadline,
    wait_for_abandoned,
)
from tests.promises import BUSY


def wait_for_threads(number: int) -> None:
    """Wait until this process has no more threads than a number."""
    limit = Deadline.after(10)
    while len(os.listdir("/proc/self/task")) > number:
        assert limit.sleep(0.01)


def test_work_may_ask_once_for_more_time() -> None:
    asked: list[float] = []

    def extend(seconds: float) -> float:
        asked.append(seconds)
        has_asked.set()
        return seconds

    has_asked = threading.Event()
    work = partial(has_asked.wait, 60)
    assert run_with_deadline(0.01, work, extend=partial(extend, 10 + BUSY))
    for more in (0, 0.05):
        with pytest.raises(DeadlineExceededError):
            run_with_deadline(0.01, partial(time.sleep, 1 + BUSY), extend=partial(extend, more))
    assert asked == [10 + BUSY, 0, 0.05]


def test_work_that_ends_while_it_asks_for_time_is_in_time() -> None:
    before, has_asked = len(os.listdir("/proc/self/task")), threading.Event()

    def extend() -> float:
        has_asked.set()
        wait_for_threads(before)
        return 0

    assert run_with_deadline(0.01, partial(has_asked.wait, 60), extend=extend)


def test_the_result_and_the_error_of_the_work_pass_through() -> None:
    before = len(os.listdir("/proc/self/task"))
    assert run_with_deadline(5, lambda: run_with_deadline(5, lambda: 42)) == 42
    for error in (ZeroDivisionError, TimeoutError):
        with pytest.raises(error):
            run_with_deadline(5, lambda error=error: (_ for _ in ()).throw(error).send(None))  # type: ignore[misc]
    wait_for_threads(before)


def test_a_process_with_an_abandoned_thread_exits_at_once() -> None:
    code = """
import time
from meshkit.launch.times import DeadlineExceededError, run_with_deadline
try:
    run_with_deadline(0.1, lambda: time.sleep(60))
except DeadlineExceededError:
    print("late")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "late\n", "")


def test_a_late_result_is_undone_and_a_late_error_is_dropped() -> None:
    before, end, late = len(os.listdir("/proc/self/task")), threading.Event(), list[float]()

    def divide(number: int) -> float:
        end.wait(30)
        return 1 / number

    for number in (2, 0):
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            run_with_deadline(0.01, lambda n=number: divide(n), late=late.append)  # type: ignore[misc]
        assert time.monotonic() - began < 5 + BUSY
    wait_for_abandoned(Deadline.after(0.05))
    assert late == []
    end.set()
    wait_for_abandoned(Deadline.after(10))
    wait_for_threads(before)
    assert late == [0.5]


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


def test_a_deadline_counts_down_and_sleeps_only_if_there_is_time() -> None:
    limit, began = Deadline.after(timedelta(seconds=30)), time.monotonic()
    assert 29 < limit.left <= 30
    assert (str(limit), limit.expired) == ("30 s", False)
    assert limit.sleep(0.01)
    assert not limit.sleep(40)
    assert 0.01 <= time.monotonic() - began < 4 + BUSY
    over = Deadline.after(0)
    assert (over.left, over.expired, over.sleep(30)) == (0, True, False)


@pytest.mark.parametrize("value", [30, 30.0, np.int64(30), np.float32(30), timedelta(seconds=30)])
def test_seconds_and_timedelta_are_equal(value: Any) -> None:
    assert parse_timeout("timeout", value) == timedelta(seconds=30)
    assert parse_timeout("timeout", None) is None


@pytest.mark.parametrize(
    ("value", "fix"),
    [("60", "60"), ("90s", "90"), ("1.5", "1.5"), ("2 min", "120"), ("1h", "3600"), ("soon", "60")],
)
def test_the_fix_of_a_timeout_in_text_has_its_seconds(value: Any, fix: str) -> None:
    with pytest.raises(meshkit.SpecError) as caught:
        parse_timeout("timeout", value)
    assert caught.value.fix == f"timeout={fix}."


INVALID = [0, 1e-7, -1, True, float("inf"), float("nan"), "30", timedelta(0), 1e300, 10**400]


@pytest.mark.parametrize("value", [*INVALID, timedelta.max])
def test_an_invalid_timeout_is_an_error(value: Any) -> None:
    with pytest.raises(meshkit.SpecError, match="timeout is"):
        parse_timeout("timeout", value)
