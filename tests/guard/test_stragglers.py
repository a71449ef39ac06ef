"""The estimator of stragglers: its laws, and simulated runs with planted and without lateness."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.guard.stragglers import (
    ENOUGH,
    INTERVAL,
    OwnTime,
    Straggler,
    StragglerFinder,
    median_of_others,
)
from tests.guard.simulated_steps import LAYOUT, PARTS, simulate

seconds = st.floats(0.001, 0.1)
tables = st.integers(2, 9).flatmap(
    lambda ranks: st.lists(
        st.lists(seconds, min_size=ranks, max_size=ranks), min_size=1, max_size=6
    )
)


@given(tables, st.data())
def test_what_slows_all_ranks_of_a_step_makes_none_late(
    rows: list[list[float]], data: st.DataObject
) -> None:
    own = np.array(rows)
    common = np.array([data.draw(seconds) for _ in rows])[:, None]
    assert median_of_others(own + common) == pytest.approx(median_of_others(own) + common, abs=1e-9)


@given(tables, st.data())
def test_ranks_in_another_order_are_late_by_as_much(
    rows: list[list[float]], data: st.DataObject
) -> None:
    own = np.array(rows)
    order = data.draw(st.permutations(range(own.shape[1])))
    assert (median_of_others(own[:, order]) == median_of_others(own)[:, order]).all()


@given(tables)
def test_a_rank_is_compared_with_the_lower_median_of_the_others(rows: list[list[float]]) -> None:
    for row, medians in zip(rows, median_of_others(np.array(rows)), strict=True):
        for rank in range(len(row)):
            others = sorted(row[:rank] + row[rank + 1 :])
            assert medians[rank] == others[(len(others) - 1) // 2]


@given(
    st.lists(st.tuples(st.floats(0.0001, 0.01), st.booleans()), min_size=1), st.floats(-1e3, 1e3)
)
def test_the_own_time_needs_no_common_clock(
    samples: list[tuple[float, bool]], offset: float
) -> None:
    """Another clock gives the same own time, which is a part of the step."""
    steps = []
    for begin in (0.0, offset):
        times, now = OwnTime(), begin
        assert times.end_step(now) is None
        for pause, is_own in samples:
            now += pause
            times.sample(now, is_own=is_own)
        steps.append(times.end_step(now + 0.001))
    (length, own), other = steps[0] or (0.0, 0.0), steps[1]
    assert other == pytest.approx((length, own), abs=1e-9)
    assert 0 <= own <= length + 1e-12


def test_a_sample_that_differs_from_the_last_one_counts_half() -> None:
    times = OwnTime()
    times.end_step(0.0)
    times.sample(1.0, is_own=True)
    times.sample(3.0, is_own=False)
    times.sample(7.0, is_own=False)
    assert times.end_step(8.0) == (8.0, 1.0 + 1.0 + 0.0 + 0.5)


def run(finder: StragglerFinder, first: int, own: list[list[float]]) -> None:
    table = np.array(own)
    finder.add(np.arange(first, first + len(own)), table, table.max(axis=1))


@given(st.integers(2, 9), st.data())
def test_a_late_rank_is_named_after_some_steps_and_no_more_once_it_is_well(
    num_ranks: int, data: st.DataObject
) -> None:
    late, start = data.draw(st.integers(0, num_ranks - 1)), data.draw(st.integers(1, 100))
    own = [0.01] * num_ranks
    slow = [0.01 + 0.004 * (rank == late) for rank in range(num_ranks)]
    finder = StragglerFinder(range(num_ranks))
    run(finder, 1, [own] * start)
    run(finder, start + 1, [slow] * (ENOUGH - 1))
    assert finder.late() == []
    run(finder, start + ENOUGH, [slow] * 10)
    (named,) = finder.late()
    assert (named.rank, named.since) == (late, start + 1)
    assert named.seconds == pytest.approx(0.004)
    run(finder, start + ENOUGH + 10, [own] * ENOUGH)
    assert finder.late() == []


def test_a_long_pause_of_a_rank_is_one_late_step() -> None:
    finder = StragglerFinder(range(4))
    for step in range(1, 200):
        run(finder, step, [[0.01, 0.01, 0.01, 0.01 + 2.0 * (step % 10 == 0)]])
        assert finder.late() == []


def test_half_of_the_ranks_may_be_late() -> None:
    finder = StragglerFinder([0, 2, 4, 6])
    run(finder, 1, [[0.01, 0.02, 0.01, 0.03]] * 20)
    assert [each.rank for each in finder.late()] == [6, 2]  # the latest first


def test_a_report_comes_once_a_minute() -> None:
    finder = StragglerFinder(range(4))
    run(finder, 1, [[0.01, 0.02, 0.01, 0.01]] * 20)
    assert finder.report(100.0) == finder.late() != []
    assert finder.report(99.0 + INTERVAL) == []
    assert finder.report(100.0 + INTERVAL) == finder.late()


def test_the_line_of_a_report() -> None:
    line = Straggler(3, 0.0384, 120).describe(LAYOUT, "h7")
    assert line == (
        "dp=1 tp=1 (rank 3, host h7) is 38 ms late in each step, since step 120, of its own"
    )


def count_planted(runs: int) -> tuple[int, int]:
    """Return in how many runs the late rank was named within 20 steps, and in how many another."""
    named = others = 0
    for seed in range(runs):
        chance = random.Random(seed)
        late, part = chance.randrange(LAYOUT.num_ranks), chance.choice(PARTS)
        start = chance.randrange(21, 40)
        plan = late, part, chance.uniform(0.005, 0.05), start
        found = simulate(seed, start + 19, plan, heavy=False)
        named += any(late in ranks for step, ranks in found if start <= step < start + 20)
        others += any({*ranks} - {late} for _, ranks in found)
    return named, others


def count_clean(runs: int) -> int:
    """Return in how many runs under load a rank was named."""
    return sum(bool(simulate(seed, 200, None, heavy=True)) for seed in range(runs))


def test_simulated_ranks_that_are_late_are_named() -> None:
    named, others = count_planted(20)
    assert named >= 19
    assert others == 0


def test_simulated_ranks_under_load_are_not_named() -> None:
    assert count_clean(6) == 0


@pytest.mark.nightly
def test_300_simulated_ranks_that_are_late_are_named() -> None:
    named, others = count_planted(300)
    assert named >= 285
    assert others <= 3


@pytest.mark.nightly
def test_300_simulated_runs_under_load_name_3_ranks_at_most() -> None:
    assert count_clean(300) <= 3
