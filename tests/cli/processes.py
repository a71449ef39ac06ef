"""Commands run as processes of their own, and without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from meshkit.launch.launchers import LAUNCHERS

ROOT = Path(__file__).parents[2]
MARKERS = {name for row in LAUNCHERS for names in row.markers for name in names}
Answers = Callable[[str], tuple[int, str, str]]  # a line to its exit code, output and errors
CLEAN = {name: value for name, value in os.environ.items() if name not in MARKERS}


def begun(*command: str, **environ: str) -> subprocess.Popen[str]:
    """Start Python in a process group of its own, with no launcher but what is given."""
    return subprocess.Popen(
        [sys.executable, *command],
        env={**CLEAN, "OMP_NUM_THREADS": "1", **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code of a command, and what it printed; it is killed after five minutes."""
    try:
        out, error = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, out, error
