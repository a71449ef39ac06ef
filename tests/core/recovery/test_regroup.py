"""The layout of the ranks that live, against a search over all grids and all assignments."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.core.regroup import Regrouping, find_sources, regroup, shrink_sizes
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


@st.composite
def growths(draw: st.DrawFn) -> tuple[Layout, Regrouping, int]:
    """Return a layout, what a loss leaves of it, and how many newcomers come then."""
    layout, members = draw(losses())
    shrunk = regroup(layout, members)
    assume(shrunk is not None)
    assert shrunk is not None
    world = max(layout.num_ranks, len(members))
    return layout, shrunk, draw(st.integers(0, world - len(members)))


def grow(layout: Layout, shrunk: Regrouping, newcomers: int) -> Regrouping:
    """Return the mesh with newcomers, which are numbered after all ranks that live."""
    grown = regroup(shrunk.after, range(len(shrunk.old_ranks) + newcomers), layout.sizes)
    assert grown is not None
    return grown


@law
@given(growths())
def test_newcomers_let_the_mesh_grow_as_far_as_they_can(
    case: tuple[Layout, Regrouping, int],
) -> None:
    layout, shrunk, newcomers = case
    grown = grow(*case)
    assert grown.after.shape == search_sizes(layout, len(shrunk.old_ranks) + newcomers)
    assert all(new >= old for new, old in zip(grown.after.shape, shrunk.after.shape, strict=True))
    if grown.after.num_ranks == layout.num_ranks:
        assert grown.after.sizes == layout.sizes


@law
@given(growths())
def test_no_rank_of_the_mesh_moves_when_it_grows(case: tuple[Layout, Regrouping, int]) -> None:
    shrunk, grown = case[1], grow(*case)
    for rank in map(int, shrunk.after.ranks):
        assert shrunk.after.coordinate(rank) == grown.after.coordinate(grown.new_rank_of[rank])
    assert all(move.before is None for move in grown.moves)


@law
@given(growths())
def test_each_newcomer_in_the_mesh_gets_a_state_that_some_rank_holds(
    case: tuple[Layout, Regrouping, int],
) -> None:
    shrunk, grown = case[1], grow(*case)
    inside = [*map(int, shrunk.after.ranks)]
    sources = find_sources(grown, dict.fromkeys(inside, 7))
    assert (sources.step, sources.lost) == (7, ())
    added = {move.rank for move in grown.moves}
    assert {*sources.by_rank} == added
    for rank, source in sources.by_rank.items():
        own, held = grown.after.coordinate(rank), grown.after.coordinate(source)
        assert source not in added
        assert all(own[axis] == held[axis] for axis in own if axis not in DATA)
        unchanged = [axis for axis in DATA if axis in own and axis not in grown.replica_axes]
        assert all(own[axis] == held[axis] for axis in unchanged)


def test_an_inner_data_axis_that_grows_has_replicas() -> None:
    layout = Layout({"replicate": 2, "dp_shard": 4})
    shrunk = regroup(layout, [0, 1, 2])
    assert shrunk is not None
    assert shrunk.after.shape == (1, 3)
    grown = grow(layout, shrunk, 5)
    assert grown.after == layout
    assert grown.replica_axes == ("replicate", "dp_shard")


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
