"""The page and the table of a grid: each rank once, at its coordinate, with its node."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given

from meshkit import Layout, SpecError
from meshkit.core.axes import AXES, axis_colors
from meshkit.core.page import MAX_RANKS, draw_page, notebook_html
from meshkit.testing import layouts

CELL = re.compile(r'<td data-p="(\d+)">(\d+)</td>')


@given(layouts(max_ranks=64, with_ranks=True))
def test_every_rank_stands_once_at_its_position(layout: Layout) -> None:
    cells = CELL.findall(notebook_html(layout.axes, layout.grid))
    assert [(int(p), int(rank)) for p, rank in cells] == [*enumerate(layout.grid.ravel().tolist())]


def test_the_page_has_all_that_its_script_reads() -> None:
    layout = Layout(dp=2, sp=1, tp=2, ranks=[3, 2, 1, 0])
    page = draw_page("a < b", axis_colors(layout.axes), layout.grid, np.array([0, 0, 1, 1]))
    assert "a &lt; b" in page
    assert "http" not in page  # no other file, no network
    plan = json.loads(page.partition("const plan = ")[2].partition(";\n")[0])
    assert plan == {
        "axes": ["dp", "sp", "tp"],
        "shape": [2, 1, 2],
        "strides": [2, 2, 1],
        "ranks": [3, 2, 1, 0],
        "nodes": [0, 0, 1, 1],
        "colors": [AXES[axis].color for axis in ("dp", "sp", "tp")],
    }


def test_a_page_of_too_many_ranks() -> None:
    with pytest.raises(SpecError):
        draw_page("", {"dp": "#000"}, np.arange(MAX_RANKS + 1))


def test_axes_have_different_colors_up_to_six() -> None:
    assert axis_colors(["tp", "dp"]) == {"tp": AXES["tp"].color, "dp": AXES["dp"].color}
    assert axis_colors(["data"])["data"] == AXES["dp"].color
    names = ["dp_replicate", "dp_shard", "tp", "x", "y", "z"]
    assert len({*axis_colors(names).values()}) == 6
    assert len(axis_colors([*names, "w"])) == 7
