"""Imports and the command line, in processes of their own: what is compared, never how fast."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from benchmarks import imports

ROOT = Path(__file__).parents[2]


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first of each is not counted, and who begins changes
    took = [("meshkit", 9.0), ("torch", 9.0), ("torch", 2.0), ("meshkit", 0.1)]
    took += [("meshkit", 0.3), ("torch", 2.0), ("torch", 2.0), ("meshkit", 0.2)]
    took += [(name.replace("meshkit", imports.FIRST), seconds) for name, seconds in took]
    turns = iter(took)

    def importing(module: str) -> float:
        turn, seconds = next(turns)
        assert turn == module
        return seconds

    monkeypatch.setattr(imports, "importing", importing)
    monkeypatch.setattr(imports, "modules", {imports.FIRST: 30, "torch": 1200}.__getitem__)
    monkeypatch.setattr(imports, "starting", lambda *arguments: len(arguments) / 10)
    bare, first, loaded, plan, beside = imports.run(quick=True)
    assert (bare.ours, bare.theirs, bare.met) == (0.2, 2.0, True)
    assert (first.ours, first.theirs, first.met) == (0.2, 2.0, None)
    assert (loaded.ours, loaded.theirs) == (30, 1200)
    assert plan.ours == len(imports.command()) / 10
    assert (plan.met, plan.theirs) == (False, None)
    assert (beside.ours, beside.theirs) == (plan.ours, 0.2)


def test_an_import_is_timed_and_counted_in_a_fresh_process() -> None:
    assert 0 < imports.importing("json") < 30
    assert imports.modules("sys") == 0
    assert imports.modules("meshkit") < imports.modules("json") < imports.modules(imports.FIRST)


def test_the_command_line_is_one_that_works() -> None:
    plan = json.loads(imports.python(*imports.command(), "--json"))
    assert math.prod(plan["sizes"].values()) == imports.RANKS
    assert f"$ meshkit {imports.PLAN}\n" in (ROOT / "README.md").read_text()
    assert imports.starting("-c", "pass") > 0


def test_a_command_that_fails_is_not_timed() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        imports.starting("-c", "raise SystemExit(3)")
