"""The page of a plan: the figures that its script reads, and the size of the file."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout
from meshkit.core.axes import AXES, axis_colors
from meshkit.core.batch import data_axes
from meshkit.core.plan_page import MAX_NOTEBOOK_RANKS, MAX_RANKS, PageBatch, draw_page
from meshkit.testing import layouts


def plan_of(page: str) -> dict[str, Any]:
    """Return the figures in a page."""
    text = page.partition("const plan = ")[2].partition(";\n")[0]
    plan: dict[str, Any] = json.loads(text)
    return plan


def index(position: int, axis: dict[str, Any]) -> int:
    """Return the index of a position along an axis, as the script does."""
    return int(position // axis["stride"] % axis["size"])


@given(layouts(max_ranks=64, with_ranks=True), st.integers(1, 3))
def test_the_figures_give_coordinates_groups_and_samples(layout: Layout, micro: int) -> None:
    data = data_axes(layout.sizes)
    dp = int(np.prod([layout.sizes[axis] for axis in data], dtype=int))
    batch = BatchPlan.solve(dp=dp, micro_batch=micro, accumulation_steps=2)
    shown = PageBatch(data, dp, batch.global_batch, micro)
    plan = plan_of(draw_page(layout.axes, layout.grid, title="", batch=shown))
    ranks = plan["ranks"] or [*range(layout.num_ranks)]
    assert sorted(ranks) == sorted(layout.ranks)  # a picture shows each rank once
    for position, rank in enumerate(ranks):
        axes = plan["axes"]
        assert {a["name"]: index(position, a) for a in axes} == layout.coordinate(rank)
        for axis in axes:
            start = position - index(position, axis) * axis["stride"]
            group = [ranks[start + i * axis["stride"]] for i in range(axis["size"])]
            assert group == layout.peers(rank, axis["name"]).tolist()
        data_index = sum(index(position, axis) * axis["data"] for axis in axes)
        first = range(data_index * micro, batch.global_batch, dp * micro)
        samples = [sample + i for sample in first for i in range(micro)]
        assert samples == batch.samples(0, data_index).ravel().tolist()


def test_a_page_names_no_other_file_and_no_address() -> None:
    layout = Layout(dp=2, sp=1, tp=2, ranks=[3, 2, 1, 0])
    nodes, racks = np.array([0, 0, 1, 1]), np.array([0, 1])
    page = draw_page(
        layout.axes, layout.grid, title="a < b", text="</pre>", nodes=nodes, racks=racks
    )
    assert "a &lt; b" in page
    assert "&lt;/pre&gt;" in page
    assert page.count("<script>") == 1
    assert not re.search(r"http|src=|href|url\(|@import|fetch\(", page)
    assert plan_of(page) == {
        "axes": [
            {"name": "dp", "size": 2, "stride": 2, "data": 0, "color": AXES["dp"].color},
            {"name": "sp", "size": 1, "stride": 2, "data": 0, "color": AXES["sp"].color},
            {"name": "tp", "size": 2, "stride": 1, "data": 0, "color": AXES["tp"].color},
        ],
        "ranks": [3, 2, 1, 0],
        "nodes": [0, 0, 1, 1],
        "racks": [0, 1],
        "batch": None,
    }


def test_the_largest_page_is_small() -> None:
    grid = np.random.default_rng(0).permutation(MAX_RANKS).reshape(16, 1024, 8)
    nodes = np.arange(MAX_RANKS) // 8
    page = draw_page(("pp", "dp", "tp"), grid, title="", nodes=nodes, racks=np.arange(16_384) // 16)
    assert len(page) < 2_000_000  # bytes


def test_a_notebook_frames_the_page_and_has_the_text_without_scripts() -> None:
    layout = Layout(dp=2, tp=2)
    shown = layout._repr_html_()
    page = html.unescape(shown.partition('srcdoc="')[2].partition('"')[0])
    assert page == draw_page(layout.axes, layout.grid, title="4 ranks")
    assert f"<pre>{layout}</pre>" in shown
    large = Layout(dp=MAX_NOTEBOOK_RANKS, tp=2)
    assert large._repr_html_() == f"<pre>{large}</pre>"


def test_axes_have_different_colors_up_to_six() -> None:
    assert axis_colors(["tp", "dp"]) == {"tp": AXES["tp"].color, "dp": AXES["dp"].color}
    assert axis_colors(["data"])["data"] == AXES["dp"].color
    names = ["dp_replicate", "dp_shard", "tp", "x", "y", "z"]
    assert len({*axis_colors(names).values()}) == 6
    assert len(axis_colors([*names, "w"])) == 7
