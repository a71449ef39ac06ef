"""Where cells stand: by node, in the order of the grid, apart from each other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshkit.core.draw.svg_layout import Spacing, arrange, num_columns

quick = settings(deadline=None, max_examples=60, database=None)
ROOM = Spacing(width=10, height=20, gap=2, pad=3, head=5, apart=7)


def test_two_nodes_by_hand() -> None:
    where = arrange(np.array([4, 9, 4, 9]), ROOM, 2)
    assert where.nodes.tolist() == [4, 9]
    assert where.box == (10 + 2 + 10 + 2 * 3, 20 + 2 * 3 + 5)
    assert where.boxes.tolist() == [[0, 0], [35, 0]]
    assert where.cells.tolist() == [[3, 8], [38, 8], [15, 8], [50, 8]]
    assert where.size == (28 + 7 + 28, 31)


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 8))
def test_by_a_walk_over_the_ranks(nodes: list[int], inner: int) -> None:
    """The same places by a loop that counts what each node has so far."""
    where = arrange(np.array(nodes), ROOM, inner)
    names = sorted(set(nodes))
    most = max(nodes.count(node) for node in names)
    across = (where.box[0] - 2 * ROOM.pad + ROOM.gap) // (ROOM.width + ROOM.gap)
    held = dict.fromkeys(names, 0)
    for position, node in enumerate(nodes):
        row, column = divmod(held[node], across)
        left, upper = where.boxes[names.index(node)].tolist()
        x = left + ROOM.pad + column * (ROOM.width + ROOM.gap)
        y = upper + ROOM.pad + ROOM.head + row * (ROOM.height + ROOM.gap)
        assert where.cells[position].tolist() == [x, y]
        held[node] += 1
    rows = -(-most // across)
    tall = rows * (ROOM.height + ROOM.gap) - ROOM.gap
    assert where.box[1] == 2 * ROOM.pad + ROOM.head + tall


@quick
@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_all_boxes_just_fit_the_size(nodes: list[int]) -> None:
    where = arrange(np.array(nodes), ROOM, 1)
    ends = where.boxes + np.array(where.box)
    assert tuple(ends.max(axis=0).tolist()) == where.size
    rows = sorted({y for _, y in where.boxes.tolist()})
    assert all(later - earlier == where.box[1] + ROOM.apart for earlier, later in pairwise(rows))


def test_eight_ranks_of_a_node_stand_in_one_row() -> None:
    where = arrange(np.arange(64) // 8, ROOM, 8)
    for node in range(8):
        assert len({y for _, y in where.cells[node * 8 : node * 8 + 8].tolist()}) == 1


def test_one_box_has_the_innermost_axis_in_its_rows() -> None:
    cells = arrange(np.zeros(64, dtype=np.int64), ROOM, 8).cells.tolist()
    starts = [position for position, (x, _) in enumerate(cells) if x == ROOM.pad]
    assert len(starts) > 1
    assert all(start % 8 == 0 for start in starts)


@pytest.mark.parametrize(
    ("number", "step", "shape", "inner", "wanted"),
    [
        (1, (1, 1), 1.6, 1, 1),
        (100, (1, 1), 1.0, 1, 10),
        (100, (4, 1), 1.0, 1, 5),
        (100, (1, 1), 4.0, 1, 20),
        (12, (1, 1), 1.1, 1, 4),
        (12, (1, 1), 1.1, 6, 3),  # 3 divides 6, 4 would cut it
        (10, (1, 1), 1.1, 1, 5),  # two full rows, though 4, 4 and 2 come nearer
        (997, (1, 1), 1.6, 1, 40),  # a prime has no full rows
    ],
)
def test_the_number_of_columns(
    number: int, step: tuple[int, int], shape: float, inner: int, wanted: int
) -> None:
    assert num_columns(number, step, shape, inner) == wanted


@quick
@given(st.integers(1, 3000), st.integers(1, 50), st.integers(1, 50))
def test_the_page_is_no_ribbon(number: int, wide: int, tall: int) -> None:
    across = num_columns(number, (wide, tall), 1.6, 1)
    assert 1 <= across <= number
    ratio = across * wide / (-(-number // across) * tall)
    assert ratio < 1.6 * 3.5 or across == 1
    assert ratio > 1.6 / 3.5 or across == number
