"""Timeouts, deadlines, and work in a thread of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def wait_for_threads(number: int) -> None:
    """Wait until this process has no more threads than a number."""
    limit = Deadline.after(10)
    while num_threads() > number:
        assert limit.sleep(0.01)


def test_the_result_and_the_error_of_the_work_pass_through() -> None:
    assert run_with_deadline(5, lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        run_with_deadline(5, lambda: 1 // 0)


def test_no_thread_is_left_after_the_work() -> None:
    before, listed = num_threads(), threading.enumerate()
    idents = {run_with_deadline(5, threading.get_ident) for _ in range(20)}
    assert threading.get_ident() not in idents
    wait_for_threads(before)
    assert threading.enumerate() == listed


def test_work_inside_work_and_work_of_other_threads_have_threads_of_their_own() -> None:
    def inner() -> tuple[int, int]:
        return threading.get_ident(), run_with_deadline(5, threading.get_ident)

    outer, nested = run_with_deadline(5, inner)
    assert outer != nested
    both = threading.Barrier(2, timeout=10)  # only two threads at a time pass it
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(run_with_deadline, 10, both.wait) for _ in range(2)]
    assert {call.result() for call in calls} == {0, 1}


def test_a_tracer_and_a_profiler_of_all_threads_see_the_work() -> None:
    """Coverage and debuggers follow calls of the store."""
    names, traced = list[str](), list[str]()

    def work() -> int:
        return 42

    threading.setprofile(lambda frame, *_: names.append(frame.f_code.co_name))
    threading.settrace(lambda frame, *_: traced.append(frame.f_code.co_name))
    try:
        run_with_deadline(5, work)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        threading.settrace(None)  # type: ignore[arg-type]
    assert "work" in names
    assert "work" in traced


def test_a_forked_child_starts_a_thread_of_its_own() -> None:
    run_with_deadline(5, lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        os._exit(run_with_deadline(5, lambda: 42))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_a_process_with_an_abandoned_thread_exits_at_once() -> None:
    code = """
from meshkit.launch.store.deadline import *
run_with_deadline(5, lambda: 42)
try:
    run_with_deadline(0.1, lambda: time.sleep(60))
except DeadlineExceededError:
    print("late")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "late\n", "")


@pytest.mark.parametrize(("work", "expected"), [(lambda: 42, [42]), (lambda: 1 // 0, [])])
def test_a_late_result_is_passed_on_and_a_late_error_is_not(
    work: Callable[[], float], expected: list[float]
) -> None:
    end, results = threading.Event(), list[float]()

    def wait() -> float:
        end.wait(30)
        return work()

    before = num_threads()
    with pytest.raises(DeadlineExceededError):
        run_with_deadline(0.1, wait, late=results.append)
    end.set()
    wait_for_threads(before)
    assert results == expected


def test_a_timeout_error_of_the_work_passes_through() -> None:
    def late() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        run_with_deadline(5, late)


def test_work_that_does_not_end_is_abandoned_at_the_deadline() -> None:
    before = num_threads()
    end = threading.Event()
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        run_with_deadline(0.2, lambda: end.wait(30))
    assert 0.2 <= time.monotonic() - began < 5
    end.set()
    wait_for_threads(before)


def test_a_late_result_is_passed_on_and_a_late_error_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, end, late = num_threads(), threading.Event(), list[float]()

    def divide(number: int) -> float:
        end.wait(30)
        return 1 / number

    for number in (2, 0):
        with pytest.raises(DeadlineExceededError):
            run_with_deadline(0.01, lambda n=number: divide(n), late=late.append)  # type: ignore[misc]
    end.set()
    wait_for_threads(before)
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
    limit = Deadline.after(timedelta(seconds=30))
    assert 29 < limit.left <= 30
    assert not limit.expired
    assert (str(limit), str(Deadline.after(1.5))) == ("30 s", "1.5 s")


def test_an_expired_deadline_has_no_time_left_and_does_not_sleep() -> None:
    limit = Deadline.after(0)
    assert (limit.left, limit.expired, limit.sleep(30)) == (0, True, False)


def test_a_sleep_longer_than_the_rest_does_not_begin() -> None:
    limit, began = Deadline.after(5), time.monotonic()
    assert limit.sleep(0.01)
    assert not limit.sleep(30)
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
