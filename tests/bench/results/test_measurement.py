"""Times of ranks to times of groups: by loops, and by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.bench.results.measurement import (
    Case,
    GroupTime,
    Measurement,
    RankTime,
    Spread,
    Timing,
    group_sizes,
    summarize,
)
from meshkit.bench.results.targets import (
    ALONE,
    CONCURRENT,
    OVERLAP,
    Target,
    default_targets,
    parse_targets,
)
from meshkit.testing import layouts

quick = settings(deadline=None, max_examples=60, database=None)
LAYOUT = Layout(dp=2, sp=2)
DP = Target((("dp",),))


def test_by_hand() -> None:
    # ranks 0 and 2 are one group, 1 and 3 the other; two calls
    took = np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 1.0], [4.0, 4.0]])
    found = summarize(LAYOUT, Case("all_reduce", DP, 8 * 10**9), CONCURRENT, took, 7)
    assert found.timing == Timing.of([2.0, 2.0, 4.0, 5.0])
    assert found.calls == 2  # of each group, not of all together
    assert found.slowest == GroupTime((1, 3), "sp=1", 4.5)
    assert found.fastest == GroupTime((0, 2), "sp=0", 2.0)
    assert found.rank == RankTime(1, "dp=0 sp=1", 4.0)
    assert (found.wrong, found.sizes, found.mode, found.unsupported) == (
        7,
        (2,),
        "concurrent",
        None,
    )
    assert found.algbw == pytest.approx(8 / 3)
    assert found.busbw == pytest.approx(8 / 3)  # 2 (n-1)/n is 1 for two ranks


def test_two_at_once_are_tied_together_and_have_no_bandwidth() -> None:
    (both,) = parse_targets(LAYOUT, ["dp+sp"])
    took = np.array([[1.0], [3.0], [2.0], [4.0]])
    found = summarize(LAYOUT, Case("all_reduce", both, 1024), OVERLAP, took)
    assert (found.sizes, found.timing) == ((2, 2), Timing.of([4.0]))
    assert found.slowest == found.fastest == GroupTime((0, 1, 2, 3), "all", 4.0)
    assert (found.algbw, found.busbw) == (None, None)


@quick
@given(layouts(max_ranks=24), st.integers(0, 2**32 - 1))
def test_groups_without_a_turn_do_not_count(layout: Layout, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for target in default_targets(layout):
        rows = layout.groups(*target.span)
        chosen = rows[np.sort(rng.permutation(len(rows))[: rng.integers(1, len(rows) + 1)])]
        took = rng.uniform(0.1, 1.0, (layout.num_ranks, 3))
        took[~np.isin(layout.grid.ravel(), chosen)] = np.nan
        found = summarize(layout, Case("broadcast", target, 4), ALONE, took)
        assert (found.groups, found.num_groups) == (len(chosen), len(rows))
        assert found.timing is not None
        assert found.slowest is not None
        assert found.fastest is not None
        assert found.rank is not None
        assert found.timing.calls == 3 * len(chosen)
        assert {found.slowest.ranks, found.fastest.ranks} <= {tuple(r) for r in chosen.tolist()}
        assert found.rank.rank in chosen
        assert found.rank.seconds == np.nanmax([np.median(row) for row in took])


def test_what_was_not_measured_has_no_bandwidth() -> None:
    found = Measurement(Case("all_reduce", DP, 1024), ALONE, (2,), unsupported="no such thing")
    assert (found.algbw, found.busbw) == (None, None)


@quick
@given(layouts(max_ranks=24), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_times_of_groups_by_loops(layout: Layout, calls: int, seed: int) -> None:
    took = np.random.default_rng(seed).uniform(0.1, 1.0, (layout.num_ranks, calls))
    by_rank = dict(zip((int(rank) for rank in layout.grid.flat), took.tolist(), strict=True))
    for target in default_targets(layout):
        found = summarize(layout, Case("broadcast", target, 4), ALONE, took)
        members = {tuple(layout.peers(rank, *target.span).tolist()) for rank in by_rank}
        slow = {
            ranks: [max(by_rank[rank][call] for rank in ranks) for call in range(calls)]
            for ranks in members
        }
        middles = {ranks: statistics.median(times) for ranks, times in slow.items()}
        assert found.timing == Timing.of([t for times in slow.values() for t in times])
        assert found.slowest is not None
        assert found.fastest is not None
        assert found.rank is not None
        assert found.slowest.seconds == pytest.approx(max(middles.values()))
        assert found.slowest.seconds == pytest.approx(middles[found.slowest.ranks])
        assert found.fastest.seconds == pytest.approx(min(middles.values()))
        assert found.rank.seconds == max(statistics.median(times) for times in by_rank.values())
        assert statistics.median(by_rank[found.rank.rank]) == pytest.approx(found.rank.seconds)
        for axis, index in layout.coordinate(found.rank.rank).items():
            assert f"{axis}={index}" in found.rank.where.split()
        assert group_sizes(layout, target) == tuple(
            len(layout.peers(int(layout.grid.flat[0]), *axes)) for axes in target.groups
        )


def test_a_group_is_named_by_what_its_ranks_share() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    took = np.arange(8.0)[:, None]
    (two,) = parse_targets(layout, ["dp tp"])
    found = summarize(layout, Case("broadcast", two, 4), ALONE, took)
    assert found.slowest is not None
    assert (found.slowest.ranks, found.slowest.where) == ((2, 3, 6, 7), "sp=1")


def test_a_group_that_is_the_whole_mesh_is_all_of_it_whatever_axes_of_one_rank_there_are() -> None:
    layout = Layout(dp=4, tp=1)
    found = summarize(layout, Case("broadcast", DP, 4), ALONE, np.ones((4, 1)))
    assert found.slowest is not None
    assert found.slowest.where == "all"
    two = summarize(Layout(dp=2, sp=2, tp=1), Case("broadcast", DP, 4), ALONE, np.ones((4, 1)))
    assert two.slowest is not None
    assert two.slowest.where == "sp=0 tp=0"


def test_a_placed_mesh_is_described_by_its_ranks() -> None:
    layout = Layout(dp=2, sp=2, ranks=[3, 1, 2, 0])  # rank 1 at dp=0 sp=1, rank 0 at dp=1 sp=1
    took = np.array([[1.0], [4.0], [1.0], [3.0]])
    found = summarize(layout, Case("broadcast", DP, 4), ALONE, took)
    assert found.slowest == GroupTime((1, 0), "sp=1", 4.0)
    assert found.rank == RankTime(1, "dp=0 sp=1", 4.0)


times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300)


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(2.0, 3.0, 4.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.25, 1.5, 1.75)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize("count", [2, 3, 10, 21])
def test_spread_agrees_with_python(count: int) -> None:
    values = np.random.default_rng(count).uniform(size=count)
    spread = Spread.of(values.tolist())
    found = (spread.low, spread.median, spread.high)
    np.testing.assert_allclose(found, statistics.quantiles(values, n=4, method="inclusive"))


@quick
@given(times)
def test_p99_is_the_least_that_99_of_100_do_not_exceed(values: list[float]) -> None:
    found = Timing.of(values).p99
    enough = [v for v in values if 100 * sum(w <= v for w in values) >= 99 * len(values)]
    assert found == min(enough)


@pytest.mark.parametrize(
    ("number", "wanted"), [(1, 1), (20, 20), (100, 99), (101, 100), (200, 198)]
)
def test_p99_of_so_many(number: int, wanted: int) -> None:
    assert Timing.of([float(i) for i in range(number, 0, -1)]).p99 == wanted


@quick
@given(times)
def test_a_timing_is_in_order_and_has_its_count(values: list[float]) -> None:
    found = Timing.of(values)
    parts = [found.least, found.spread.low, found.median, found.spread.high, found.most]
    assert parts == sorted(parts)
    assert (found.calls, found.least, found.most) == (len(values), min(values), max(values))
    assert found.median == pytest.approx(statistics.median(values))
    assert found.spread.high <= found.most
    assert found.median <= found.p99 <= found.most
