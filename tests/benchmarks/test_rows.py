"""Rows: ratios, goals and the table, to the letter."""

from __future__ import annotations

import doctest
from statistics import median

import pytest

from benchmarks import rows
from benchmarks.rows import Goal, Row, alone, compared, line, missing, rows_table
from meshkit.bench.results.measurement import Spread


def test_examples_in_docstrings() -> None:
    found = doctest.testmod(rows)
    assert found.attempted >= 3
    assert found.failed == 0


def test_the_ratio_is_taken_repetition_by_repetition() -> None:
    ours, theirs = [1.0, 10.0, 100.0], [2.0, 5.0, 100.0]
    row = compared("a map", 8, "numpy", "s", (ours, theirs))
    assert row.ratio == Spread(0.75, 1.0, 1.5)  # of 0.5, 2 and 1
    assert row.ratio.median != median(ours) / median(theirs)
    assert (row.ours, row.theirs) == (10.0, 5.0)


def test_sides_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        compared("a map", 8, "numpy", "s", ([1.0], [1.0, 2.0]))


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("ratio", "<=", 1.0), True),
        (Goal("ratio", "<=", 0.99), False),
        (Goal("ratio", ">=", 1.0), True),
        (Goal("ratio", ">=", 1.01), False),
        (Goal("low", "<=", 0.5), True),
        (Goal("low", "<=", 0.49), False),
        (Goal("ours", "<=", 3.0), True),
        (Goal("ours", "<=", 2.9), False),
    ],
)
def test_a_goal_looks_at_one_figure(goal: Goal, met: bool) -> None:
    ratio = Spread(0.5, 1.0, 2.0)
    assert goal.met(3.0, ratio) is met
    assert Row("w", 1, "p", "s", 3.0, 3.0, ratio, goal).met is met


def test_without_a_figure_no_goal_is_met_or_missed() -> None:
    assert Goal("ratio", "<=", 1.0).met(3.0, None) is None
    assert Goal("ours", "<=", 1.0).met(None, None) is None
    assert alone("w", 1, "s", [3.0]).met is None
    assert missing("w", 8, "DeepSpeed", "s", "deepspeed").met is None


def test_the_table() -> None:
    times = ([0.001, 0.001], [0.5, 0.25])
    shown = rows_table(
        [
            compared("all groups", 65_536, "Megatron", "s", times, Goal("ratio", "<=", 0.01)),
            compared("all groups", 8, "numpy", "s", times, Goal("ratio", "<=", 0.001)),
            alone("meshkit plan", 1024, "s", [0.1, 0.3, 0.2]),
            missing("all groups", 8, "DeepSpeed", "s", "deepspeed"),
        ]
    )
    assert [" ".join(text.split()) for text in shown.splitlines()] == [
        "what ranks peer ours theirs unit ours/theirs goal",
        "all groups 65,536 Megatron 0.001 0.375 s 0.003 (0.0025-0.0035) ratio <= 0.01: met",
        "all groups 8 numpy 0.001 0.375 s 0.003 (0.0025-0.0035) ratio <= 0.001: MISSED",
        "meshkit plan 1,024 - 0.2 s",
        "all groups 8 DeepSpeed deepspeed is not installed: "
        "pip install -c constraints.txt -e '.[bench]'",
    ]


def test_columns_stand_below_their_names() -> None:
    row = compared("x" * 46, 1_048_576, "y" * 25, "tokens/s", ([123_456.0], [2.0]))
    head, below = rows.NAMES, line(row)
    for name, end in (("ranks", "1,048,576"), ("ours", "123,456"), ("theirs", "2")):
        assert below[: head.index(name) + len(name)].endswith(end)
    assert below[head.index("unit") :].startswith("tokens/s")
    assert below[head.index("ours/theirs") :].startswith("61,728 (")
