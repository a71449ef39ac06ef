"""The layout of the ranks that live, against a search over all grids and all assignments."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.core.recovery.regroup import Regrouping, regroup, shrink_sizes
from tests.laws.derivations import law

AXES = ("pp", "replicate", "dp_shard", "ep", "tp")
DATA = ("replicate", "dp_shard")


@st.composite
def losses(draw: st.DrawFn) -> tuple[Layout, list[int]]:
    """Return a layout of up to 24 ranks, some outside it, and the ranks that live."""
    names = draw(st.lists(st.sampled_from(AXES), min_size=1, unique=True).map(sorted))
    sizes, left = {}, 24
    for name in sorted(names, key=AXES.index):
        sizes[name] = draw(st.integers(1, min(left, 4)))
        left //= sizes[name]
    number = math.prod(sizes.values())
    world = number + draw(st.integers(0, 3))
    ranks = draw(st.permutations(range(world)))[:number] if draw(st.booleans()) else range(number)
    members = draw(st.sets(st.sampled_from(range(world)), min_size=1))
    return Layout(sizes, ranks=ranks), sorted(members)


def search_sizes(layout: Layout, num_ranks: int) -> tuple[int, ...] | None:
    """Return the best shape of all that fit: inner data axes count first."""
    ranges = [range(1, size + 1) if axis in DATA else [size] for axis, size in layout.sizes.items()]
    fitting = [shape for shape in itertools.product(*ranges) if math.prod(shape) <= num_ranks]
    data = [dim for dim, axis in enumerate(layout.axes) if axis in DATA]
    return max(fitting, key=lambda shape: [shape[dim] for dim in data[::-1]], default=None)


def staying(layout: Layout, shape: tuple[int, ...], members: list[int]) -> set[int]:
    """Return the ranks whose coordinate the new grid has."""
    own = {rank: tuple(layout.coordinate(rank).values()) for rank in members if rank in layout}
    return {
        rank
        for rank, indices in own.items()
        if all(index < size for index, size in zip(indices, shape, strict=True))
    }


@law
@given(losses())
def test_replicas_are_maximal_and_moves_minimal(case: tuple[Layout, list[int]]) -> None:
    layout, members = case
    regrouped, shape = regroup(layout, members), search_sizes(layout, len(members))
    if shape is None:
        assert regrouped is None
        return
    assert regrouped is not None
    after = regrouped.after
    assert (after.axes, after.shape) == (layout.axes, shape)
    assert sorted(regrouped.old_ranks) == members
    assert sorted(after.ranks) == sorted({*range(len(members))} - {*regrouped.spares})
    kept = {
        rank
        for new, rank in enumerate(regrouped.old_ranks)
        if new in after and rank in layout and after.coordinate(new) == layout.coordinate(rank)
    }
    # each other cell needs one rank that had another coordinate, so no assignment keeps more
    assert kept == staying(layout, shape, members)


@law
@given(losses())
def test_as_few_ranks_as_possible_need_another_part_of_the_state(
    case: tuple[Layout, list[int]],
) -> None:
    layout, members = case
    regrouped = regroup(layout, members)
    if regrouped is None:
        return
    axes = regrouped.unit_axes

    def unit(grid: Layout, rank: int) -> tuple[int, ...] | None:
        return tuple(grid.coordinate(rank)[axis] for axis in axes) if rank in grid else None

    pairs = [(new, old) for new, old in enumerate(regrouped.old_ranks) if new in regrouped.after]
    needed = sum(unit(regrouped.after, new) != unit(layout, old) for new, old in pairs)
    shape = regrouped.after.shape
    stays = staying(layout, shape, members)
    free = [unit(layout, rank) for rank in members if rank not in stays]
    taken = {tuple(layout.coordinate(rank).values()) for rank in stays}
    holes = [
        unit(Layout(regrouped.after.sizes), position)
        for position, cell in enumerate(itertools.product(*map(range, shape)))
        if cell not in taken
    ]
    least = len(holes) - sum(min(holes.count(u), free.count(u)) for u in {*holes})
    assert needed == least


@law
@given(losses())
def test_the_result_is_a_function_of_the_arguments(case: tuple[Layout, list[int]]) -> None:
    first, second = regroup(*case), regroup(*case)
    if first is not None and second is not None:
        assert (first.after, first.old_ranks) == (second.after, second.old_ranks)


@law
@given(losses())
def test_moves_list_each_rank_whose_coordinate_changes(case: tuple[Layout, list[int]]) -> None:
    regrouped = regroup(*case)
    if regrouped is None:
        return
    moved = {move.old_rank for move in regrouped.moves}
    for new, old in enumerate(regrouped.old_ranks):
        before = case[0].coordinate(old) if old in case[0] else None
        after = regrouped.after.coordinate(new) if new in regrouped.after else None
        assert (old in moved) == (before != after)


@law
@given(losses())
def test_rank_0_keeps_its_number_while_it_lives(case: tuple[Layout, list[int]]) -> None:
    regrouped = regroup(*case)
    if regrouped is not None and 0 in case[1]:
        assert regrouped.old_ranks[0] == 0


def test_a_replica_that_returns_lets_the_data_axis_grow_again() -> None:
    full = {"dp": 3, "tp": 2}
    regrouped = regroup(Layout(dp=2, tp=2), range(6), full)
    assert isinstance(regrouped, Regrouping)
    assert regrouped.after == Layout(dp=3, tp=2)
    assert [(move.old_rank, move.before) for move in regrouped.moves] == [(4, None), (5, None)]


def test_an_axis_of_unknown_role_stays_whole() -> None:
    assert shrink_sizes({"rows": 4}, 3) is None
    assert shrink_sizes({"dp": 2, "rows": 4}, 7) == {"dp": 1, "rows": 4}


@pytest.mark.parametrize("order", [list(range(64)), list(range(64))[::-1]])
def test_a_placed_layout_is_regrouped_too(order: list[int]) -> None:
    layout = Layout(dp=8, tp=8, ranks=order)
    regrouped = regroup(layout, [rank for rank in range(64) if rank != 9])
    assert regrouped is not None
    assert regrouped.after.sizes == {"dp": 7, "tp": 8}
    assert len(regrouped.spares) == 7
