"""The section of the docs: made of results.json alone, and equal to the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import report
from benchmarks.harness import INSTALL, ITSELF, Goal, Row, compare, single

MACHINE = {
    "cores": 2,
    "processor": "Some CPU",
    "system": "Linux 6",
    "python": "3.11.2",
    "packages": {"meshkit": "0.1.0", "torch": "2.13.0"},
}
HALF = Goal("ratio", "<=", 0.5)
ROWS = [
    compare("a map", 8, "numpy", "s", ([1.0, 2.0], [4.0, 4.0]), HALF),
    compare("a map", 64, "numpy", "s", ([2.6, 2.6], [4.0, 4.0]), HALF),
    compare("a map", 512, "numpy", "s", ([1.0, 1.0], [4.0, 4.0]), HALF),
    compare("a map", 8, "torch", "s", ([1.0], [4.0])),
    single("plan", 16_384, "s", [0.2], Goal("ours", "<=", 0.4)),
    single("plan", 16_384, "s", [0.2], Goal("ours", "<=", 0.3)),
    compare("training", 8, "DDP", "seqs/s", ([900.0], [1200.0]), Goal("ratio", ">=", 1)),
    compare("training", 4, "DDP", "seqs/s", ([900.0], [1000.0]), Goal("ratio", ">=", 1)),
    compare("a map", 64, ITSELF, "s", ([1.0], [1.0]), Goal("ratio", "<=", 1.5)),
]
SECTION = """
One run of `python -m benchmarks`; 2 of 5 goals were missed. All rows, with their goals, are in \
`benchmarks/results/results.txt`.

2 cores of Some CPU, Linux 6, Python 3.11.2; meshkit 0.1.0, torch 2.13.0.

| worst row | ranks | meshkit | peer | meshkit / peer | its best row |
| --- | --- | --- | --- | --- | --- |
| a map | 64 | 2.6 s | numpy | 0.65 | 0.25 |
| training | 8 | 900 seqs/s | DDP | 0.75 | 0.9 |
"""
EMPTY = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"


def make_folder(folder: Path, rows: list[Row], quick: bool = False) -> Path:
    """Write results and a page in a folder of its own; return the page."""
    report.write({"first": rows}, MACHINE, folder, quick)
    page = folder / "docs" / "benchmarks.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(EMPTY)
    return page


def test_the_section_to_the_letter_and_in_its_place(tmp_path: Path) -> None:
    page = make_folder(tmp_path, ROWS)
    for _ in range(2):
        report.update_page(page, tmp_path, ["first"])
        assert page.read_text() == f"before\n{report.BEGIN}{SECTION}{report.END}\nafter\n"


def test_an_incomplete_run_is_refused(tmp_path: Path) -> None:
    page = make_folder(tmp_path, ROWS)
    with pytest.raises(ValueError, match=r"results\.json lacks second: run python -m benchmarks$"):
        report.update_page(page, tmp_path, ["first", "second"])
    make_folder(tmp_path, ROWS, quick=True)
    with pytest.raises(ValueError, match="is a quick run: "):
        report.update_page(page, tmp_path, ["first"])
    missing = Row("a map", 8, "DeepSpeed", "s", missing=f"deepspeed is not installed: {INSTALL}")
    make_folder(tmp_path, [*ROWS, missing])
    with pytest.raises(ValueError, match="lacks deepspeed is not installed: pip install"):
        report.update_page(page, tmp_path, ["first"])
    make_folder(tmp_path, ROWS)
    page.write_text("no marker")
    with pytest.raises(ValueError, match="needs the lines <!-- benchmarks -->"):
        report.update_page(page, tmp_path, ["first"])
    assert page.read_text() == "no marker"


def test_the_page_shows_the_committed_results() -> None:
    rows, machine, quick = report.read(runner.RESULTS / "results.json")
    assert [*rows] == [*runner.BENCHMARKS]
    assert not quick
    assert report.section(rows, machine) in runner.PAGE.read_text()
