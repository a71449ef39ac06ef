"""The judge of slow groups: laws of any times, and the judgement of every group by loops."""

from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshkit.bench.slow import MIN_JUDGED, ROWS, WORTH, judge_groups, least_slower

quick = settings(deadline=None, max_examples=100, database=None)


@st.composite
def calls_of_groups(draw: st.DrawFn, least_groups: int = 1) -> np.ndarray:
    """Return seconds, (num_groups, calls), of groups that vary by up to a factor of 8."""
    shape = draw(st.integers(least_groups, 9)), draw(st.integers(1, 24))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.01, 0.3, 2.0]))
    own = rng.uniform(0.0, spread, (shape[0], 1)) + rng.uniform(0.0, spread, shape)
    return np.asarray(np.exp2(own) * 1e-3)


def in_rounds(seconds: np.ndarray, calls: int = 1) -> list[np.ndarray]:
    """Return rounds of so many calls each."""
    return [seconds[:, i : i + calls] for i in range(0, seconds.shape[1], calls)]


def slow(seconds: np.ndarray, calls: int = 1) -> list[int]:
    """Return the indices of the slow groups."""
    judged = judge_groups(in_rounds(seconds, calls))
    return [group.index for group in judged if group.is_slow]


@quick
@given(calls_of_groups(), st.integers(1, 3))
def test_every_group_by_loops(seconds: np.ndarray, calls: int) -> None:
    rounds = in_rounds(seconds, calls)
    judged = judge_groups(rounds)
    assert [group.index for group in judged] == [*range(len(seconds))]
    for group in judged:
        each = [statistics.median_low(calls[group.index].tolist()) for calls in rounds]
        others = [other for other in judged if other is not group]
        assert group.median == pytest.approx(statistics.median(seconds[group.index].tolist()))
        assert min(each) <= group.low <= group.high <= max(each)
        assert sum(t <= group.low for t in each) <= 0.1 * (len(each) - 1) + 1
        assert sum(t >= group.high for t in each) <= 0.1 * (len(each) - 1) + 1
        if not others:
            assert (group.factor, group.is_slow) == (1.0, False)
            continue
        peers = statistics.median_low([other.median for other in others])
        assert group.factor == pytest.approx(group.median / peers)
        is_clear = group.low > statistics.median_low([other.high for other in others])
        enough = len(rounds) >= MIN_JUDGED
        slower = 0  # rounds in which its calls took longer together than those of its peers
        for calls_of_round in rounds:
            sums = [row.sum() for row in calls_of_round]
            rest = [sums[other.index] for other in others]
            slower += sums[group.index] > statistics.median_high(rest)
        is_paired = slower >= least_slower(len(seconds), len(rounds))
        assert group.is_slow == (enough and (is_clear or is_paired) and group.factor >= WORTH)


@quick
@given(calls_of_groups(), st.randoms(use_true_random=False), st.sampled_from([2.0**-9, 8.0]))
def test_neither_the_order_nor_the_unit_matters(
    seconds: np.ndarray, random: np.random.Generator, unit: float
) -> None:
    order = [*range(len(seconds))]
    random.shuffle(order)
    assert sorted(order[i] for i in slow(unit * seconds[order])) == slow(seconds)


def test_groups_that_differ_by_chance_are_hardly_ever_named() -> None:
    rng = np.random.default_rng(0)  # the share of rows is 1 of 1000 for 9 rounds
    rows = [slow(np.exp(rng.normal(size=(groups, 9)))) for groups in (2, 4, 16) for _ in range(500)]
    assert sum(map(bool, rows)) <= 6


@quick
@given(st.integers(2, 300), st.integers(1, 80))
@example(2, 11)
@example(2, 15)
@example(16, 20)
def test_chance_makes_a_group_slower_in_so_many_rounds_in_one_of_a_thousand_rows(
    groups: int, rounds: int
) -> None:
    chances = [Fraction(1)]  # of a number of rounds in which a group is slower, after each round
    for _ in range(rounds):
        chances = [(a + b) / 2 for a, b in zip([*chances, 0], [0, *chances], strict=True)]

    def is_enough(slower: int) -> bool:
        return slower >= Fraction(9, 10) * rounds and groups * sum(chances[slower:]) * ROWS <= 1

    enough = [slower for slower in range(rounds + 1) if is_enough(slower)]
    assert least_slower(groups, rounds) == min(enough, default=rounds + 1)


@pytest.mark.parametrize("groups", [2, 3, 4, 16])
def test_healthy_groups_under_a_load_with_long_tails_are_hardly_ever_named(groups: int) -> None:
    rng, named, rows = np.random.default_rng(groups), 0, 1000
    for _ in range(rows):
        rounds = int(rng.integers(11, 40))
        of_all = 1 + rng.pareto(0.7, (1, rounds))  # without a mean
        seconds = of_all * (1 + rng.pareto(rng.choice([0.7, 1.5, 4.0]), (groups, rounds)))
        named += bool(slow(seconds))
    assert named <= rows / ROWS


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_a_group_that_is_slow_in_bursts_under_a_load_that_varies_is_named(groups: int) -> None:
    rng, calls = np.random.default_rng(groups), 10
    for _ in range(100):
        rounds, planted = int(rng.integers(20, 41)), int(rng.integers(groups))
        load = 1 + rng.pareto(3.0, (1, rounds, 1))  # of a round, the same for all groups
        seconds = load * rng.uniform(1.0, 1.05, (groups, rounds, calls))
        is_starved = rng.permuted(np.tile(np.arange(calls) < 8, (rounds, 1)), axis=1)
        seconds[planted] *= np.where(is_starved, 1.625, 1.0)  # 1.5 in the mean
        assert slow(seconds.reshape(groups, -1), calls) == [planted]


@quick
@given(calls_of_groups(2), st.data())
def test_a_group_that_is_slow_stays_so_if_it_gets_slower(
    seconds: np.ndarray, data: st.DataObject
) -> None:
    one = data.draw(st.integers(0, len(seconds) - 1))
    before = one in slow(seconds)
    seconds[one] *= data.draw(st.floats(1.0, 100.0))
    assert one in slow(seconds) or not before


@quick
@given(st.integers(2, 12), st.integers(MIN_JUDGED, 20), st.data())
def test_fewer_than_half_of_the_groups_that_are_slow_are_all_named(
    groups: int, calls: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, max((groups - 1) // 2, 1)))
    planted = data.draw(st.permutations(range(groups)))[:number]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    seconds = rng.uniform(1.0, 2.0, (groups, calls))
    seconds[planted] *= 4.0
    assert {*planted} <= {*slow(seconds)}


def test_a_burst_of_load_on_one_group_names_none() -> None:
    seconds = np.full((4, 20), 1.0)
    seconds[2, :16] = 30.0  # the group is slow in 16 of its 20 rounds
    assert slow(seconds) == []
    seconds[2] = 30.0
    assert slow(seconds) == [2]


def test_groups_that_were_not_measured_are_left_out() -> None:
    seconds = np.full((4, MIN_JUDGED), 1.0)
    seconds[1], seconds[3] = np.nan, 2.0
    judged = judge_groups(in_rounds(seconds))
    assert [(group.index, group.factor, group.is_slow) for group in judged] == [
        (0, 1.0, False),
        (2, 1.0, False),
        (3, 2.0, True),
    ]
