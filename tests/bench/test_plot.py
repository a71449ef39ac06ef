"""The picture, where matplotlib is installed; and what is said where it is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshkit import MeshkitError, SpecError
from meshkit.bench.plot import check_plot, plot
from tests.core.reports import CLEAN, EMPTY, FOUND, REPORT

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
    other = [replace(one, case=replace(one.case, op="broadcast")) for one in FOUND]
    plot(replace(REPORT, found=(*FOUND, *other)), str(tmp_path / "x.png"))
    (figure,) = drawn
    one, two = figure.axes
    assert (one.get_title(), two.get_title()) == ("all_reduce", "broadcast")
    lines = {line.get_label(): line for line in one.get_lines()}
    assert list(lines) == ["dp alone", "dp concurrent", "sp alone", "sp concurrent"]
    assert lines["dp alone"].get_xdata().tolist() == [1024, 1048576]
    assert lines["dp alone"].get_ydata().tolist() == [FOUND[0].busbw, FOUND[2].busbw]
    assert lines["dp alone"].get_color() == lines["dp concurrent"].get_color()
    assert lines["dp alone"].get_color() != lines["sp alone"].get_color()
    assert lines["dp alone"].get_linestyle() != lines["dp concurrent"].get_linestyle()


def test_without_matplotlib_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MeshkitError) as error:
        check_plot("x.png")
    assert str(error.value) == (
        "--plot x.png: matplotlib draws it, and is not installed.\n"
        "  Fix: pip install 'meshkit[plot]'; or leave --plot out."
    )


def test_another_kind_of_picture_is_refused() -> None:
    with pytest.raises(SpecError) as error:
        check_plot("x.svg")
    assert str(error.value) == (
        "--plot x.svg: the picture is a PNG.\n  Fix: a name that ends in .png."
    )


def test_a_place_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", sys)  # any module will do: nothing is drawn
    (tmp_path / "y.png").mkdir()
    fix = "\n  Fix: a file in a folder that exists and may be written."
    for path, why in (
        (f"{tmp_path}/no/x.png", f"{tmp_path}/no is no place to write to"),
        (f"{tmp_path}/y.png", "it is a folder"),
    ):
        with pytest.raises(SpecError) as error:
            check_plot(path)
        assert str(error.value) == f"--plot {path}: {why}.{fix}"
