"""``python -m benchmarks``: the files that it writes, and the options that it refuses."""

from __future__ import annotations

import json
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks.harness import Goal, Row, compare


def some_rows(quick: bool) -> list[Row]:
    return [compare("a map", 8, "numpy", "s", ([8e-6], [1.6e-5]), Goal("ratio", "<=", 1.0))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the benchmarks and the folder of complete runs."""
    module = types.ModuleType("benchmarks.stand_in")
    vars(module)["run"] = some_rows
    monkeypatch.setitem(sys.modules, "benchmarks.stand_in", module)
    monkeypatch.setattr(runner, "BENCHMARKS", {"first": "stand_in", "second": "stand_in"})
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr(runner, "PART", tmp_path / "part")
    return tmp_path


@pytest.mark.parametrize("name", runner.BENCHMARKS)
def test_every_benchmark_has_a_run(name: str) -> None:
    run = import_module(f"benchmarks.{runner.BENCHMARKS[name]}").run
    assert run.__annotations__ == {"quick": "bool", "return": "list[Row]"}


def test_all_benchmarks_run_by_default(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main([]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["first: 1 rows in 0 s", "second: 1 rows in 0 s"]
    assert (folder / "results.txt").read_text().strip() in printed.out
    results = json.loads((folder / "results.json").read_text())
    assert [*results["rows"]] == ["first", "second"]
    assert results["quick"] is False
    assert results["rows"]["second"][0] == {
        "what": "a map",
        "scale": 8,
        "peer": "numpy",
        "unit": "s",
        "ours": 8e-6,
        "theirs": 1.6e-5,
        "ratio": {"low": 0.5, "median": 0.5, "high": 0.5},
        "goal": {"figure": "ratio", "sense": "<=", "bound": 1.0},
        "missing": None,
        "met": True,
    }


@pytest.mark.parametrize("options", [["--quick"], ["--only", "first"]])
def test_a_partial_run_leaves_the_complete_results(folder: Path, options: list[str]) -> None:
    runner.main([])
    before = (folder / "results.json").read_bytes()
    assert runner.main(options) == 0
    assert (folder / "results.json").read_bytes() == before
    assert (folder / "part" / "results.json").read_bytes() != before
