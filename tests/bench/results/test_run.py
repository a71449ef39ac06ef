"""A whole run: what is planned, what company costs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.bench.results.measurement import Case
from meshkit.bench.results.run import (
    modes,
    num_barriers,
    plan_cases,
    slowdowns,
    total_passes,
)
from meshkit.bench.results.targets import default_targets, parse_targets
from meshkit.testing import layouts
from tests.bench.results.example_runs import BOTH, CLEAN, DP, EMPTY, FOUND, LAYOUT, REPORT, SP

quick = settings(deadline=None, max_examples=60, database=None)


@quick
@given(layouts(max_ranks=64))
def test_every_group_can_share_every_size(layout: Layout) -> None:
    todo = plan_cases(layout, ["broadcast"], default_targets(layout), [1, 1000, 10**6])
    for case in todo:
        assert case.bytes % 4 == 0
        assert all(case.bytes // 4 % layout.size(*axes) == 0 for axes in case.target.groups)
    assert len(set(todo)) == len(todo)


def test_cases_come_operation_by_operation_target_by_target_size_by_size() -> None:
    todo = plan_cases(LAYOUT, ["broadcast", "all_reduce"], (DP, SP), [3, 16, 17, 64])
    assert todo[:4] == [*(Case("broadcast", DP, n) for n in (16, 64)), *todo[2:4]]
    assert [case.target for case in todo[:4]] == [DP, DP, SP, SP]
    assert {case.op for case in todo[4:]} == {"all_reduce"}
    assert len(todo) == 8


def test_the_ways_of_a_target() -> None:
    (two,) = parse_targets(LAYOUT, ["sp dp"])
    assert modes(LAYOUT, two) == ("alone",)  # there is one group: all at once is the same
    assert modes(LAYOUT, BOTH) == ("overlap",)
    assert modes(LAYOUT, SP) == ("alone", "concurrent")


def test_what_company_costs() -> None:
    # dp: both groups at once 2.5 against 1.5, and 7 against 4; sp: 1.5 against 1;
    # dp and sp at once 5, against the slower of 2.5 and 1.5
    wanted = [None, 2.5 / 1.5, None, 7 / 4, None, 1.5, 2.0, None]
    found = slowdowns(FOUND)
    assert [row is None for row in found] == [row is None for row in wanted]
    assert [row for row in found if row] == pytest.approx([row for row in wanted if row])


def test_company_is_compared_with_what_there_is() -> None:
    overlap = FOUND[6]
    assert slowdowns([overlap]) == [None]
    assert slowdowns([*FOUND[:2], overlap])[2] is None  # of sp nothing is known
    alone = [FOUND[0], FOUND[4], overlap]  # an axis of one group has no other way
    assert slowdowns(alone)[2] == pytest.approx(5 / 1.5)
    assert slowdowns([FOUND[1]]) == [None]


def test_a_wrong_element_counts_once_however_often_its_case_is_measured() -> None:
    assert REPORT.wrong == 3
    assert CLEAN.wrong == 0
    assert (REPORT.interrupted, EMPTY.interrupted) == (False, True)
    assert [(fit.op, fit.target, fit.mode) for fit in REPORT.fits] == [
        ("all_reduce", "dp", "alone"),
        ("all_reduce", "dp", "concurrent"),
    ]


def test_how_often_ranks_wait_for_each_other_by_hand() -> None:
    layout = Layout(dp=2, sp=2)
    assert num_barriers(layout, [], 16) == 4
    for name, more in (("dp", 3 + (3 * 2 + 1) + (3 + 1)), ("dp sp", 3 + 4), ("dp+sp", 3 + 4)):
        todo = plan_cases(layout, ["broadcast"], parse_targets(layout, [name]), [64, 256])
        assert num_barriers(layout, todo, None) == 4 + 2 * more


@quick
@given(layouts(max_ranks=64), st.integers(1, 5) | st.none())
def test_passes_by_counting_them(layout: Layout, alone: int | None) -> None:
    todo = plan_cases(layout, ["broadcast"], default_targets(layout), [64])
    made = 0
    for case in todo:
        groups = len(layout.groups(*case.target.span))
        for mode in modes(layout, case.target):
            made += len(range(groups)[:alone]) if mode == "alone" else 1
    assert total_passes(layout, todo, alone) == made


def test_the_passes_of_many_groups_do_not_grow_with_the_world() -> None:
    for dp in (1000, 100_000):
        layout = Layout(dp=dp, tp=8)
        todo = plan_cases(layout, ["broadcast"], parse_targets(layout, ["tp"]), [2**20])
        assert total_passes(layout, todo, 16) == 16 + 1
        assert num_barriers(layout, todo, 16) == 4 + 3 + (3 * 16 + 1) + (3 + 1)
    assert total_passes(layout, todo, None) == 100_001
