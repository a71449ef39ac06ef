"""Progress: one line that is redrawn on a terminal, and a line every 30 s in a log."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable

import pytest

from meshkit.launch.progress import CLEAR, LOG_INTERVAL, REDRAW_INTERVAL, Progress, show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_30_s() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("meshkit check", stream, clock)
    for seconds in (0.0, 29.9, 30.0, 31.0, 59.9, 60.5):
        clock.now = 100.0 + seconds
        progress.show(f"{seconds} s have passed")
    progress.close()
    assert LOG_INTERVAL == 30
    assert stream.getvalue() == (
        "meshkit check: 30 s: 30.0 s have passed\nmeshkit check: 60 s: 60.5 s have passed\n"
    )


def test_a_terminal_has_one_line_that_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream, clock = Terminal(), Clock()
    progress = Progress("spawn", stream, clock)
    progress.show("0 of 2 ranks started")
    progress.show("1 of 2 ranks started")  # before the line is due
    clock.now += REDRAW_INTERVAL
    progress.show("2 of 2 ranks running, for a long time")
    progress.close()
    progress.close()
    lines = stream.getvalue().split(CLEAR)
    assert lines == ["", "spawn: 0 s: 0 of 2 ranks star", "spawn: 0 s: 2 of 2 ranks runn", ""]


def test_nothing_is_written_to_a_stream_that_fails_or_is_missing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    for stream in (Full(), None):
        progress = Progress("spawn", stream, Clock())
        progress.write_line("a")
        progress.show("b")
        assert progress.seconds_left == math.inf


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_thread_redraws_the_line_while_nothing_else_happens() -> None:
    stream = Terminal()
    progress = Progress("search", stream)
    with show_progress(progress):
        progress.state = "works"
        wait_until(lambda: stream.getvalue().count("works") == 2)
    assert stream.getvalue().endswith(CLEAR)
