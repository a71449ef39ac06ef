"""Cells and boxes: their positions by node, their sizes, and the text in them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.draw.svg_layout import (
    CHARACTER_WIDTH,
    MAX_LABELED,
    MAX_NUMBERED,
    CellStyle,
    arrange,
    cell_style,
    num_columns,
)

quick = settings(deadline=None, max_examples=60, database=None)
STYLE = CellStyle(10, 20, 0, 0, 0, 0, 0, title=3, pad=3, gap=2, radius=0)
HEAD, MARGIN = 5, 6  # of a title of 3 pixels, and twice the pad


def test_two_nodes_by_hand() -> None:
    where = arrange(np.array([4, 9, 4, 9]), STYLE, 2, titled=True)
    assert where.nodes.tolist() == [4, 9]
    assert where.box == (10 + 2 + 10 + 2 * 3, 20 + 2 * 3 + 5)
    assert where.boxes.tolist() == [[0, 0], [34, 0]]
    assert where.cells.tolist() == [[3, 8], [37, 8], [15, 8], [49, 8]]
    assert where.size == (28 + 6 + 28, 31)


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 8))
def test_by_a_walk_over_the_ranks(nodes: list[int], inner: int) -> None:
    """The same places by a loop that counts what each node has so far."""
    where = arrange(np.array(nodes), STYLE, inner, titled=True)
    names = sorted(set(nodes))
    most = max(nodes.count(node) for node in names)
    across = (where.box[0] - 2 * STYLE.pad + STYLE.gap) // (STYLE.width + STYLE.gap)
    held = dict.fromkeys(names, 0)
    for position, node in enumerate(nodes):
        row, column = divmod(held[node], across)
        left, upper = where.boxes[names.index(node)].tolist()
        x = left + STYLE.pad + column * (STYLE.width + STYLE.gap)
        y = upper + STYLE.pad + HEAD + row * (STYLE.height + STYLE.gap)
        assert where.cells[position].tolist() == [x, y]
        held[node] += 1
    rows = -(-most // across)
    tall = rows * (STYLE.height + STYLE.gap) - STYLE.gap
    assert where.box[1] == 2 * STYLE.pad + HEAD + tall


@quick
@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_all_boxes_just_fit_the_size(nodes: list[int]) -> None:
    where = arrange(np.array(nodes), STYLE, 1, titled=True)
    ends = where.boxes + np.array(where.box)
    assert tuple(ends.max(axis=0).tolist()) == where.size
    rows = sorted({y for _, y in where.boxes.tolist()})
    assert all(later - earlier == where.box[1] + MARGIN for earlier, later in pairwise(rows))


def test_eight_ranks_of_a_node_stand_in_one_row() -> None:
    where = arrange(np.arange(64) // 8, STYLE, 8, titled=True)
    for node in range(8):
        assert len({y for _, y in where.cells[node * 8 : node * 8 + 8].tolist()}) == 1


def test_one_box_has_the_innermost_axis_in_its_rows() -> None:
    cells = arrange(np.zeros(64, dtype=np.int64), STYLE, 8, titled=True).cells.tolist()
    starts = [position for position, (x, _) in enumerate(cells) if x == STYLE.pad]
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


AXES = [("dp", 8), ("tp", 16)]


def test_three_sizes() -> None:
    small, middle, large = (
        cell_style(AXES, n, 16_383) for n in (MAX_NUMBERED + 1, MAX_LABELED + 1, MAX_LABELED)
    )
    assert (large.number, large.label, middle.number, middle.label) == (15, 11, 10, 0)
    assert (small.number, small.label) == (0, 0)
    assert small.width < middle.width < large.width
    assert small.height < middle.height < large.height
    assert cell_style(AXES, MAX_LABELED + 1, 9) == cell_style(AXES, MAX_NUMBERED, 9)
    assert cell_style(AXES, 1, 9) == cell_style(AXES, MAX_LABELED, 9)


@pytest.mark.parametrize("num_ranks", [MAX_LABELED, MAX_NUMBERED, MAX_NUMBERED + 1])
@pytest.mark.parametrize("bands", [0, 1, 2, 6, 14])
def test_bands_fit_their_cell_and_numbers_stand_above(num_ranks: int, bands: int) -> None:
    cells = cell_style([(f"a{i}", 2) for i in range(bands)], num_ranks, 9)
    assert cells.top + bands * cells.band <= cells.height
    assert cells.number <= cells.top
    assert cells.label <= cells.band
    assert cells.height > 0


@pytest.mark.parametrize("largest", [0, 7, 2047, 10**12, 2**62])
@pytest.mark.parametrize("num_ranks", [MAX_LABELED, MAX_NUMBERED])
def test_the_longest_number_fits(largest: int, num_ranks: int) -> None:
    cells = cell_style(AXES, num_ranks, largest)
    assert len(str(largest)) * cells.number * CHARACTER_WIDTH <= cells.width


@pytest.mark.parametrize("axis", ["d", "tp", "replicate", "an_axis_of_many_letters"])
def test_a_label_fits_and_keeps_its_number(axis: str) -> None:
    cells = cell_style([(axis, 128)], MAX_LABELED, 127)
    for index in (0, 127):
        label = cells.cut(f"{axis}={index}")
        assert len(label) * cells.label * CHARACTER_WIDTH <= cells.width - 2 * cells.inset
        assert label.endswith(f"={index}")
        assert label in (f"{axis}={index}", f"~{axis[-len(label) + len(str(index)) + 2 :]}={index}")
        assert (label[0] == "~") == (axis == "an_axis_of_many_letters")


def test_the_name_of_a_node_as_far_as_it_fits() -> None:
    cells = cell_style(AXES, MAX_NUMBERED + 1, 9)
    assert [cells.title_prefix(7, width) for width in (60, 20, 5)] == ["node ", "", None]
    assert cells.title_prefix(10**9, 60) is None or cells.title_prefix(10**9, 60) == ""


def test_a_box_without_a_title_has_no_line_for_it() -> None:
    bare, titled = (
        arrange(np.zeros(4, dtype=np.int64), STYLE, 2, titled=titled) for titled in (False, True)
    )
    assert titled.box == (bare.box[0], bare.box[1] + HEAD)
    assert (titled.cells - bare.cells).tolist() == [[0, HEAD]] * 4
