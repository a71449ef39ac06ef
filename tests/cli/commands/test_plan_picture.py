"""``--svg FILE``: a picture in a file, or a word on why not."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshkit import Layout, SpecError
from meshkit.cli.commands.plan import add_svg, draw_into
from meshkit.core.draw.svg import MAX_RANKS, draw_svg

Answers = Callable[[str], tuple[int, str, str]]

LAYOUT, NODES = Layout(dp=4, tp=2), np.arange(8) // 4


def test_the_picture_is_in_the_file_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "grid.svg"
    path.write_text("x" * 100_000)
    draw_into(str(path), LAYOUT, NODES)
    assert path.read_text() == draw_svg(LAYOUT.axes, LAYOUT.grid, NODES)


def test_no_path_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw_into(None, LAYOUT, NODES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none/grid.svg", "No such file or directory"),
        (".", "Is a directory"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_written(tmp_path: Path, name: str, reason: str) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(SpecError) as error:
        draw_into(path, LAYOUT, NODES)
    assert error.value.summary == f"the picture cannot be written: {reason}."


def test_a_grid_that_is_too_large_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "grid.svg"
    path.write_text("before")
    with pytest.raises(SpecError):
        draw_into(str(path), Layout(dp=MAX_RANKS + 1), None)
    assert path.read_text() == "before"


@pytest.mark.parametrize("name", ["''", "-"])
def test_what_is_no_name_of_a_file(answer: Answers, name: str) -> None:
    assert answer(f"plan dp=2 --svg {name}") == (
        2,
        "",
        f"meshkit plan dp=2 --svg {name}: the picture needs the name of a file.\n"
        "  Fix: for example --svg grid.svg.\n",
    )


def test_the_option() -> None:
    parser = ArgumentParser()
    add_svg(parser)
    assert parser.parse_args([]).svg is None
    assert parser.parse_args(["--svg", "a.svg"]).svg == "a.svg"
