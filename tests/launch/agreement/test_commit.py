"""Made on all ranks or on none, with threads for ranks and no group at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.launch.agreement import commit as room
from meshkit.launch.agreement.commit import commit_on_all
from meshkit.launch.agreement.consensus import Participants, Proposal
from meshkit.launch.launchers.world import World

ABOUT = "a rank could not make it."
Make = Callable[[timedelta], Any]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LEAST", timedelta(seconds=1))
    monkeypatch.setattr(room, "REST", timedelta(seconds=0.5))


def rank_of(number: int) -> World:
    return World(number, 3, number, None, None, None, "a", 1, "hand-written", backend="gloo")


def all_make(makes: list[Make | None], wait: float = 1.0) -> tuple[list[Any], list[int]]:
    """What became of each rank, and who undid what it had made; None never comes."""
    store, undone = dist.HashStore(), []
    became: list[Any] = [None] * len(makes)

    def start(number: int, make: Make) -> None:
        matter = Proposal(Call("init"), {"call": "made"}, ABOUT, stage="the end of ")
        party = Participants.of(store, rank_of(number))
        try:
            became[number] = commit_on_all(
                matter, party, timedelta(seconds=wait), make, undone.append, waits=True
            )
        except BaseException as error:
            became[number] = error

    threads = [threading.Thread(target=start, args=pair) for pair in enumerate(makes) if pair[1]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return became, sorted(undone)


def fails(error: BaseException) -> Make:
    def make(connect: timedelta) -> Any:
        raise error

    return make


def makes(number: int) -> Make:
    return lambda connect: number


def test_all_make_it_under_a_fifth_of_the_time() -> None:
    times: list[timedelta] = []
    became, undone = all_make([lambda t: times.append(t) or "made"] * 3, wait=5)
    assert (became, undone) == (["made"] * 3, [])
    assert times == [timedelta(seconds=1)] * 3


def test_who_is_gone_is_named_and_what_failed_is_the_cause() -> None:
    torchs = RuntimeError("Gloo connectFullMesh failed")
    began = time.monotonic()
    became, undone = all_make([makes(10), fails(torchs), None])
    assert 1.5 <= time.monotonic() - began < 1.5 + 3
    texts = {str(error) for error in became[:2]}
    assert len(texts) == 1
    assert texts.pop().startswith(
        "1 of 3 ranks did not arrive at the end of init() within 1.5 s.\n  Missing: 2. Arrived: 0-1"
    )
    assert all(error.missing_ranks == (2,) for error in became[:2])
    assert became[1].__cause__ is torchs
    assert undone == [10]


def test_where_all_are_there_the_failure_itself_is_told() -> None:
    torchs = RuntimeError("Gloo connectFullMesh failed")
    began = time.monotonic()
    became, undone = all_make([makes(10), fails(torchs), makes(12)], wait=20)
    assert time.monotonic() - began < 5  # nobody waits for the deadline
    assert became[1] is torchs
    assert undone == [10, 12]
    for error in (became[0], became[2]):
        assert isinstance(error, meshkit.DisagreementError)
        lines = str(error).splitlines()
        assert lines[0] == ABOUT
        assert lines[1].startswith("  rank 1 (host ")
        assert lines[1].endswith(") gave up: RuntimeError: Gloo connectFullMesh failed")


def test_a_failure_of_ones_own_is_told_at_once() -> None:
    became, undone = all_make([makes(10), fails(OSError("too many open files")), None], wait=20)
    assert isinstance(became[1], OSError)
    assert "gave up: OSError: too many open files" in str(became[0])
    assert undone == [10]


def test_a_making_that_never_ends_is_left() -> None:
    """As below torch 2.13, where a peer that has gone keeps it."""
    end = threading.Event()
    began = time.monotonic()
    became, undone = all_make([lambda connect: end.wait(30), makes(11), None])
    assert 1.5 <= time.monotonic() - began < 4
    assert all(error.missing_ranks == (2,) for error in became[:2])
    assert str(became[0].__cause__) == "it did not come to an end within 1 s"
    assert undone == [11]
    end.set()


def test_without_a_store_nobody_is_waited_for() -> None:
    matter = Proposal(Call("init"), {}, ABOUT)
    wait = timedelta(seconds=9)
    made = commit_on_all(matter, None, wait, lambda connect: connect, lambda _: None, waits=True)
    assert made == timedelta(seconds=1.8)
