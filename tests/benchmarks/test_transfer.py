"""The benchmark of transfers: predicates of other planners, and rows from figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import report, transfer
from benchmarks.__main__ import RESULTS
from benchmarks.moves.planners import RandomMove, Side, is_m2n, is_megatron, is_planned
from meshkit import Layout


def side(first: int, cuts: dict[str, list[str]], text: str, marks: str = "", **axes: int) -> Side:
    count = Layout(**axes).num_ranks
    return Side(Layout(axes, ranks=range(first, first + count)), cuts, marks, text)


ONE_CUT = side(0, {"a": ["tp"], "b": []}, "a/tp b =dp", "=", dp=2, tp=2)
TWO_CUTS = side(0, {"a": ["dp", "tp"], "b": []}, "a/dp/tp b", dp=2, tp=2)
OTHER_DIM = side(4, {"a": [], "b": ["tp"]}, "a b/tp", tp=4)
SAME_DIM = side(4, {"a": ["tp"], "b": []}, "a/tp b", tp=4)
SAME_RANKS = side(0, {"a": ["tp"], "b": []}, "a/tp b", tp=4)
A_SUM = side(0, {"a": ["tp"], "b": []}, "a/tp b +dp", "+", dp=2, tp=2)


@pytest.mark.parametrize(
    ("source", "target", "size", "m2n", "megatron"),
    [
        (ONE_CUT, SAME_DIM, 8, True, True),
        (ONE_CUT, OTHER_DIM, 8, True, False),
        (ONE_CUT, SAME_RANKS, 8, False, True),
        (ONE_CUT, SAME_DIM, 6, False, False),
        (TWO_CUTS, SAME_DIM, 8, False, False),
        (A_SUM, SAME_DIM, 8, False, False),
    ],
)
def test_moves_within_the_limits_of_other_planners(
    source: Side, target: Side, size: int, m2n: bool, megatron: bool
) -> None:
    move = RandomMove(source, target, {"a": size, "b": 8})
    assert (is_m2n(move), is_megatron(move)) == (m2n, megatron)
    assert is_planned(move)


def test_the_rows_of_a_shape_have_a_goal_for_time_and_bytes() -> None:
    names = ["ours", *transfer.PEERS]
    figures: dict[str, Any] = {"times": {n: [1.0, 1.2] for n in names}, "bytes": [[1.0], [1.01]]}
    rows = transfer.link_rows("a state", 8, figures)
    assert [row.met for row in rows if row.goal] == [True, True, False]
    assert [row.peer for row in rows[1:4]] == [*transfer.PEERS.values()]


def test_the_page_has_the_times_of_the_committed_run() -> None:
    rows, _, quick = report.read(RESULTS / "transfer" / "results.json")
    assert not quick
    shown = f"{transfer.BEGIN}\n{transfer.table(rows['transfer'])}\n{transfer.END}"
    assert shown in transfer.PAGE.read_text()
    assert "\n| gather + broadcast | 4.49 | 8.37 |\n" in shown
