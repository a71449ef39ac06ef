"""``python -m benchmarks``: what it runs, writes, draws and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import clock, machine, maps, plots, readme
from benchmarks.rows import Goal, Row, compared, missing
from benchmarks.startup import Setting
from meshkit.core.version import VERSION

ROOT = Path(__file__).parents[2]
SCALES = (8, 64, 512)


def some_rows(quick: bool) -> list[Row]:
    """A work at three scales, and one at a single scale; a peer that is missing."""
    goal = Goal("ratio", "<=", 1.0)
    maps = [compared("a map", n, "numpy", "s", ([n / 1e6], [n / 5e5]), goal) for n in SCALES]
    once = compared(f"quick {quick}", 8, "torch", "groups", ([7.0], [9.0]))
    return [*maps, once, missing("a map", 8, "DeepSpeed", "s", "deepspeed")]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("benchmarks.stand_in")
    vars(module)["run"] = some_rows
    monkeypatch.setitem(sys.modules, "benchmarks.stand_in", module)
    monkeypatch.setattr(runner, "BENCHMARKS", {"first": "stand_in", "second": "stand_in"})


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where whole runs go, and the others."""
    whole = tmp_path / "results"
    monkeypatch.setattr(runner, "RESULTS", whole)
    monkeypatch.setattr(runner, "PART", whole / "part")
    return whole, whole / "part"


@pytest.mark.parametrize("name", runner.BENCHMARKS)
def test_every_benchmark_has_a_run(name: str) -> None:
    run = import_module(f"benchmarks.{runner.BENCHMARKS[name]}").run
    assert run.__annotations__ == {"quick": "bool", "return": "list[Row]"}
    assert run.__doc__


@pytest.mark.usefixtures("stand_in")
def test_it_prints_and_writes_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert runner.main(["--only", "second", "--quick", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == "second: 5 rows in 0 s\n"
    assert printed.out.count("a map") == 4
    assert "quick True" in printed.out
    assert (out / "results.txt").read_text().strip() in printed.out
    report = json.loads((out / "results.json").read_text())
    assert [*report["rows"]] == ["second"]
    assert report["quick"] is True
    assert (out / "results.md").read_text() == readme.results(report)
    assert report["machine"]["python"] in printed.out
    first = report["rows"]["second"][0]
    assert first == {
        "what": "a map",
        "scale": 8,
        "peer": "numpy",
        "unit": "s",
        "ours": 8e-6,
        "theirs": 1.6e-5,
        "ratio": {"low": 0.5, "median": 0.5, "high": 0.5},
        "goal": {"figure": "ratio", "sense": "<=", "bound": 1.0},
        "lacks": None,
        "phases": [],
        "their_phases": [],
        "met": True,
    }


@pytest.mark.usefixtures("stand_in")
def test_all_run_by_default(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    whole, _ = folders
    assert runner.main([]) == 0
    assert [*json.loads((whole / "results.json").read_text())["rows"]] == ["first", "second"]
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["first: 5 rows in 0 s", "second: 5 rows in 0 s"]
    assert printed.out.count("quick False") == 2


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("given", [["--quick"], ["--only", "first"]])
def test_what_is_not_whole_leaves_the_whole_results(
    folders: tuple[Path, Path], given: list[str]
) -> None:
    whole, part = folders
    runner.main([])
    before = {file.name: file.read_bytes() for file in whole.iterdir() if file.is_file()}
    (part / "maps.png").touch()  # of another run
    runner.main(given)
    assert {file.name: file.read_bytes() for file in whole.iterdir() if file.is_file()} == before
    assert (part / "results.json").read_bytes() != before["results.json"]
    assert not (part / "maps.png").exists()


@pytest.mark.usefixtures("stand_in")
def test_what_was_finished_is_kept_when_it_is_interrupted(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = folders

    def interrupted(quick: bool) -> list[Row]:
        assert [*json.loads((part / "results.json").read_text())["rows"]] == ["first"]
        raise KeyboardInterrupt

    stopping = types.ModuleType("benchmarks.stopping")
    vars(stopping)["run"] = interrupted
    monkeypatch.setitem(sys.modules, "benchmarks.stopping", stopping)
    monkeypatch.setitem(runner.BENCHMARKS, "second", "stopping")
    assert runner.main([]) == 130
    printed = capsys.readouterr()
    assert printed.err == f"first: 5 rows in 0 s\nInterrupted: first in {part}\n"
    assert printed.out.count("a map") == 4
    assert not (whole / "results.json").exists()


def test_a_folder_that_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "measure", None)
    (tmp_path / "file").touch()
    for name, why in (("file", "File exists"), ("file/x", "Not a directory")):
        with pytest.raises(SystemExit, match="2"):
            runner.main(["--out", f"{tmp_path}/{name}"])
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.endswith(f"error: argument --out: {tmp_path}/{name}: {why}")


def test_a_benchmark_that_there_is_not_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "maps,mops"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    known = ", ".join(runner.BENCHMARKS)
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"error: argument --only: no benchmark 'mops'; there are {known}")


def test_readme_measures_nothing_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "measure", None)
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        runner.main(["--readme"])
    assert f"error: --readme: {tmp_path} has no results.json, " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        runner.main(["--readme", "--out", "elsewhere"])
    said = f"error: --readme shows {tmp_path}, to which its links lead: without --out\n"
    assert capsys.readouterr().err.endswith(said)


# --- plots -----------------------------------------------------------------------------------


def drawn(works: Sequence[str], scales: Sequence[int] = SCALES) -> list[Row]:
    return [
        compared(what, n, "numpy", "s", ([n / 1e6], [n / 5e5])) for what in works for n in scales
    ]


EVERY = {name: drawn(works) for name, works in plots.PLOTS.items()}


def test_what_has_three_scales_is_drawn() -> None:
    assert plots.curves(some_rows(True), "a map") == {
        "meshkit": [(8, 8e-6), (64, 6.4e-5), (512, 5.12e-4)],
        "numpy": [(8, 1.6e-5), (64, 1.28e-4), (512, 1.024e-3)],
    }
    assert plots.curves(some_rows(True)[1:], "a map") == {}
    assert plots.curves(some_rows(True), "no such work") == {}


def test_the_works_that_are_drawn_are_measured() -> None:
    assert [*plots.PLOTS] == ["maps", "startup"]
    measured = {row.what for row in (*maps.bulk_rows(8, 1), *maps.group_rows(8, 1))}
    measured |= {row.what for row in maps.place_rows(8, 1)}
    assert set(plots.PLOTS["maps"]) <= measured
    starts = {f"start-up, {Setting(8, lazy=lazy)}" for lazy in (False, True)}
    assert set(plots.PLOTS["startup"]) == starts


def test_without_matplotlib_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plots.draw(EVERY, tmp_path) == (
        "No plots: matplotlib is not installed: pip install -c constraints.txt -e '.[bench]'"
    )
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(
    find_spec("matplotlib") is None,
    reason="matplotlib is not installed: pip install -e '.[bench]'",
)
def test_pictures_are_written(tmp_path: Path) -> None:
    assert plots.draw(EVERY, tmp_path) == "Plots: maps.png, startup.png"
    for name in plots.PLOTS:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    few = {"maps": drawn(plots.PLOTS["maps"], SCALES[:2]), "startup": EVERY["startup"]}
    assert plots.draw(few, tmp_path) == "Plots: startup.png"
    assert plots.draw({"groups": EVERY["maps"]}, tmp_path) == "Plots: none"


# --- the machine and the clock ---------------------------------------------------------------


def test_the_machine_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("numpy", "no-such-package"))
    here = machine.Machine.here()
    assert here.packages["meshkit"] == VERSION
    assert here.packages["no-such-package"] == "not installed"
    assert here.packages["numpy"][0].isdigit()
    assert str(here).endswith(", no-such-package not installed")
    assert str(here).startswith(f"{here.cores} cores of ")


def test_the_processor(tmp_path: Path) -> None:
    table = tmp_path / "cpuinfo"
    assert machine.processor(table)  # there is none: the architecture
    table.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name : Other\n")
    assert machine.processor(table) == "Some CPU @ 2 GHz"


class Ticking:
    """A clock that moves when work is done, and a record of who did it."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, ""

    def work(self, name: str, takes: float) -> Callable[[], None]:
        def done() -> None:
            self.now += takes
            self.calls += name

        return done


def test_sides_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: ticking.now)
    sides = ticking.work("a", 0.5), ticking.work("b", 0.25)
    times = clock.in_turns(*sides, 3, least=0.5)
    assert times == ([0.5] * 3, [0.25] * 3)
    assert ticking.calls == "aabb" + "abb" + "bba" + "abb"  # b lasts half as long: two in a row


def test_garbage_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    clock.in_turns(lambda: seen.append(clock.gc.isenabled()), lambda: None, 1, least=0.0)
    assert set(seen) == {False}
    assert clock.gc.isenabled()
