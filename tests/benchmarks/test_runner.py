"""``python -m benchmarks``: the files that it writes, and the options that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import maps, report
from benchmarks.harness import INSTALL, Goal, Row, compare
from benchmarks.startup import Setting

ROOT = Path(__file__).parents[2]
SCALES = (8, 64, 512)


def some_rows(quick: bool) -> list[Row]:
    """Return a work at three scales and one at a single scale, and a missing peer."""
    goal = Goal("ratio", "<=", 1.0)
    scales = [compare("a map", n, "numpy", "s", ([n / 1e6], [n / 5e5]), goal) for n in SCALES]
    once = compare(f"quick {quick}", 8, "torch", "groups", ([7.0], [9.0]))
    missing = Row("a map", 8, "DeepSpeed", "s", missing="deepspeed is not installed")
    return [*scales, once, missing]


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
    assert printed.err.splitlines() == ["first: 5 rows in 0 s", "second: 5 rows in 0 s"]
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
    (folder / "part" / "maps.png").touch()  # of another run
    assert runner.main(options) == 0
    assert (folder / "results.json").read_bytes() == before
    assert (folder / "part" / "results.json").read_bytes() != before
    assert not (folder / "part" / "maps.png").exists()


def test_the_rows_so_far_are_kept_after_an_interrupt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(quick: bool) -> list[Row]:
        raise KeyboardInterrupt

    stopping = types.ModuleType("benchmarks.stopping")
    vars(stopping)["run"] = interrupted
    monkeypatch.setitem(sys.modules, "benchmarks.stopping", stopping)
    monkeypatch.setitem(runner.BENCHMARKS, "second", "stopping")
    with pytest.raises(KeyboardInterrupt):
        runner.main([])
    assert [*json.loads((folder / "part" / "results.json").read_text())["rows"]] == ["first"]
    assert not (folder / "results.json").exists()


def test_an_unknown_benchmark_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "maps,mops"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    known = ", ".join(runner.BENCHMARKS)
    assert f"argument --only: unknown benchmark 'mops'; known: {known}\n" in process.stderr


def test_docs_without_results_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(runner, "measure")
    with pytest.raises(SystemExit, match="2"):
        runner.main(["--docs"])
    assert f"'{folder}/results.json'" in capsys.readouterr().err


def rows_of_plots() -> dict[str, list[Row]]:
    """Return rows of every work that is drawn, at three scales."""
    return {
        name: [
            compare(what, n, "numpy", "s", ([n / 1e6], [n / 5e5])) for what in works for n in SCALES
        ]
        for name, works in report.PLOTS.items()
    }


def test_a_work_with_three_scales_is_drawn() -> None:
    assert report.curves(some_rows(True), "a map") == {
        "meshkit": {8: 8e-6, 64: 6.4e-5, 512: 5.12e-4},
        "numpy": {8: 1.6e-5, 64: 1.28e-4, 512: 1.024e-3},
    }
    assert report.curves(some_rows(True)[1:], "a map") == {}
    assert report.curves(some_rows(True), "no such work") == {}


def test_the_works_that_are_drawn_are_measured() -> None:
    rows = [*maps.bulk_rows(8, 1), *maps.group_rows(8, 1), *maps.position_rows(8, 1)]
    assert set(report.PLOTS["maps"]) <= {row.what for row in rows}
    starts = {f"start-up, {Setting(8, store)}" for store in ("tcp", "file")}
    assert set(report.PLOTS["startup"]) == starts


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_plots_are_png_files(tmp_path: Path) -> None:
    assert report.draw(rows_of_plots(), tmp_path) == "Plots: maps.png, startup.png"
    for name in report.PLOTS:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_report_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    no_plots = f"No plots: matplotlib is not installed: {INSTALL}"
    assert report.draw(rows_of_plots(), tmp_path) == no_plots
    assert [*tmp_path.iterdir()] == []


def test_the_machine_is_described() -> None:
    machine = report.this_machine()
    assert set(machine["packages"]) == set(report.PACKAGES)
    assert report.format_machine(machine).startswith(f"{machine['cores']} cores of ")
