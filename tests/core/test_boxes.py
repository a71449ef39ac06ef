"""Boxes, character by character."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshkit.core.draw.node_boxes import draw_node_boxes

from meshkit import Layout
from meshkit.testing import layouts

TWIN = str.maketrans("┌─┐│└┘", "+-+|++")


def text(*lines: str) -> str:
    return "\n".join(lines)


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
    assert draw_node_boxes(layout, even(layout, 2)) == expected
    assert draw_node_boxes(layout, even(layout, 2), ascii=True) == expected.translate(TWIN)


def test_boxes_that_do_not_fit_stand_below() -> None:
    layout = Layout(dp=3, tp=2)
    assert draw_node_boxes(layout, even(layout, 3), width=40) == text(
        "┌ node 0 ──────────┐",
        "│       tp=0  tp=1 │",
        "│ dp=0     0     1 │",
        "└──────────────────┘",
        "┌ node 1 ──────────┐",
        "│       tp=0  tp=1 │",
        "│ dp=1     2     3 │",
        "└──────────────────┘",
        "┌ node 2 ──────────┐",
        "│       tp=0  tp=1 │",
        "│ dp=2     4     5 │",
        "└──────────────────┘",
    )
    assert draw_node_boxes(layout, even(layout, 3), width=64).count("\n") == 3


def test_nodes_that_cut_a_row_and_nodes_that_differ() -> None:
    layout = Layout(dp=2, tp=4)
    assert draw_node_boxes(layout, np.array([0, 0, 0, 1, 1, 1, 1, 1]), ascii=True) == text(
        "+ node 0 ----------------+  + node 1 ----------------------+",
        "|       tp=0  tp=1  tp=2 |  |       tp=0  tp=1  tp=2  tp=3 |",
        "| dp=0     0     1     2 |  | dp=0                       3 |",
        "+------------------------+  | dp=1     4     5     6     7 |",
        "                            +------------------------------+",
    )


def test_nodes_that_are_dealt_round() -> None:
    assert draw_node_boxes(Layout(dp=2, tp=2), np.array([0, 1, 0, 1]), ascii=True) == text(
        "+ node 0 ----+  + node 1 ----+",
        "|       tp=0 |  |       tp=1 |",
        "| dp=0     0 |  | dp=0     1 |",
        "| dp=1     2 |  | dp=1     3 |",
        "+------------+  +------------+",
    )


def test_one_rank_a_node_and_one_rank_in_all() -> None:
    assert draw_node_boxes(Layout(dp=1), np.zeros(1, int), ascii=True) == text(
        "+ node 0 +",
        "|   0    |",
        "+--------+",
    )
    assert draw_node_boxes(Layout(dp=2), np.arange(2), ascii=True).splitlines()[1:3] == [
        "|   dp=0 |  |   dp=1 |",
        "|      0 |  |      1 |",
    ]


def test_of_many_nodes_the_ends() -> None:
    layout = Layout(dp=100, tp=2)
    lines = draw_node_boxes(layout, even(layout, 100), width=200).splitlines()
    titles = [line.replace("─", "").split() for line in lines if "node" in line]
    assert titles == [
        [word for n in range(2) for word in ("┌", "node", str(n), "┐")],
        ["...", "96", "nodes", "more", "..."],
        [word for n in range(98, 100) for word in ("┌", "node", str(n), "┐")],
    ]


def test_sixteen_nodes_are_drawn_one_by_one() -> None:
    assert "more" not in draw_node_boxes(Layout(dp=16), np.arange(16))
    assert "... 13 nodes more ..." in draw_node_boxes(Layout(dp=17), np.arange(17))


def test_a_large_node_is_drawn_by_its_edges() -> None:
    layout = Layout(dp=100, tp=100)
    lines = draw_node_boxes(layout, even(layout, 2)).splitlines()
    assert lines[6].split() == ["│", *["..."] * 10, "│"]
    assert lines[1].split()[1:6] == ["tp=0", "tp=1", "tp=2", "tp=3", "..."]
    assert "9999" in lines[-2]


def test_a_row_that_does_not_fit_is_wrapped() -> None:
    assert draw_node_boxes(Layout(dp=2, tp=10), np.zeros(20, int), width=40) == text(
        "┌ node 0 ──────────────────────────────┐",
        "│ dp=0   0   1   2   3   4   5   6   7 │",
        "│        8   9                         │",
        "│ dp=1  10  11  12  13  14  15  16  17 │",
        "│       18  19                         │",
        "└──────────────────────────────────────┘",
    )


@given(layouts(max_ranks=48, with_ranks=True), st.integers(40, 100), st.data())
def test_each_rank_stands_once_in_its_node_and_all_fits(
    layout: Layout, width: int, data: st.DataObject
) -> None:
    count = st.integers(0, 5)
    dealt = st.lists(count, min_size=layout.num_ranks, max_size=layout.num_ranks)
    nodes = np.array(data.draw(dealt))
    for ascii in (False, True):
        drawn = draw_node_boxes(layout, nodes, width=width, ascii=ascii)
        assert max(map(len, drawn.splitlines())) <= width
        assert drawn.isascii() or not ascii
        alone = [word for word in drawn.replace("node ", "node").split() if word.isdigit()]
        assert sorted(map(int, alone)) == sorted(int(rank) for rank in layout.ranks)


@pytest.mark.parametrize("width", [1, 40])
def test_a_narrow_width_is_taken_as_40(width: int) -> None:
    assert draw_node_boxes(Layout(dp=64), np.zeros(64, int), width=width) == draw_node_boxes(
        Layout(dp=64), np.zeros(64, int), width=40
    )
