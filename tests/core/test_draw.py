"""Pictures of grids and of nodes, character by character."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshkit import Layout
from meshkit.core.draw import draw_node_boxes, draw_positions
from meshkit.testing import layouts


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
