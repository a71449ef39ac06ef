"""Scale: the figures of many ranks, and their growth."""

import threading

import pytest

from benchmarks import scale
from benchmarks.harness import single
from benchmarks.scale import (
    THREADS,
    TIME_OF_STORE,
    CheckIns,
    check_in,
    growth_row,
    no_waiting,
    plan_of,
    processor_seconds,
    scale_rows,
)
from meshkit.launch import store as stores
from meshkit.launch.times import run_with_deadline


@pytest.mark.parametrize("power", [-1.0, 0.5, 2.0])
def test_growth_is_the_power_of_a_power_law(power: float) -> None:
    rows = [single("a", n, "s", [3 * n**power]) for n in (8, 64, 512)]
    row = growth_row("a", [*rows, single("b", 10, "s", [7.0])])
    assert (row.what, row.scale, str(row.goal)) == ("a, growth", 512, "ours <= 1.2")
    assert row.ours == pytest.approx(power)


def test_a_plan_has_a_goal_of_its_own() -> None:
    rows = [single("scale: plan", n, "s", [1.0]) for n in (8, 64)]
    assert str(growth_row("scale: plan", rows).goal) == "ours <= 0.2"


def test_every_rank_checks_in_once_at_a_real_store_with_four_operations() -> None:
    done = check_in(64)
    # the last rank looks for a conflict and writes the decision where the others read it
    assert done.operations == 4 * 64 + 1
    assert done.agreed
    assert 0 < done.store_seconds < done.seconds


def test_the_processor_time_is_that_of_the_threads_alone() -> None:
    ended, ids = threading.Event(), []

    def wait() -> None:
        ids.append(threading.get_native_id())
        ended.wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    busy = {THREADS / str(threading.get_native_id())}
    began = processor_seconds(busy)
    while processor_seconds(busy) - began < 0.05:
        pass
    assert processor_seconds({THREADS / str(ids[0])}) < 0.05
    ended.set()
    waiting.join()


def test_a_deadline_starts_no_thread() -> None:
    with no_waiting():
        run = vars(stores)[run_with_deadline.__name__]
        assert run(1, threading.current_thread) is threading.current_thread()
    assert vars(stores)[run_with_deadline.__name__] is run_with_deadline


def test_the_rows_of_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "check_in", lambda ranks: CheckIns(3.0, 2.0, 24, agreed=True))
    rows = {row.what: row for row in scale_rows(10_000)}
    assert rows["scale: check-ins at one store"].ours == 3.0
    assert (rows[TIME_OF_STORE].ours, rows[TIME_OF_STORE].met) == (2.0, False)
    assert rows["scale: store operations"].ours == 24
    assert len(rows) == 5
    assert all(row.ours and row.ours > 0 for row in rows.values())


def test_a_plan_holds_every_rank_in_each_of_its_steps() -> None:
    for step in plan_of(1024).steps:
        assert sorted(step.members.flat) == [*range(1024)]
