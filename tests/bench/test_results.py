"""Targets, passes, bandwidths and tables of a benchmark, each by another derivation."""

from __future__ import annotations

import statistics
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.bench.results import (
    ALONE,
    CONCURRENT,
    MAX_ROUNDS,
    MIN_CALLS,
    OPERATIONS,
    OVERLAP,
    SEQUENTIAL,
    Beside,
    Case,
    Target,
    busbw_factor,
    default_targets,
    modes,
    num_barriers,
    parse_targets,
    plan_cases,
    sample_groups,
    slowdowns,
    split_calls,
    sweep_sizes,
    total_passes,
)
from meshkit.testing import layouts
from tests.bench.example_runs import BOTH, DP, LAYOUT, ROWS, SP, summarize_case

quick = settings(deadline=None, max_examples=50, database=None)


# ---------------------------------------------------------------- bandwidths and sizes


def parts_gathered(ranks: int) -> list[int]:
    """Return how many parts each rank sends in a ring until all have all."""
    have, last, sent = [{r} for r in range(ranks)], list(range(ranks)), [0] * ranks
    while any(len(parts) < ranks for parts in have):
        last = [last[r - 1] for r in range(ranks)]
        sent = [count + 1 for count in sent]
        have = [parts | {part} for parts, part in zip(have, last, strict=True)]
    return sent


def parts_reduced(ranks: int) -> list[int]:
    """Return how many parts each rank sends until part p has met all ranks and ends on rank p."""
    sent = [0] * ranks
    for part in range(ranks):
        at, summed = (part + 1) % ranks, {(part + 1) % ranks}
        while len(summed) < ranks:
            sent[at] += 1
            at = (at + 1) % ranks
            summed |= {at}
        assert at == part
    return sent


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 64])
def test_the_busbw_factor_counts_the_parts_that_leave_a_rank(ranks: int) -> None:
    gathered, reduced = parts_gathered(ranks), parts_reduced(ranks)
    sent = {
        "all_gather": gathered,
        "reduce_scatter": reduced,
        "all_reduce": [a + b for a, b in zip(gathered, reduced, strict=True)],
        "all_to_all": [ranks - 1] * ranks,
    }
    assert sent.keys() == {op for op, known in OPERATIONS.items() if known.ring_passes}
    for op, parts in sent.items():
        assert {float(Fraction(count, ranks)) for count in parts} == {busbw_factor(op, ranks)}
    assert busbw_factor("broadcast", ranks) == busbw_factor("send_recv", ranks) == (ranks > 1)


@quick
@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(2, 64))
def test_sizes_are_a_complete_geometric_series(least: int, more: int, factor: int) -> None:
    sizes = sweep_sizes(least, least + more, factor)
    assert sizes[0] == least
    assert all(b == a * factor for a, b in pairwise(sizes))
    assert sizes[-1] <= least + more < sizes[-1] * factor


# ---------------------------------------------------------------- targets, cases, passes


@quick
@given(layouts(max_ranks=256, max_axes=5))
def test_default_targets_are_each_axis_each_two_all_and_each_overlap(layout: Layout) -> None:
    targets = default_targets(layout)
    axes = [axis for axis in layout.axes if layout.size(axis) > 1]
    assert parse_targets(layout, [target.name for target in targets]) == targets
    assert len(set(targets)) == len(targets)
    assert {axis for target in targets for axis in target.span} == set(axes)
    inner, number = len(SEQUENTIAL & set(axes)), len(axes)
    pairs = number * (number - 1) // 2
    num_overlaps = pairs - inner * (inner - 1) // 2
    assert sum(len(target.groups) == 2 for target in targets) == num_overlaps
    assert sum(len(target.groups) == 1 for target in targets) == number + pairs + (number > 2)


def test_a_target_as_typed() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    dp, sp_dp, both = parse_targets(layout, ["dp", " sp   dp", "dp tp+sp", "dp", "sp+dp tp"])
    assert dp == Target((("dp",),))
    assert (sp_dp.groups, sp_dp.name) == ((("sp", "dp"),), "sp dp")
    assert (both.groups, both.span) == ((("dp", "tp"), ("sp",)), ("dp", "tp", "sp"))
    assert len(parse_targets(layout, ["dp sp", "sp dp"])) == 2  # the order of members differs
    (world,) = parse_targets(Layout(dp=2, sp=1, tp=2), ["world", "dp tp", " world "])
    assert world.name == "dp tp"
    (axis,) = parse_targets(Layout(ranks=None, world=2, x=2), ["world"])
    assert axis.name == "world"


def test_an_invalid_target() -> None:
    layout = Layout(pp=1, dp=2, sp=2, tp=2)
    for name in ("", "+", "dp+", "dp+sp+tp", "pp", "dq"):
        with pytest.raises((SpecError, UnknownAxisError)):
            parse_targets(layout, [name])


@quick
@given(layouts(max_ranks=64), st.integers(1, 10**6))
def test_a_size_is_the_nearest_below_that_every_group_divides(layout: Layout, size: int) -> None:
    ranks = layout.num_ranks
    for case in plan_cases(layout, ["broadcast"], default_targets(layout), [size, size]):
        assert case.bytes % (4 * ranks) == 0
        assert case.bytes <= size < case.bytes + 4 * ranks or case.bytes == 4 * ranks


def test_cases_are_ordered_by_operation_then_target_then_size() -> None:
    cases = plan_cases(LAYOUT, ["broadcast", "all_reduce"], (DP, SP), [3, 16, 17, 64])
    assert cases == [
        Case(op, target, size)
        for op in ("broadcast", "all_reduce")
        for target in (DP, SP)
        for size in (16, 64)
    ]


@quick
@given(layouts(max_ranks=64), st.integers(1, 6) | st.none())
def test_a_sample_of_groups_and_the_passes_of_a_run(layout: Layout, alone: int | None) -> None:
    cases, passes = plan_cases(layout, ["broadcast"], default_targets(layout), [64]), 0
    for case in cases:
        num_groups = len(layout.groups(*case.target.span))
        sample = sample_groups(num_groups, alone)
        assert sample == sorted(set(sample) & set(range(num_groups)))
        assert len(sample) == min(num_groups, alone or num_groups)
        assert sample[0] == 0
        assert sample[-1] == num_groups - 1 or len(sample) == 1
        passes += sum(len(sample) if m == ALONE else 1 for m in modes(layout, case.target))
    assert total_passes(layout, cases, alone) == passes


def test_the_modes_of_a_target() -> None:
    (whole,) = parse_targets(LAYOUT, ["sp dp"])
    assert modes(LAYOUT, whole) == (ALONE,)  # there is one group: all at once is the same
    assert modes(LAYOUT, BOTH) == (OVERLAP,)
    assert modes(LAYOUT, SP) == (ALONE, CONCURRENT)


def test_how_often_ranks_wait_for_each_other_by_hand() -> None:
    assert num_barriers(LAYOUT, [], 16) == 6
    for name, each in (("dp", 5 + (3 * 2 + 1) + (3 + 1)), ("dp sp", 5 + 4), ("dp+sp", 5 + 4)):
        cases = plan_cases(LAYOUT, ["broadcast"], parse_targets(LAYOUT, [name]), [64, 256])
        assert num_barriers(LAYOUT, cases, None) == 6 + 2 * each
        assert num_barriers(LAYOUT, cases, None, 3) == 6 + 2 * (5 + 3 * (each - 5))
        beside = 0 if "+" in name else 7 + 10 * (1 + 3 * 4)
        waits = num_barriers(LAYOUT, cases, None, overlap_compute=True)
        assert waits == 6 + 2 * each + beside


TIMES = st.floats(1e-6, 1e3)


@given(TIMES, TIMES, st.floats(0, 1))
def test_the_hidden_share_is_that_of_the_time_saved(first: float, second: float, h: float) -> None:
    case, shorter = ROWS[0].case, min(first, second)
    row = Beside(case, first, second, max(first, second) + (1 - h) * shorter)
    assert row.hidden == pytest.approx(h, abs=1e-6 * max(first, second) / shorter)
    assert Beside(case, first, second, 2 * row.in_turn).hidden == 0  # they disturb each other
    assert Beside(case, first, second, shorter / 2).hidden == 1  # noise
    assert row.in_turn == first + second


@given(st.integers(2, 10**6))
def test_calls_are_spread_over_rounds(iters: int) -> None:
    rounds = split_calls(iters)
    assert sum(rounds) == iters
    assert 1 <= len(rounds) <= MAX_ROUNDS
    assert min(rounds) >= MIN_CALLS
    assert max(rounds) - min(rounds) <= 1
    assert len(rounds) == MAX_ROUNDS or iters < 2 * (len(rounds) + 1)


# ---------------------------------------------------------------- measurements


def test_a_measurement_by_hand() -> None:
    # ranks 0 and 2 are one group, 1 and 3 the other; two calls
    seconds = np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 1.0], [4.0, 4.0]])
    row = summarize_case(LAYOUT, Case("all_reduce", DP, 8 * 10**9), CONCURRENT, [seconds], 7)
    assert (row.median, row.p99) == (3.0, 5.0)  # of 2, 2, 4, 5
    assert (row.calls, row.wrong, row.sizes) == (2, 7, (2,))
    assert row.algbw == row.busbw == pytest.approx(8 / 3)  # 2 (n-1)/n is 1 for two ranks
    overlap = summarize_case(LAYOUT, Case("all_reduce", BOTH, 1024), OVERLAP, [seconds[:, :1]], 0)
    assert (overlap.sizes, overlap.median, overlap.algbw, overlap.busbw) == ((2, 2), 4, None, None)


@quick
@given(layouts(max_ranks=24, with_ranks=True), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_times_of_measured_groups_by_loops(layout: Layout, calls: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.1, 1.0, (layout.num_ranks, calls))
    by_rank = dict(zip((int(rank) for rank in layout.grid.flat), seconds.tolist(), strict=True))
    for target in default_targets(layout):
        groups = layout.groups(*target.span)
        chosen = groups[: rng.integers(1, len(groups) + 1)]
        skipped = seconds.copy()
        skipped[~np.isin(layout.grid.ravel(), chosen)] = np.nan
        row = summarize_case(
            layout, Case("broadcast", target, 4), ALONE, [skipped[:, :1], skipped[:, 1:]][:calls], 0
        )
        times = [max(by_rank[r][call] for r in group) for group in chosen for call in range(calls)]
        assert row.median == pytest.approx(statistics.median(times))
        assert row.p99 == min(t for t in times if sum(w <= t for w in times) >= 0.99 * len(times))
        assert (row.groups, row.num_groups, row.calls) == (len(chosen), len(groups), calls)


def test_the_slowdown_is_relative_to_the_slower_part_measured_by_itself() -> None:
    # dp: both groups at once 2.5 against 1.5, and 7 against 4; sp: 1.5 against 1;
    # dp and sp at once 5, against the slower of 2.5 and 1.5
    ratios = [None, 2.5 / 1.5, None, 7 / 4, None, 1.5, 2.0]
    assert slowdowns(ROWS) == [ratio and pytest.approx(ratio) for ratio in ratios]
    overlap = ROWS[6]
    assert slowdowns([overlap]) == slowdowns([ROWS[1]]) == [None]
    assert slowdowns([*ROWS[:2], overlap])[2] is None  # sp was not measured
    alone = [ROWS[0], ROWS[4], overlap]  # an axis of one group has no other mode
    assert slowdowns(alone)[2] == pytest.approx(5 / 1.5)
