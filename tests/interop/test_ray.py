"""Actors of real Ray are the ranks of a job: an actor and a critic model on one world."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launchers.checks import RAY, clean_environ

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "with_ray.py")


@pytest.mark.slow
def test_the_example_places_two_models_on_one_world() -> None:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install -e '.[ray]'")
    environ = clean_environ(**RAY)
    command = [sys.executable, EXAMPLE, "--actor", "2", "--critic", "1"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    *ranks, numbers, difference = done.stdout.splitlines()
    assert ranks == [
        "rank 0: actor {'dp': 0}",
        "rank 1: actor {'dp': 1}",
        "rank 2: critic {'dp': 0}",
    ]
    assert difference == "difference between ranks 0.0"
    values = [float(word) for word in numbers.removeprefix("proposed ").split()]
    assert len(values) == 10
    assert abs(values[-1] - 3) < 0.5 < abs(values[0] - 3)
