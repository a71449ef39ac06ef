"""Pictures, character by character."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit import Layout
from tests.core.draw.grids import draw_grid


def show(layout: Layout, *, mark: int | None = None, width: int = 80) -> str:
    return draw_grid(layout.axes, layout.grid, mark=mark, width=width)


def text(*lines: str) -> str:
    return "\n".join(lines)


def test_the_picture_in_the_docstring() -> None:
    assert show(Layout(dp=4, sp=2, tp=1), mark=5) == text(
        "dp=4 sp=2 tp=1",
        "      sp=0  sp=1",
        "dp=0     0     1",
        "dp=1     2     3",
        "dp=2     4   [5]",
        "dp=3     6     7",
    )


def test_three_axes() -> None:
    assert show(Layout(pp=2, dp=1, sp=2, tp=2)) == text(
        "pp=2 dp=1 sp=2 tp=2",
        "           tp=0  tp=1",
        "pp=0 sp=0     0     1",
        "pp=0 sp=1     2     3",
        "pp=1 sp=0     4     5",
        "pp=1 sp=1     6     7",
    )


def test_one_rank() -> None:
    assert show(Layout(dp=1, tp=1)) == "dp=1 tp=1\n  0"
    assert show(Layout(dp=1, ranks=[7]), mark=7) == "dp=1\n  [7]"


def test_one_axis() -> None:
    assert show(Layout(dp=4), mark=0) == text(
        "dp=4",
        "  dp=0  dp=1  dp=2  dp=3",
        "   [0]     1     2     3",
    )


def test_one_axis_that_does_not_fit_is_wrapped_without_a_header() -> None:
    assert show(Layout(dp=20), mark=13, width=40) == text(
        "dp=20",
        "     0     1     2     3     4     5",
        "     6     7     8     9    10    11",
        "    12  [13]    14    15    16    17",
        "    18    19",
    )


def test_rows_that_do_not_fit_are_wrapped_under_their_label() -> None:
    assert show(Layout(dp=2, tp=9), width=40) == text(
        "dp=2 tp=9",
        "dp=0   0   1   2   3   4   5   6   7   8",
        "dp=1   9  10  11  12  13  14  15  16  17",
    )
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


def test_the_mark_is_shown_in_a_large_grid() -> None:
    assert show(Layout(dp=2000, tp=3), mark=3001) == text(
        "dp=2000 tp=3",
        "           tp=0    tp=1    tp=2",
        "dp=0          0       1       2",
        "dp=1          3       4       5",
        "dp=2          6       7       8",
        "dp=3          9      10      11",
        "...         ...     ...     ...",
        "dp=1000    3000  [3001]    3002",
        "...         ...     ...     ...",
        "dp=1996    5988    5989    5990",
        "dp=1997    5991    5992    5993",
        "dp=1998    5994    5995    5996",
        "dp=1999    5997    5998    5999",
    )


def test_a_mark_in_the_first_column_too() -> None:
    """argwhere finds a place by both its coordinates."""
    assert "[2997]" in show(Layout(dp=2000, tp=3), mark=2997)
    assert show(Layout(dp=5000), mark=2000, width=60) == text(
        "dp=5000",
        "       0       1       2       3     ...  [2000]     ...",
        "    4996    4997    4998    4999",
    )


def test_a_mark_beside_the_edge_leaves_no_gap() -> None:
    assert show(Layout(dp=5000), mark=4, width=200).splitlines()[1].split() == [
        *("dp=0", "dp=1", "dp=2", "dp=3", "dp=4", "..."),
        *("dp=4996", "dp=4997", "dp=4998", "dp=4999"),
    ]


def test_ranks_of_a_sub_world() -> None:
    assert show(Layout(dp=2, tp=2, ranks=[7, 0, 3, 5]), mark=3) == text(
        "dp=2 tp=2",
        "      tp=0  tp=1",
        "dp=0     7     0",
        "dp=1   [3]     5",
    )


def test_a_mark_that_is_not_there_marks_nothing() -> None:
    assert show(Layout(dp=2), mark=9) == show(Layout(dp=2))


def test_a_narrow_width_is_taken_as_40() -> None:
    layout = Layout(dp=4, tp=8)
    assert show(layout, width=1) == show(layout, width=40)
    assert show(layout, width=40) != show(layout, width=80)


@pytest.mark.parametrize("layout", [Layout(dp=4096), Layout(dp=64, tp=64)])
def test_4096_ranks_are_drawn_in_full(layout: Layout) -> None:
    assert "..." not in show(layout)
    assert "..." in show(Layout(dp=4097))


def test_a_long_label_keeps_its_end() -> None:
    names = {f"a_rather_long_name{i}": 2 for i in range(3)}
    picture = show(Layout(**names), width=40)
    rows = [line for line in picture.splitlines() if line.startswith("~")]
    assert len(rows) == 4
    assert [row.split("=")[-1].split()[0] for row in rows] == ["0", "1", "0", "1"]
    assert max(map(len, picture.splitlines())) <= 40


def test_the_grid_is_not_touched() -> None:
    grid = np.arange(4).reshape(2, 2)
    draw_grid(("dp", "tp"), grid, mark=1)
    assert grid.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("length", range(10, 50))
def test_a_label_never_takes_more_than_half(length: int) -> None:
    axis = "x" * length
    lines = draw_grid((axis, "tp"), np.arange(200).reshape(2, 100), width=40).splitlines()
    assert max(map(len, lines)) <= 40
    labels = [line.split()[0] for line in lines if line.split()[0].endswith(("x=0", "x=1"))]
    assert labels == [f"{axis}={i}" if length <= 18 else f"~{'x' * 17}={i}" for i in (0, 1)]


@pytest.mark.parametrize("length", [37, 38, 39, 40, 41, 77, 100])
def test_a_title_with_a_long_name_fits_and_leaves_no_number_alone(length: int) -> None:
    lines = draw_grid(("x" * length, "tp"), np.arange(100).reshape(50, 2), width=40).splitlines()
    assert max(map(len, lines)) <= 40
    alone = [token for line in lines for token in line.split() if token.isdigit()]
    assert alone == [str(rank) for rank in range(100)]
