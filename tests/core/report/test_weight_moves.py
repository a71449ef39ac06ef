"""Who holds which part of the weights, against intervals counted one by one."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.core.report.diff import num_weight_parts, weight_moves

SIZE = st.integers(1, 4)
UNITS = 12  # every size up to 4 divides it


def grid(pp: int, dp: int, tp: int) -> Layout:
    return Layout(pp=pp, dp=dp, tp=tp)


def holds(layout: Layout, rank: int) -> set[tuple[int, int]]:
    """The 1 / 144 parts of the weights that a rank holds."""
    if rank not in layout:
        return set()
    here = layout.coordinate(rank)
    rows, columns = (
        [u for u in range(UNITS) if u * layout.sizes[axis] // UNITS == here[axis]]
        for axis in ("pp", "tp")
    )
    return {(row, column) for row in rows for column in columns}


@given(st.builds(grid, SIZE, SIZE, SIZE), st.builds(grid, SIZE, SIZE, SIZE))
def test_the_moves_are_those_of_intervals_counted_one_by_one(before: Layout, after: Layout) -> None:
    found = weight_moves(before, after)
    total = 0
    for rank in range(after.num_ranks):
        needs = holds(after, rank)
        has = needs & holds(before, rank)
        total += len(needs - has)
        shares = [share for share, ranks in found.held.items() if rank in ranks]
        assert shares == [Fraction(len(has), len(needs))]
    assert found.total == Fraction(total, UNITS**2)
    stay = range(min(before.num_ranks, after.num_ranks))
    left = {part for rank in stay for part in holds(before, rank)}
    assert found.lost * UNITS**2 == (UNITS**2 - len(left)) * num_weight_parts(before)
    assert list(found.held) == sorted(found.held)


def test_the_picture_in_the_docstring() -> None:
    held = weight_moves(Layout(tp=2), Layout(tp=3)).held
    assert {str(share): ranks.tolist() for share, ranks in held.items()} == {
        "0": [2],
        "1/2": [1],
        "1": [0],
    }


def test_a_grid_without_pp_and_tp_is_one_part() -> None:
    found = weight_moves(Layout(dp=4, sp=2), Layout(ep=8))
    assert (found.parts_before, found.parts_after, found.total, found.lost) == (1, 1, 0, 0)
    assert {share: len(ranks) for share, ranks in found.held.items()} == {Fraction(1): 8}


def test_ranks_that_join_hold_nothing() -> None:
    found = weight_moves(Layout(dp=1, tp=2), Layout(dp=2, tp=2))
    assert found.held[Fraction(0)].tolist() == [2, 3]
    assert found.total == 1
