"""Import: what a first use costs, in processes of their own.

``import meshkit``, alone and with its first layout, as names are imported at their first use,
beside ``import torch``; ``meshkit plan`` from the shell's prompt to its last line, beside the start
of Python itself. Each import is timed inside a fresh process, after Python
has started; the files have been read once before.
"""

from __future__ import annotations

import subprocess
import sys
import time

from .clock import told_in_turns
from .rows import Goal, Row, alone, compared

TENTH, INSTANT = Goal("ratio", "<=", 0.1), Goal("ours", "<=", 0.3)
RANKS = 16 * 128 * 8
FIRST = "meshkit; meshkit.Layout(dp=4, tp=2)"
PLAN = "plan pp=16 dp=128 tp=8 --nodes 2048 --global-batch 2048 --micro-batch 1"  # the README's
TIMED = "import time; began = time.perf_counter(); import {0}; print(time.perf_counter() - began)"
LOADED = "import sys, {0}; print(*sys.modules)"


def run(quick: bool) -> list[Row]:
    """The imports, and the command line."""
    repeats = 3 if quick else 15
    imports = told_in_turns(lambda: importing("meshkit"), lambda: importing("torch"), repeats)
    firsts = told_in_turns(lambda: importing(FIRST), lambda: importing("torch"), repeats)
    counts = ([float(modules(FIRST))], [float(modules("torch"))])
    commands = told_in_turns(lambda: starting(*command()), lambda: starting("-c", "pass"), repeats)
    return [
        compared("import", 1, "import torch", "s", imports, TENTH),
        compared("import and first layout", 1, "import torch", "s", firsts),
        compared("modules that an import and a layout load", 1, "import torch", "modules", counts),
        alone("meshkit plan, from start to end", RANKS, "s", commands[0], INSTANT),
        compared("meshkit plan, from start to end", RANKS, "python -c pass", "s", commands),
    ]


def command() -> list[str]:
    """What is typed after ``python``."""
    return ["-m", "meshkit", *PLAN.split()]


def importing(module: str) -> float:
    """Seconds of an import in a fresh process."""
    return float(python("-c", TIMED.format(module)))


def modules(module: str) -> int:
    """How many modules an import loads that Python's start did not."""
    bare = set(python("-c", LOADED.format("sys")).split())
    return len(set(python("-c", LOADED.format(module)).split()) - bare)


def starting(*arguments: str) -> float:
    """Seconds from the start of a process to its end."""
    began = time.perf_counter()
    python(*arguments)
    return time.perf_counter() - began


def python(*arguments: str) -> str:
    """What a fresh process of this Python prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout
