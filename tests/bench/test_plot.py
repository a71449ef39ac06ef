"""The picture, where matplotlib is installed; and what is said where it is not."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshkit import MeshkitError, SpecError
from meshkit.bench import plot as module
from meshkit.bench.plot import check_plot, plot
from tests.bench.results.example_runs import CLEAN, EMPTY, FOUND, REPORT

MISSING = "matplotlib is not installed: pip install -e '.[plot]'"


@pytest.mark.parametrize("report", [CLEAN, REPORT, EMPTY])
def test_a_picture_is_drawn(report: object, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason=MISSING)
    file = tmp_path / "x.png"
    check_plot(str(file))
    assert not file.exists()
    plot(report, str(file))  # type: ignore[arg-type]
    assert file.read_bytes().startswith(b"\x89PNG\r\n")
    assert [*tmp_path.iterdir()] == [file]


def test_what_the_picture_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason=MISSING)
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    other = [replace(row, case=replace(row.case, op="broadcast")) for row in FOUND]
    plot(replace(REPORT, measurements=(*FOUND, *other)), str(tmp_path / "x.png"))
    (figure,) = drawn
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("all_reduce", "broadcast")
    lines = {line.get_label(): line for line in first.get_lines()}
    assert list(lines) == ["dp alone", "dp concurrent", "sp alone", "sp concurrent"]
    assert lines["dp alone"].get_xdata().tolist() == [1024, 1048576]
    assert lines["dp alone"].get_ydata().tolist() == [FOUND[0].busbw, FOUND[2].busbw]
    assert lines["dp alone"].get_color() == lines["dp concurrent"].get_color()
    assert lines["dp alone"].get_color() != lines["sp alone"].get_color()
    assert lines["dp alone"].get_linestyle() != lines["dp concurrent"].get_linestyle()


PIP = "pip install matplotlib; or leave out --plot"
NAME, PLACE = "a name that ends in .png", "a file in an existing folder with write access"


def refused(path: str, kind: type[MeshkitError] = SpecError) -> str:
    with pytest.raises(MeshkitError) as error:
        check_plot(path)
    assert type(error.value) is kind
    assert str(error.value).startswith("the picture cannot be drawn: ")
    return str(error.value).removeprefix("the picture cannot be drawn: ")


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_library_problem", lambda: None)


def test_without_matplotlib_the_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file = tmp_path / "x.png"
    assert refused(str(file), MeshkitError) == (f"matplotlib is not installed.\n  Fix: {PIP}.")
    assert not file.exists()
    assert refused(f"{tmp_path}/no/x.png") == (
        "the file cannot be written: No such file or directory.\n"
        "  Also, matplotlib is not installed.\n"
        f"  Fix: {PLACE}; and {PIP}."
    )


def test_a_matplotlib_that_is_half_there_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "matplotlib"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "backends.py").write_text("raise AttributeError('_ARRAY_API not found\\nmore')")
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert refused(str(tmp_path / "x.png"), MeshkitError) == (
        "matplotlib fails: AttributeError: _ARRAY_API not found.\n"
        "  Fix: pip install --force-reinstall matplotlib; or leave out --plot."
    )


@pytest.mark.usefixtures("works")
def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "y.png").mkdir()
    os.mkfifo(tmp_path / "z.png")
    for path, why in (
        ("/proc/x.png", "No such file or directory"),
        (f"{tmp_path}/no/x.png", "No such file or directory"),
        (f"{tmp_path}/y.png", "Is a directory"),
        (f"{tmp_path}/z.png", "No such device or address"),
    ):
        assert refused(path) == f"the file cannot be written: {why}.\n  Fix: {PLACE}."
    assert refused("x.svg") == f"its name does not end in .png.\n  Fix: {NAME}."


@pytest.mark.usefixtures("works")
def test_a_file_that_is_there_stays_as_it_is_and_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to(tmp_path / "old.png")
    for name in ("old.png", "new.png", "link.png"):
        check_plot(str(tmp_path / name))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.png", "old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"
