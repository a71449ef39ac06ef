import doctest
import threading
import time

import pytest
import torch.distributed as dist

from benchmarks import scale
from benchmarks.rows import Row, alone
from benchmarks.scale import begin_together, feed, grown, growth, never_waiting, plan_of, rows_of
from meshkit.launch import store as stores


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(scale).failed == 0


def test_growth_is_the_power_of_a_power_law() -> None:
    ranks = [8, 64, 512]
    for power in (-1.0, 0.0, 0.5, 2.0):
        assert growth(ranks, [3 * n**power for n in ranks]) == pytest.approx(power, abs=1e-9)


def test_the_growth_of_one_figure_is_taken_from_its_own_rows() -> None:
    rows = [alone("a", 10, "s", [1.0]), alone("b", 10, "s", [7.0]), alone("a", 100, "s", [10.0])]
    found = grown("a", rows)
    assert (found.what, found.scale, str(found.goal)) == ("a, growth", 100, "ours <= 1.2")
    assert found.ours == pytest.approx(1.0)
    assert str(grown("scale: plan", [_plan(8, 1.0), _plan(64, 1.0)]).goal) == "ours <= 0.2"


def _plan(ranks: int, seconds: float) -> Row:
    return alone("scale: plan", ranks, "s", [seconds])


def test_every_rank_checks_in_once_at_a_real_store_with_five_operations() -> None:
    fed = feed(64)
    assert len(fed) == 2
    # the last of all asks for trouble and writes the verdict where others wait and read: as many
    assert [one.operations for one in fed] == [5 * 32, 5 * 32]
    assert all(one.numbers == {1} for one in fed)
    assert all(one.ended > one.began for one in fed)


def test_feeders_begin_together() -> None:
    store = dist.HashStore()
    first = threading.Thread(target=begin_together, args=(store,))
    first.start()
    while store.add("feeders", 0) < 1:
        time.sleep(0.01)
    assert not store.check(["begin"])
    begin_together(store)
    first.join(10)
    assert not first.is_alive()


def test_a_rank_that_is_played_asks_from_the_thread_it_is_in() -> None:
    with never_waiting():
        assert stores.within(1, threading.current_thread) is threading.current_thread()
    assert stores.within(1, threading.current_thread) is not threading.current_thread()


def test_the_rows_of_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = [scale.Fed(10, 1.0, 3.0, frozenset({1})), scale.Fed(14, 1.5, 4.0, frozenset({1}))]
    monkeypatch.setattr(scale, "feed", lambda ranks: fed)
    rows = {row.what: row.ours for row in rows_of(1024)}
    assert rows["scale: check-ins at one store"] == 3.0  # from the first's begin to the last's end
    assert rows["scale: store operations"] == 24
    assert len(rows) == 5
    assert all(seconds and seconds > 0 for seconds in rows.values())


def test_a_plan_holds_every_rank_in_each_of_its_steps() -> None:
    for step in plan_of(1024).steps:
        assert sorted(step.members.flat) == [*range(1024)]
