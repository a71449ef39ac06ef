"""Pictures of grids and of nodes, character by character, and the figures of the page of a plan."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshkit import BatchPlan, Layout
from meshkit.data.batch import data_axes
from meshkit.layout.axes import axis_colors
from meshkit.layout.draw import (
    MAX_NOTEBOOK_RANKS,
    MAX_PAGE_RANKS,
    PageBatch,
    draw_node_boxes,
    draw_page,
    draw_positions,
)
from meshkit.synonyms import AXES
from meshkit.testing import layouts
from tests.laws.derivations import law


def draw_grid(
    axes: tuple[str, ...], grid: NDArray[np.int64], *, mark: int | None = None, width: int = 80
) -> str:
    """The grid as text, with a marked rank if the grid has it."""
    ranks = grid.ravel().tolist()
    position = ranks.index(mark) if mark in ranks else None
    return draw_positions(axes, grid.shape, ranks.__getitem__, mark=position, width=width)


def show(layout: Layout, *, mark: int | None = None, width: int = 80) -> str:
    return draw_grid(layout.axes, layout.grid, mark=mark, width=width)


def text(*lines: str) -> str:
    return "\n".join(lines)


def test_rows_that_do_not_fit_are_wrapped_under_their_label() -> None:
    assert show(Layout(dp=2, tp=10), width=40) == text(
        "dp=2 tp=10",
        "dp=0   0   1   2   3   4   5   6   7   8",
        "       9",
        "dp=1  10  11  12  13  14  15  16  17  18",
        "      19",
    )


def test_a_large_grid_is_drawn_by_its_edges() -> None:
    assert show(Layout(dp=100, tp=100)) == text(
        "dp=100 tp=100",
        "        tp=0   tp=1   tp=2   tp=3    ...  tp=96  tp=97  tp=98  tp=99",
        "dp=0       0      1      2      3    ...     96     97     98     99",
        "dp=1     100    101    102    103    ...    196    197    198    199",
        "dp=2     200    201    202    203    ...    296    297    298    299",
        "dp=3     300    301    302    303    ...    396    397    398    399",
        "...      ...    ...    ...    ...    ...    ...    ...    ...    ...",
        "dp=96   9600   9601   9602   9603    ...   9696   9697   9698   9699",
        "dp=97   9700   9701   9702   9703    ...   9796   9797   9798   9799",
        "dp=98   9800   9801   9802   9803    ...   9896   9897   9898   9899",
        "dp=99   9900   9901   9902   9903    ...   9996   9997   9998   9999",
    )


def test_a_mark_in_the_first_column_too() -> None:
    """argwhere finds a place by both its coordinates."""
    assert "[2997]" in show(Layout(dp=2000, tp=3), mark=2997)
    assert show(Layout(dp=5000), mark=2000, width=60) == text(
        "dp=5000",
        "       0       1       2       3     ...  [2000]     ...",
        "    4996    4997    4998    4999",
    )


def test_long_names_fit_and_a_label_never_takes_more_than_half() -> None:
    for length in (10, 18, 19, 30, 37, 38, 39, 40, 41, 77, 100):
        axis = "x" * length
        lines = draw_grid((axis, "tp"), np.arange(200).reshape(2, 100), width=40).splitlines()
        assert max(map(len, lines)) <= 40
        labels = [line.split()[0] for line in lines if line.split()[0].endswith(("x=0", "x=1"))]
        assert labels == [f"{axis}={i}" if length <= 18 else f"~{'x' * 17}={i}" for i in (0, 1)]
        alone = [token for line in lines for token in line.split() if token.isdigit()]
        assert alone == [str(rank) for rank in range(200)]


def test_of_many_nodes_the_ends() -> None:
    layout = Layout(dp=100, tp=2)
    nodes = np.arange(200) // 2
    lines = draw_node_boxes(layout.axes, layout.grid, nodes, width=200).splitlines()
    titles = [line.replace("─", "").split() for line in lines if "node" in line]
    assert titles == [
        [word for n in range(2) for word in ("┌", "node", str(n), "┐")],
        ["...", "96", "nodes", "more", "..."],
        [word for n in range(98, 100) for word in ("┌", "node", str(n), "┐")],
    ]


@law
@given(layouts(max_ranks=48, with_ranks=True), st.integers(40, 100), st.data())
def test_each_rank_stands_once_in_its_node_and_all_fits(
    layout: Layout, width: int, data: st.DataObject
) -> None:
    count = st.integers(0, 5)
    dealt = st.lists(count, min_size=layout.num_ranks, max_size=layout.num_ranks)
    nodes = np.array(data.draw(dealt))
    for ascii in (False, True):
        drawn = draw_node_boxes(layout.axes, layout.grid, nodes, width=width, ascii=ascii)
        assert max(map(len, drawn.splitlines())) <= width
        assert drawn.isascii() or not ascii
        alone = [word for word in drawn.replace("node ", "node").split() if word.isdigit()]
        assert sorted(map(int, alone)) == sorted(int(rank) for rank in layout.ranks)


# ---------------------------------------------------------------- the page of a plan


def plan_of(page: str) -> dict[str, Any]:
    """Return the figures in a page."""
    text = page.partition("const plan = ")[2].partition(";\n")[0]
    plan: dict[str, Any] = json.loads(text)
    return plan


def index(position: int, axis: dict[str, Any]) -> int:
    """Return the index of a position along an axis, as the script does."""
    return int(position // axis["stride"] % axis["size"])


@law
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
    facts = {"ranks": [3, 2, 1, 0], "nodes": [0, 0, 1, 1], "racks": [0, 1], "batch": None}
    plan = plan_of(page)
    assert {name: plan[name] for name in facts} == facts
    assert [axis["color"] for axis in plan["axes"]] == [AXES[a].color for a in layout.axes]


def test_the_largest_page_is_small() -> None:
    grid = np.random.default_rng(0).permutation(MAX_PAGE_RANKS).reshape(16, 1024, 8)
    nodes = np.arange(MAX_PAGE_RANKS) // 8
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
