"""One line on rank 0 when a job is joined, and one when a mesh is built."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import meshkit
from meshkit.launch.log import log_line
from tests.launchers.checks import clean_environ


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


@pytest.mark.parametrize(
    ("code", "level", "lines"),
    [
        ("meshkit.init(verbose=True)", "", 2),
        ("meshkit.init()", "info", 2),
        ("meshkit.init()", "", 0),
    ],
)
def test_the_log_is_off_unless_it_is_requested(code: str, level: str, lines: int) -> None:
    program = f"import meshkit; {code}; meshkit.build_mesh(dp=1); meshkit.shutdown()"
    environ = clean_environ(**{"MESHKIT_LOG": level} if level else {})
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stderr.splitlines() if line.startswith("meshkit: ")]
    assert len(shown) == lines


def test_an_unknown_level_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MESHKIT_LOG", "loud")
    with pytest.warns(RuntimeWarning, match="MESHKIT_LOG='loud' is no level"):
        log_line("a line")
