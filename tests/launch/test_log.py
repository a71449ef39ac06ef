"""One line on rank 0 when a job is joined, and one when a mesh is built."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import re
import time
from typing import Any

import pytest

import meshkit
from meshkit.launch.log import (
    CLEAR,
    REDRAW_INTERVAL,
    Progress,
    log_line,
    show_progress,
    shows_colors,
)


class Lines(logging.Handler):
    """Keeps each line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def lines_of_rank(configured: bool) -> Any:
    logger, handler = logging.getLogger("meshkit"), Lines()
    logger.addHandler(handler)
    if configured:
        logger.setLevel(logging.INFO)
    meshkit.build_mesh(dp=2, tp=1).close()
    return handler.lines


def test_rank_0_logs_the_job_and_the_mesh_once() -> None:
    first, second = meshkit.spawn(lines_of_rank, 2, (True,), timeout=60)
    job, mesh = first
    assert re.fullmatch(
        r"joined a job: world_size 2, launcher spawn, backend gloo, device cpu, \d+\.\d\d s", job
    )
    assert re.fullmatch(r"built a mesh: dp=2 tp=1, \d groups, \d created, \d+\.\d\d s", mesh)
    assert second == []


def stderr_of_a_mesh(level: str, verbose: bool) -> str:
    """Return the lines on stderr of a job that is logged, or not, and joined anew."""
    os.environ.pop("MESHKIT_LOG", None)
    if level:
        os.environ["MESHKIT_LOG"] = level
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        meshkit.init(verbose=verbose)
        meshkit.build_mesh(dp=1).close()
        meshkit.shutdown()
    return stderr.getvalue()


@pytest.mark.parametrize(
    ("verbose", "level", "lines"), [(True, "", 2), (False, "info", 2), (False, "", 0)]
)
def test_the_log_is_off_unless_it_is_requested(verbose: bool, level: str, lines: int) -> None:
    (stderr,) = meshkit.spawn(stderr_of_a_mesh, 1, (level, verbose), timeout=60)
    assert len([line for line in stderr.splitlines() if line.startswith("meshkit: ")]) == lines


def test_an_unknown_level_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MESHKIT_LOG", "loud")
    with pytest.warns(RuntimeWarning, match="MESHKIT_LOG='loud' is no level"):
        log_line("a line")


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
