"""Boxes, character by character."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.core.draw.node_boxes import draw_node_boxes
from meshkit.testing import layouts

TWIN = str.maketrans("┌─┐│└┘", "+-+|++")


def text(*lines: str) -> str:
    return "\n".join(lines)


def boxes(layout: Layout, nodes: np.ndarray, *, width: int = 80, ascii: bool = False) -> str:
    return draw_node_boxes(layout.axes, layout.grid, nodes, width=width, ascii=ascii)


def even(layout: Layout, nodes: int) -> np.ndarray:
    return np.repeat(np.arange(nodes), layout.num_ranks // nodes)


def test_the_picture_in_the_docstring() -> None:
    layout = Layout(dp=4, sp=2, tp=1)
    expected = text(
        "┌ node 0 ──────────┐  ┌ node 1 ──────────┐",
        "│       sp=0  sp=1 │  │       sp=0  sp=1 │",
        "│ dp=0     0     1 │  │ dp=2     4     5 │",
        "│ dp=1     2     3 │  │ dp=3     6     7 │",
        "└──────────────────┘  └──────────────────┘",
    )
    assert boxes(layout, even(layout, 2)) == expected
    assert boxes(layout, even(layout, 2), ascii=True) == expected.translate(TWIN)


def test_nodes_that_cut_a_row_and_nodes_that_differ() -> None:
    layout = Layout(dp=2, tp=4)
    assert boxes(layout, np.array([0, 0, 0, 1, 1, 1, 1, 1]), ascii=True) == text(
        "+ node 0 ----------------+  + node 1 ----------------------+",
        "|       tp=0  tp=1  tp=2 |  |       tp=0  tp=1  tp=2  tp=3 |",
        "| dp=0     0     1     2 |  | dp=0                       3 |",
        "+------------------------+  | dp=1     4     5     6     7 |",
        "                            +------------------------------+",
    )


def test_of_many_nodes_the_ends() -> None:
    layout = Layout(dp=100, tp=2)
    lines = boxes(layout, even(layout, 100), width=200).splitlines()
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
        drawn = boxes(layout, nodes, width=width, ascii=ascii)
        assert max(map(len, drawn.splitlines())) <= width
        assert drawn.isascii() or not ascii
        alone = [word for word in drawn.replace("node ", "node").split() if word.isdigit()]
        assert sorted(map(int, alone)) == sorted(int(rank) for rank in layout.ranks)
