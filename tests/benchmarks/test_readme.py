"""The README's figures: made of results.json alone, and those that are committed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as runner
from benchmarks import readme
from benchmarks.ledger import Phase
from benchmarks.machine import Machine
from benchmarks.plots import PLOTS
from benchmarks.rows import Goal, Row, alone, compared, missing

MACHINE = Machine(2, "Some CPU", "Linux 6", "3.11.2", {"meshkit": "0.1.0", "torch": "2.13.0"})
HALF = Goal("ratio", "<=", 0.5)
ROWS = [
    compared("a map", 8, "numpy", "s", ([1.0, 2.0], [4.0, 4.0]), HALF),
    compared("a map", 64, "numpy", "s", ([2.6, 2.6], [4.0, 4.0]), HALF),
    compared("a map", 512, "numpy", "s", ([1.0, 1.0], [4.0, 4.0]), HALF),
    compared("a map", 8, "torch", "s", ([1.0], [4.0])),
    missing("a map", 8, "DeepSpeed", "s", "deepspeed"),
    alone("plan", 16_384, "s", [0.2], Goal("ours", "<=", 0.4)),
    alone("plan", 16_384, "s", [0.2], Goal("ours", "<=", 0.3)),
    compared("training", 8, "DDP", "seqs/s", ([900.0], [1200.0]), Goal("ratio", ">=", 1)),
]
TABLE = """\
2 cores of Some CPU, Linux 6, Python 3.11.2; meshkit 0.1.0, torch 2.13.0.

| what | ranks | meshkit | peer | its figure | meshkit / peer (quartiles) | goal |  |
| --- | --- | --- | --- | --- | --- | --- | --- |
| a map | 64 | 2.6 s | numpy | 4 s | 0.65 (0.65-0.65) | ratio <= 0.5 | missed by 30 % |
| plan | 16,384 | 0.2 s | - |  |  | ours <= 0.4 | met |
| plan | 16,384 | 0.2 s | - |  |  | ours <= 0.3 | met |
| training | 8 | 900 seqs/s | DDP | 1,200 seqs/s | 0.75 (0.75-0.75) | ratio >= 1 | missed by 33 % |
"""
PART = f"""\
<!-- benchmarks -->
One run of `python -m benchmarks`: medians; all rows are in \
[`results.txt`](benchmarks/results/results.txt).

{TABLE}
![maps](benchmarks/results/maps.png)
![startup](benchmarks/results/startup.png)
<!-- /benchmarks -->"""
WHOLE = [row for row in ROWS if not row.lacks]
EMPTY = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n"


def report_of(*rows: Row, quick: bool = False) -> dict[str, Any]:
    """What a run writes, read again."""
    saved = {"first": [asdict(row) | {"met": row.met} for row in rows]}
    return json.loads(json.dumps({"quick": quick, "machine": asdict(MACHINE), "rows": saved}))


def test_a_line_for_each_goal_at_its_worst() -> None:
    assert readme.results(report_of(*ROWS)) == TABLE
    assert readme.results(report_of(*reversed(ROWS))).count("a map | 64") == 1


def test_a_quick_run_says_so() -> None:
    assert "\n\nA quick run: " in readme.results(report_of(*ROWS, quick=True))


def test_a_row_is_read_as_it_was_written() -> None:
    phases = (Phase("store", 1.0, 2.0, 3),)
    rows = [*ROWS, Row("start-up", 8, "torch", "s", phases=phases, their_phases=phases)]
    assert [readme.row_of(saved) for saved in report_of(*rows)["rows"]["first"]] == rows


def test_the_part_to_the_letter_and_in_its_place() -> None:
    report = report_of(*ROWS)
    assert readme.put(EMPTY, report) == f"before\n{PART}\nafter\n"
    assert readme.put(readme.put(EMPTY, report), report) == readme.put(EMPTY, report)


@pytest.mark.parametrize(
    "text",
    [
        "",
        readme.BEGIN,
        readme.END,
        f"{readme.END} {readme.BEGIN}",
        f"{readme.BEGIN} {EMPTY}",
        f"{EMPTY} {readme.END}",
    ],
)
def test_markers_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it needs the lines <!-- benchmarks --> and <"):
        readme.put(text, report_of(*ROWS))


# --- in place --------------------------------------------------------------------------------


def folder_of(tmp_path: Path, report: object) -> tuple[Path, Path]:
    """Results, and a README beside them."""
    (tmp_path / "results.json").write_text(json.dumps(report))
    for name in PLOTS:
        (tmp_path / f"{name}.png").touch()
    (tmp_path / "README.md").write_text(EMPTY)
    return tmp_path, tmp_path / "README.md"


def test_it_is_written_in_place(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path, report_of(*WHOLE))
    assert readme.write(folder, file, ["first"]) == f"{file}: written from {folder}/results.json"
    assert file.read_text() == f"before\n{PART}\nafter\n"


def test_what_is_not_a_whole_run_is_refused(tmp_path: Path) -> None:
    report = report_of(*WHOLE)
    report["rows"]["second"] = []
    folder, file = folder_of(tmp_path, report)
    lacking = r"/results\.json has no rows of second, third: python -m benchmarks$"
    with pytest.raises(ValueError, match=lacking):
        readme.write(folder, file, ["first", "second", "third"])
    (folder / "maps.png").unlink()
    with pytest.raises(ValueError, match=r"has no maps\.png: python -m benchmarks$"):
        readme.write(folder, file, ["first"])
    folder_of(tmp_path, report_of(*WHOLE, quick=True))
    with pytest.raises(ValueError, match=r"/results\.json is of a quick run: "):
        readme.write(folder, file, ["first"])
    folder_of(tmp_path, report_of(*ROWS))
    lacks = r"/results\.json lacks 1 rows of peers, first 'a map': deepspeed is not installed: pip "
    with pytest.raises(ValueError, match=lacks):
        readme.write(folder, file, ["first"])
    assert file.read_text() == EMPTY


SHAPES = ["[]", "{}", "3", "null", '{"rows": null}', '{"rows": {"first": 5}}', '{"rows": [', "\xff"]


@pytest.mark.parametrize(
    "text", [*SHAPES, json.dumps(report_of(*WHOLE) | {"rows": None}), json.dumps(report_of())[:-9]]
)
def test_another_results_json_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    folder, file = folder_of(tmp_path, None)
    (folder / "results.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        readme.write(folder, file, ["first"])
    saved = folder / "results.json"
    assert str(refused.value) == f"{saved} is not what a run writes: python -m benchmarks"
    assert file.read_text() == EMPTY


def test_a_readme_without_markers_is_named_and_left(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path, report_of(*WHOLE))
    file.write_text("nothing")
    with pytest.raises(ValueError, match=r"README\.md: it needs the lines "):
        readme.write(folder, file, ["first"])
    assert file.read_text() == "nothing"


# --- the real one ----------------------------------------------------------------------------


def difference(folder: Path, file: Path) -> str | None:
    """What is wrong with the figures of a README; None where it shows just the results."""
    text, saved = file.read_text(), folder / "results.json"
    if readme.BEGIN not in text and readme.END not in text:
        return "unmarked"
    if not saved.is_file():
        return "figures without results"
    report = json.loads(saved.read_text())
    if report["quick"] or [name for name in runner.BENCHMARKS if name not in report["rows"]]:
        return "not a whole run"
    if readme.put(text, report) != text:
        return "other figures"
    plots = [name for name in PLOTS if not (folder / f"{name}.png").is_file()]
    return f"no plots {plots}" if plots else None


def test_the_readme_shows_the_results_that_are_committed() -> None:
    assert difference(runner.RESULTS, runner.README) is None


def test_a_readme_that_shows_anything_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BENCHMARKS", {"first": "first"})
    report = report_of(*WHOLE)
    folder, file = folder_of(tmp_path, report)
    assert difference(folder, file) == "other figures"
    readme.write(folder, file, ["first"])
    assert difference(folder, file) is None
    file.write_text(file.read_text().replace("2.6 s", "2.5 s"))
    assert difference(folder, file) == "other figures"
    folder_of(tmp_path, report | {"quick": True})
    assert difference(folder, file) == "not a whole run"
    (folder / "results.json").unlink()
    assert difference(folder, file) == "figures without results"
    file.write_text("nothing")
    assert difference(folder, file) == "unmarked"
