"""One line on rank 0 when a job is joined, and one when a mesh is built."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from typing import Any

import pytest

import meshkit
from meshkit.launch.log import log_line


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


def lines_of_a_pipeline(timeouts: tuple[float, ...]) -> list[list[str]]:
    """Return the lines of a mesh with a pipeline for each timeout of its groups."""
    logger, handler = logging.getLogger("meshkit"), Lines()
    meshkit.init(arrival_timeout=20)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    lines = []
    for timeout in timeouts:
        handler.lines.clear()
        meshkit.build_mesh(pp=2, timeout=timeout, arrival_timeout=20).close()
        lines.append(handler.lines[:-1])
    return lines


def test_a_send_that_waits_less_than_the_timeout_is_logged() -> None:
    (short, long), others = meshkit.spawn(lines_of_a_pipeline, 2, ((4, 61),), timeout=60)
    assert short == []
    assert long == [
        "send and recv along pp wait 4 s, a fifth of arrival_timeout, not 61 s; "
        "irecv(...).wait(timedelta(...)) waits longer"
    ]
    assert others == [[], []]


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
