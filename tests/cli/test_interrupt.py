"""Ctrl-C in real runs: one line, no traceback, exit code 130, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.processes import ended

ROOT = Path(__file__).parents[2]


def members(group: int) -> dict[int, str]:
    """Return the processes of a process group, and the command of each."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text()
        except (OSError, ValueError, IndexError):
            continue
    return found


def wait_until_empty(group: int) -> None:
    deadline = time.monotonic() + 30
    while left := members(group):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def interrupt(delay: float, *words: str) -> tuple[int, str, str]:
    """Press Ctrl-C some time after a server of processes was started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshkit", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not any("forkserver" in command for command in members(process.pid).values()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    result = ended(process)
    wait_until_empty(process.pid)
    return result


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0])
def test_ctrl_c_while_ranks_import_torch(delay: float) -> None:
    code, out, error = interrupt(delay, "check", "dp=2", "-n", "2", "--device", "cpu")
    assert (code, out, error) == (130, "", "meshkit check: interrupted.\n")


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.5, 1.5, 2.5])
@pytest.mark.parametrize("command", ["hello -n 4", "bench dp=2 tp=2 -n 4 --iters 200"])
def test_ctrl_c_at_other_moments(command: str, delay: float) -> None:
    code, out, error = interrupt(delay, *command.split(), "--device", "cpu")
    assert "Traceback" not in error
    if code == 0:  # it had ended before
        assert out
        return
    assert code == 130
    name = command.split()[0]
    assert error.splitlines()[-1] == f"meshkit {name}: interrupted." or "Interrupted: " in out
