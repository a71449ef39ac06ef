"""Imports: the time of a first use, in fresh processes.

``import meshkit`` stands beside ``import torch``. ``meshkit plan`` is timed from the start of the
process to its end. Each import is timed inside its process, after Python has started. The first
process of each side does not count, since it reads the files from disk.
"""

from __future__ import annotations

import subprocess
import sys
import time

from .harness import Goal, Row, alternate, compare, single

TENTH, INSTANT = Goal("ratio", "<=", 0.1), Goal("ours", "<=", 0.3)
RANKS = 16 * 128 * 8
PLAN = "plan pp=16 dp=128 tp=8 --nodes 2048 --global-batch 2048 --micro-batch 1"
TIMED = "import time; began = time.perf_counter(); import {0}; print(time.perf_counter() - began)"


def run(quick: bool) -> list[Row]:
    """Return the row of the import and that of the command line."""
    repeats = 3 if quick else 15
    imports = alternate(lambda: import_time("meshkit"), lambda: import_time("torch"), repeats)
    plans = [plan_time() for _ in range(1 + repeats)]
    return [
        compare("import", 1, "import torch", "s", imports, TENTH),
        single("meshkit plan, from start to end", RANKS, "s", plans[1:], INSTANT),
    ]


def import_time(module: str) -> float:
    """Return the seconds of an import in a fresh process."""
    return float(run_python("-c", TIMED.format(module)))


def plan_time() -> float:
    """Return the seconds of ``meshkit plan``, from the start of its process to its end."""
    began = time.perf_counter()
    run_python("-m", "meshkit", *PLAN.split())
    return time.perf_counter() - began


def run_python(*arguments: str) -> str:
    """Return the output of a fresh process of this Python.

    Raises:
        CalledProcessError: if the process fails.
    """
    process = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return process.stdout
