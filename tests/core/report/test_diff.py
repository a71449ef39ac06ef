"""The diff of two grids agrees with their groups and samples, compared one by one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout
from meshkit.core.report.diff import Difference, format_diff, num_weight_parts, weight_moves

SIZE = st.integers(1, 4)
GRIDS = st.builds(lambda dp, sp, tp: Layout(dp=dp, sp=sp, tp=tp), SIZE, SIZE, SIZE)


def members(layout: Layout, rank: int, axis: str) -> list[int] | None:
    if rank not in layout:
        return None
    return layout.peers(rank, axis).tolist() if axis in layout.axes else [rank]


@given(GRIDS, GRIDS)
def test_groups_are_those_compared_one_by_one(before: Layout, after: Layout) -> None:
    found = Difference.of(before, after.view(dp=after.num_ranks // after.sizes["tp"], tp=-1))
    assert list(found.groups) == ["dp", "sp", "tp"]
    for axis, ranks in found.groups.items():
        assert ranks.tolist() == [
            rank
            for rank in range(max(before.num_ranks, after.num_ranks))
            if members(before, rank, axis) != members(found.after, rank, axis)
        ]


@given(GRIDS, GRIDS, st.integers(1, 3), st.integers(1, 4))
def test_data_are_those_of_the_plans_themselves(
    before: Layout, after: Layout, micro_batch: int, steps: int
) -> None:
    plan = BatchPlan.solve(dp=before.sizes["dp"], micro_batch=micro_batch, accumulation_steps=steps)
    later = plan.resize(after.sizes["dp"])
    found = Difference.of(before, after, plan)
    assert found.data.tolist() == [
        rank
        for rank in range(min(before.num_ranks, after.num_ranks))
        if plan.samples(0, before.coordinate(rank)["dp"]).tolist()
        != later.samples(0, after.coordinate(rank)["dp"]).tolist()
    ]


def test_without_a_batch_it_is_the_coordinate_and_the_size() -> None:
    assert Difference.of(Layout(dp=4), Layout(dp=2, tp=2)).data.tolist() == [0, 1, 2, 3]
    assert Difference.of(Layout(dp=2, tp=2), Layout(tp=2, dp=2)).data.tolist() == [1, 2]
    one = BatchPlan.solve(dp=4, micro_batch=1, accumulation_steps=1)
    assert Difference.of(Layout(dp=4), Layout(dp=2, tp=2), one).data.tolist() == [0, 1, 2, 3]
    assert Difference.of(Layout(dp=4), Layout(dp=8), one).data.tolist() == []


def test_what_stays_is_said_to_stay() -> None:
    found = Difference.of(Layout(dp=2, tp=2), Layout(dp=2, sp=1, tp=2))
    assert format_diff(found, ascii=True) == (
        "before  dp=2 tp=2: 4 ranks\n"
        "after   dp=2 sp=1 tp=2: 4 ranks\n"
        "\n"
        "axis  before  after  whose group changes\n"
        "----  ------  -----  -------------------\n"
        "dp         2      2  0 ranks\n"
        "tp         2      2  0 ranks\n"
        "sp         -      1  0 ranks\n"
        "\n"
        "data      dp 2 -> 2; 0 ranks own other samples of a step\n"
        "weights   2 parts -> 2 parts (weights are cut by pp and tp, all other axes hold\n"
        "            copies)\n"
        "          4 ranks: 0-3 hold all of what they need\n"
        "to fetch  nothing"
    )


def test_a_smaller_grid_word_for_word() -> None:
    found = Difference.of(Layout(dp=2, tp=4), Layout(dp=3, tp=1))
    assert format_diff(found, width=100) == (
        "before  dp=2 tp=4: 8 ranks\n"
        "after   dp=3 tp=1: 3 ranks\n"
        "\n"
        "axis  before  after  whose group changes\n"
        "────  ──────  ─────  ───────────────────\n"
        "dp         2      3  8 ranks: 0-7\n"
        "tp         4      1  8 ranks: 0-7\n"
        "\n"
        "ranks     3 stay, 5 leave: 3-7\n"
        "data      dp 2 -> 3; 3 ranks: 0-2 own other samples of a step\n"
        "weights   4 parts -> 1 part (weights are cut by pp and tp, all other axes hold copies)\n"
        "          3 ranks: 0-2 hold 1/4 of what they need\n"
        "to fetch  2.25 times the model, all ranks together\n"
        "lost      1 part of 4 is on no rank that stays"
    )


def test_ranks_that_join() -> None:
    text = format_diff(Difference.of(Layout(dp=1), Layout(dp=2)))
    assert "\nranks     1 stay, 1 join: 1\n" in text
    assert "\n          1 rank: 1 holds none of what they need\n" in text


@pytest.mark.parametrize("width", [1, 40, 64])
def test_it_fits(width: int) -> None:
    before, after = Layout(pp=4, dp=64, tp=8), Layout(pp=2, dp=64, tp=8, sp=2)
    text = format_diff(Difference.of(before, after), width=width)
    assert max(map(len, text.splitlines())) <= max(width, 40)


def test_a_hundred_thousand_ranks_are_few_lines() -> None:
    found = Difference.of(Layout(pp=10, dp=1250, tp=8), Layout(pp=10, dp=625, sp=2, tp=8))
    assert len(format_diff(found).splitlines()) < 40


SIZE = st.integers(1, 4)
UNITS = 12  # every size up to 4 divides it


def make_layout(pp: int, dp: int, tp: int) -> Layout:
    return Layout(pp=pp, dp=dp, tp=tp)


def holds(layout: Layout, rank: int) -> set[tuple[int, int]]:
    """Return the 1 / 144 parts of the weights that a rank holds."""
    if rank not in layout:
        return set()
    coordinate = layout.coordinate(rank)
    rows, columns = (
        [u for u in range(UNITS) if u * layout.sizes[axis] // UNITS == coordinate[axis]]
        for axis in ("pp", "tp")
    )
    return {(row, column) for row in rows for column in columns}


@given(st.builds(make_layout, SIZE, SIZE, SIZE), st.builds(make_layout, SIZE, SIZE, SIZE))
def test_moves_equal_intervals_counted_one_by_one(before: Layout, after: Layout) -> None:
    moves = weight_moves(before, after)
    total = 0
    for rank in range(after.num_ranks):
        needs = holds(after, rank)
        has = needs & holds(before, rank)
        total += len(needs - has)
        shares = [share for share, ranks in moves.held.items() if rank in ranks]
        assert shares == [Fraction(len(has), len(needs))]
    assert moves.total == Fraction(total, UNITS**2)
    stay = range(min(before.num_ranks, after.num_ranks))
    left = {part for rank in stay for part in holds(before, rank)}
    assert moves.lost * UNITS**2 == (UNITS**2 - len(left)) * num_weight_parts(before)
    assert list(moves.held) == sorted(moves.held)


def test_the_shares_in_the_docstring_of_the_module() -> None:
    held = weight_moves(Layout(tp=2), Layout(tp=3)).held
    assert {str(share): ranks.tolist() for share, ranks in held.items()} == {
        "0": [2],
        "1/2": [1],
        "1": [0],
    }


def test_a_grid_without_pp_and_tp_is_one_part() -> None:
    moves = weight_moves(Layout(dp=4, sp=2), Layout(ep=8))
    assert (moves.parts_before, moves.parts_after, moves.total, moves.lost) == (1, 1, 0, 0)
    assert {share: len(ranks) for share, ranks in moves.held.items()} == {Fraction(1): 8}


def test_ranks_that_join_hold_nothing() -> None:
    moves = weight_moves(Layout(dp=1, tp=2), Layout(dp=2, tp=2))
    assert moves.held[Fraction(0)].tolist() == [2, 3]
    assert moves.total == 1
