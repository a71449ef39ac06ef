"""Rows, goals and timing."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest

from benchmarks import harness
from benchmarks.harness import Goal, Ratio, Row, compare, single


def test_the_ratio_is_taken_repetition_by_repetition() -> None:
    ours, theirs = [1.0, 10.0, 100.0], [2.0, 5.0, 100.0]
    row = compare("a map", 8, "numpy", "s", (ours, theirs))
    assert row.ratio == Ratio(0.75, 1.0, 1.5)  # of 0.5, 2 and 1
    assert row.ratio.median != median(ours) / median(theirs)
    assert (row.ours, row.theirs) == (10.0, 5.0)


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("ratio", "<=", 1.0), True),
        (Goal("ratio", "<=", 0.99), False),
        (Goal("ratio", ">=", 1.0), True),
        (Goal("ratio", ">=", 1.01), False),
        (Goal("low", "<=", 0.5), True),
        (Goal("low", "<=", 0.49), False),
        (Goal("ours", "<=", 3.0), True),
        (Goal("ours", "<=", 2.9), False),
    ],
)
def test_a_goal_bounds_one_figure(goal: Goal, met: bool) -> None:
    assert Row("w", 1, "p", "s", 3.0, 3.0, Ratio(0.5, 1.0, 2.0), goal).met is met


def test_without_a_figure_no_goal_is_met_or_missed() -> None:
    assert Row("w", 1, "p", "s", 3.0, goal=Goal("ratio", "<=", 1.0)).met is None
    assert Row("w", 1, "p", "s", goal=Goal("ours", "<=", 1.0)).met is None
    assert single("w", 1, "s", [3.0]).met is None


class FakeClock:
    """A clock that moves when work is done, and a record of the sides that did it."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, ""

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.now += seconds
            self.calls += name

        return work


def test_sides_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock.now)
    sides = clock.work("a", 0.5), clock.work("b", 0.25)
    times = harness.time_in_turns(*sides, 3, min_seconds=0.5)
    assert times == ([0.5] * 3, [0.25] * 3)
    assert clock.calls == "aabb" + "abb" + "bba" + "abb"  # b takes half as long: two in a row
