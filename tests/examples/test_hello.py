"""The first example: as one process, under torchrun and under spawn; and its check can fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import meshkit
from examples import hello
from meshkit.launch.launchers import LAUNCHERS
from tests.preloaded_python import run_python

HELLO = Path(hello.__file__)
KNOWN = {name for row in LAUNCHERS for names in row.markers for name in names}
ENVIRON = {name: value for name, value in os.environ.items() if name not in KNOWN}
ENVIRON["OMP_NUM_THREADS"] = "1"


def run(*command: str) -> list[str]:
    """The lines of a run, in the order of the ranks."""
    done = subprocess.run(
        [sys.executable, *command],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def greets(line: str, rank: int, ranks: int, launcher: str) -> bool:
    who = rf"rank {rank} of {ranks} \({launcher}\) says hello from host \S+, device \S+, pid \d+"
    return re.fullmatch(rf"{who}, and hears {ranks}", line) is not None


def test_as_one_process() -> None:
    code = f"import runpy\nrunpy.run_path({str(HELLO)!r}, run_name='__main__')"
    done = run_python(code, environ=ENVIRON)
    assert done.returncode == 0, done.stderr
    assert greets(done.stdout.strip(), 0, 1, "single")


def test_under_spawn() -> None:
    assert meshkit.spawn(hello.main, 3, timeout=60) == [0, 0, 0]


def deaf() -> int:
    """Run the example with an all-reduce that loses all other ranks."""

    def nothing(_: torch.Tensor) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", nothing)
        return hello.main()


def test_a_missing_rank_fails_the_check(capfd: pytest.CaptureFixture[str]) -> None:
    assert meshkit.spawn(deaf, 2, timeout=60) == [1, 1]
