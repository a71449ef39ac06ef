"""Imports and the command line, in processes of their own: the work, not its time."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from benchmarks import imports

ROOT = Path(__file__).parents[2]


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first repetition of each side does not count, and the side that goes first changes
    times = [("meshkit", 9.0), ("torch", 9.0), ("torch", 2.0), ("meshkit", 0.1)]
    times += [("meshkit", 0.3), ("torch", 2.0), ("torch", 2.0), ("meshkit", 0.2)]
    turns = iter(times)

    def import_time(module: str) -> float:
        expected, seconds = next(turns)
        assert module == expected
        return seconds

    monkeypatch.setattr(imports, "import_time", import_time)
    monkeypatch.setattr(imports, "plan_time", iter([9.0, 0.2, 0.4, 0.5]).__next__)
    first, plan = imports.run(quick=True)
    assert (first.ours, first.theirs, first.met) == (0.2, 2.0, True)
    assert (plan.ours, plan.theirs, plan.met) == (0.4, None, False)


def test_an_import_is_timed_in_a_fresh_process() -> None:
    assert 0 < imports.import_time("json") < 30


def test_the_command_line_is_one_that_works() -> None:
    plan = json.loads(imports.run_python("-m", "meshkit", *imports.PLAN.split(), "--json"))
    assert math.prod(plan["sizes"].values()) == imports.RANKS
    assert f"$ meshkit {imports.PLAN}\n" in (ROOT / "docs" / "commands" / "plan.md").read_text()


def test_a_command_that_fails_is_not_timed() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        imports.run_python("-c", "raise SystemExit(3)")
