"""The ranks that live, their mesh and the senders of state, against searches over all answers."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import DisagreementError, Layout, MeshkitError, RankTimeoutError, SpecError
from meshkit.launch.judges import Arrival, Arrivals, Process, RankState, Sighting
from meshkit.launch.regroup import (
    RecoveryFacts,
    RecoveryWaits,
    Regrouping,
    find_sources,
    regroup,
    shrink_sizes,
    who_lives,
)
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
    assert {move.old_rank for move in regrouped.moves} == {
        old
        for new, old in enumerate(regrouped.old_ranks)
        if (old in layout or new in after) and old not in kept
    }
    assert 0 not in members or regrouped.old_ranks[0] == 0  # it may host the store


@law
@given(losses())
def test_as_few_ranks_as_possible_need_another_part_of_the_state(
    case: tuple[Layout, list[int]],
) -> None:
    layout, members = case
    regrouped = regroup(layout, members)
    if regrouped is None:
        return
    axes = regrouped.shard_axes

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
def test_newcomers_let_the_mesh_grow_and_no_rank_moves(
    case: tuple[Layout, Regrouping, int],
) -> None:
    layout, shrunk, newcomers = case
    grown = grow(*case)
    assert grown.after.shape == search_sizes(layout, len(shrunk.old_ranks) + newcomers)
    assert all(new >= old for new, old in zip(grown.after.shape, shrunk.after.shape, strict=True))
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
    assert shrink_sizes({"dp": 2, "rows": 4}, 7) == {"dp": 1, "rows": 4}  # of unknown role: whole


@st.composite
def states(draw: st.DrawFn) -> tuple[Regrouping, dict[int, int | None]]:
    """Return the ranks that live, with steps that differ by up to 2; some hold no state."""
    layout = Layout(dp=draw(st.integers(1, 4)), sp=draw(st.integers(1, 2)), tp=2)
    members = draw(
        st.sets(st.sampled_from(range(layout.num_ranks + 2)), min_size=layout.size("sp", "tp"))
    )
    regrouped = regroup(layout, sorted(members))
    assert regrouped is not None
    inside = [rank for rank in sorted(members) if rank in layout]
    held = {rank: draw(st.integers(4, 6)) for rank in inside if draw(st.booleans())}
    return regrouped, held


def holders_at(regrouped: Regrouping, held: dict[int, int | None], unit: dict[str, int]) -> set:
    before = regrouped.before
    return {
        held[rank]
        for rank in held
        if {axis: before.coordinate(rank)[axis] for axis in ("sp", "tp")} == unit
    }


@law
@given(states())
def test_the_most_advanced_step_that_all_parts_have_wins(
    case: tuple[Regrouping, dict[int, int | None]],
) -> None:
    regrouped, held = case
    units = [{"sp": sp, "tp": tp} for sp in range(regrouped.before.size("sp")) for tp in range(2)]
    known = [steps for unit in units if (steps := holders_at(regrouped, held, unit))]
    common = [step for step in (6, 5, 4) if all(step in steps for steps in known)]
    if known and not common:
        with pytest.raises(SpecError, match="no step is held for each part"):
            find_sources(regrouped, held)
        return
    sources = find_sources(regrouped, held)
    assert sources.step == (common[0] if known else None)
    assert [*sources.lost] == [u for u in units if not holders_at(regrouped, held, u)]
    assert not {*sources.by_rank} & {*regrouped.spares}
    for rank in map(int, regrouped.after.ranks):
        unit = {axis: regrouped.after.coordinate(rank)[axis] for axis in ("sp", "tp")}
        having = [
            new
            for new, old in enumerate(regrouped.old_ranks)
            if held.get(old) == sources.step and old in held
            if regrouped.before.coordinate(old).items() >= unit.items()
        ]
        if rank in sources.by_rank:
            assert rank not in having
            assert sources.by_rank[rank] in having
        else:
            assert rank in having or unit in sources.lost


def test_ranks_send_in_turn() -> None:
    regrouped = regroup(Layout(dp=4), range(4))
    assert regrouped is not None
    assert find_sources(regrouped, dict.fromkeys(range(4))) == (None, {}, ())
    assert find_sources(regrouped, {0: 9, 1: 9}).by_rank == {2: 0, 3: 1}


FAILED, FINE, NEW = (
    RecoveryFacts("dp=4", None, True, True, 3, 7),
    RecoveryFacts("dp=4"),
    RecoveryFacts(),
)
LEAST = RecoveryFacts("dp=4", "2", failed=True)  # min_ranks=2
ENDED, RUNS, STOPPED, FAR = RankState.ENDED, RankState.BUSY, RankState.STOPPED, RankState.UNKNOWN
PATIENCE = RecoveryWaits(60.0, 1.0, 5.0)
BEGIN, SOON, LATER, END = (
    {"waited": 0.0},
    {"waited": 1.0},
    {"waited": 5.0},
    {"waited": 60.0, "expired": True},
)
ROUNDS: dict[
    str, tuple[list[RecoveryFacts], dict[int, RankState], tuple[Any, ...], dict[str, Any], Any]
] = {
    # requests of the first ranks, states of the others, silent ranks and newcomers, the time
    # -> whether they live, or the error, or None to wait
    "all are here": ([FAILED, FAILED], {}, ((), ()), BEGIN, True),
    "one has seen the failure": ([FINE, FAILED], {}, ((), ()), BEGIN, True),
    "one has ended": ([FINE, FINE], {2: ENDED}, ((), ()), BEGIN, True),
    "one runs": ([FAILED], {1: RUNS}, ((), ()), LATER, None),
    "one is stopped": ([FAILED], {1: STOPPED}, ((), ()), LATER, None),
    "one has ended, another runs": ([FAILED], {1: ENDED, 2: RUNS}, ((), ()), LATER, None),
    "at the deadline": ([FAILED], {1: ENDED, 2: RUNS}, ((), ()), END, True),
    "one was silent": ([FAILED], {1: FAR}, ((1,), ()), SOON, True),
    "one was silent, but has time": ([FAILED], {1: FAR}, ((1,), ()), BEGIN, None),
    "another was silent": ([FAILED], {1: FAR, 2: ENDED}, ((2,), ()), SOON, None),
    "a newcomer has time": ([FINE], {1: FAR}, ((), (1,)), SOON, None),
    "a newcomer does not come": ([FINE], {1: FAR}, ((), (1,)), LATER, True),
    "a newcomer needs no failure": ([FINE, NEW], {}, ((), (1,)), BEGIN, True),
    "the mesh is healthy": ([FINE, FINE], {}, ((), ()), BEGIN, MeshkitError),
    "some do not call it": ([FINE], {1: RUNS, 2: FAR}, ((), ()), END, RankTimeoutError),
    "other meshes": ([FAILED, RecoveryFacts("tp=2")], {}, ((), ()), BEGIN, DisagreementError),
    "other min_ranks": (
        [LEAST, RecoveryFacts("dp=4", "3")],
        {},
        ((), ()),
        BEGIN,
        DisagreementError,
    ),
    "one passes min_ranks": ([LEAST, FINE], {}, ((), ()), BEGIN, True),
}


@pytest.mark.parametrize("case", ROUNDS.values(), ids=ROUNDS)
def test_who_lives(case: tuple[Any, ...]) -> None:
    requests, rank_states, (silent, newcomers), time, expected = case
    posted = [json.loads(json.dumps(request.to_facts())) for request in requests]
    arrived = {r: Arrival(Process("b", r), facts) for r, facts in enumerate(posted)}
    sightings = {rank: Sighting(state, "facts") for rank, state in rank_states.items()}
    ranks = range(len(requests) + len(rank_states))
    judge = who_lives(PATIENCE, silent, newcomers)
    decision = judge(Arrivals(ranks, arrived, seen=sightings, **time))
    if expected is None:
        assert decision is None
    elif expected is True:
        assert decision is not None
        members = {r: RecoveryFacts.from_facts(facts) for r, facts in decision.members.items()}
        assert members == dict(enumerate(requests))
    else:
        assert decision is not None
        assert type(decision.error) is expected
        assert getattr(decision.error, "missing_ranks", ()) == tuple(rank_states)
