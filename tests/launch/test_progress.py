"""Progress: one line that is redrawn on a terminal, a line every 30 s in a log; and colors."""

from __future__ import annotations

import io
import math
import time

import pytest

from meshkit.launch.progress import CLEAR, REDRAW_INTERVAL, Progress, show_progress, shows_colors


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> Terminal:
    stream = Terminal()
    stream.close()
    return stream


def test_a_log_gets_a_line_every_30_s() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("meshkit check", stream, clock)
    for seconds in (0.0, 29.9, 30.0, 31.0, 59.9, 60.5):
        clock.now = 100.0 + seconds
        progress.show(f"{seconds} s have passed")
    progress.close()
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


@pytest.mark.parametrize("stream", [Full(), closed(), None])
def test_nothing_is_written_to_a_stream_that_fails_or_is_missing(stream: io.StringIO) -> None:
    progress = Progress("spawn", stream, Clock())
    progress.write_line("a")
    progress.show("b")
    assert progress.seconds_left == math.inf


def test_a_thread_redraws_the_line_while_nothing_else_happens() -> None:
    stream = Terminal()
    progress, deadline = Progress("search", stream), time.monotonic() + 30
    with show_progress(progress):
        progress.state = "works"
        while stream.getvalue().count("works") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert stream.getvalue().endswith(CLEAR)


@pytest.mark.parametrize(
    ("stream", "environ", "colors"),
    [
        (Terminal(), {"TERM": "xterm-256color"}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "0"}, False),
        (closed(), {"TERM": "xterm"}, False),
        (None, {"TERM": "xterm"}, False),
    ],
)
def test_colors(stream: io.StringIO | None, environ: dict[str, str], colors: bool) -> None:
    assert shows_colors(stream, environ) is colors
