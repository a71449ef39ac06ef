"""The example of a disagreement, as a user runs it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "disagree.py"


def test_every_rank_raises_the_same_error() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert re.sub(r"pid \d+", "pid 311", done.stdout) == (
        "DisagreementError: ranks disagree about the mesh; no process group was created.\n"
        "  ranks 0-3 and 5-7:  dp=4 sp=2 tp=1\n"
        f"  rank 4 (host {socket.gethostname()}, pid 311):  dp=2 sp=4 tp=1\n"
        "  Fix: pass equal sizes on every rank.\n"
    )
