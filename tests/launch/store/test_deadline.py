"""Work in a thread of its own, under a deadline."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from meshkit.launch.store.deadline import DeadlineExceededError, run_with_deadline


def test_what_it_returns_and_raises() -> None:
    assert run_with_deadline(5, lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        run_with_deadline(5, lambda: 1 // 0)
    assert [t for t in threading.enumerate() if t.name == "meshkit-waits"] == []


def test_a_time_out_of_the_work_itself_is_its_own() -> None:
    def late() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        run_with_deadline(5, late)


def test_work_that_does_not_end_is_left_at_the_deadline() -> None:
    end = threading.Event()
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        run_with_deadline(0.2, lambda: end.wait(30))
    assert 0.2 <= time.monotonic() - began < 5
    end.set()
    for thread in threading.enumerate():
        if thread.name == "meshkit-waits":
            thread.join(10)
            assert not thread.is_alive()


def test_an_error_does_not_keep_what_the_work_held() -> None:
    """Groups and descriptors are freed with the last reference, not with the next collection."""

    class Held:
        pass

    def fails(held: Held) -> None:
        raise ValueError("x")

    held = Held()
    seen = weakref.ref(held)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="x") as caught:
            run_with_deadline(5, lambda held=held: fails(held))  # type: ignore[misc]
        del held, caught
        assert seen() is None
    finally:
        gc.enable()
