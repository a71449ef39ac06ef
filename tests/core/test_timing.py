"""Medians, quartiles and tails."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.timing import Spread, Timing

quick = settings(deadline=None, max_examples=60, database=None)
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
def test_a_timing_is_in_order_and_says_how_many(values: list[float]) -> None:
    found = Timing.of(values)
    parts = [found.least, found.spread.low, found.median, found.spread.high, found.most]
    assert parts == sorted(parts)
    assert (found.calls, found.least, found.most) == (len(values), min(values), max(values))
    assert found.median == pytest.approx(statistics.median(values))
    assert found.spread.high <= found.most
    assert found.median <= found.p99 <= found.most
