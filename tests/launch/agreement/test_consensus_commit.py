"""Creation on all ranks or on none, with threads as ranks and without groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement import consensus
from meshkit.launch.agreement.consensus import commit
from meshkit.launch.agreement.proposal import Participants, Proposal
from meshkit.launch.world import World

SUMMARY = "a rank could not create it."
Create = Callable[[timedelta], Any]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus, "MIN_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(consensus, "REPORT_GRACE", timedelta(seconds=0.5))


def rank_of(number: int) -> World:
    return World(number, 3, number, None, None, None, "a", 1, "hand-written", backend="gloo")


def run_ranks(creates: list[Create | None], wait: float = 1.0) -> tuple[list[Any], list[int]]:
    """Return the outcome of each rank, and the results undone; a rank with None never arrives."""
    store, undone, timeout = dist.HashStore(), [], timedelta(seconds=wait)
    outcomes: list[Any] = [None] * len(creates)

    def start(number: int, create: Create) -> None:
        proposal = Proposal("init", {}, SUMMARY, stage="the end of ")
        participants = Participants.of(store, rank_of(number))
        try:
            outcomes[number] = commit(
                proposal,
                participants,
                timeout,
                create,
                undone.append,
                connects=True,
            )
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=start, args=pair) for pair in enumerate(creates) if pair[1]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes, sorted(undone)


def fails(error: BaseException) -> Create:
    def create(connect: timedelta) -> Any:
        raise error

    return create


def creates(number: int) -> Create:
    return lambda connect: number


def test_creation_gets_a_fifth_of_the_timeout_to_connect() -> None:
    times: list[timedelta] = []
    outcomes, undone = run_ranks([lambda t: times.append(t) or "created"] * 3, wait=5)
    assert (outcomes, undone) == (["created"] * 3, [])
    assert times == [timedelta(seconds=1)] * 3


def test_a_missing_rank_is_named_and_the_failure_is_the_cause() -> None:
    torch_error = RuntimeError("Gloo connectFullMesh failed")
    began = time.monotonic()
    outcomes, undone = run_ranks([creates(10), fails(torch_error), None])
    assert 1.5 <= time.monotonic() - began < 1.5 + 3
    texts = {str(error) for error in outcomes[:2]}
    assert len(texts) == 1
    assert texts.pop().startswith(
        "1 of 3 ranks did not arrive at the end of this call within 1.5 s.\n"
        "  Missing: 2. Arrived: 0-1"
    )
    assert all(error.missing_ranks == (2,) for error in outcomes[:2])
    assert outcomes[1].__cause__ is torch_error
    assert undone == [10]


def test_if_all_ranks_arrive_the_failure_is_reported() -> None:
    torch_error = RuntimeError("Gloo connectFullMesh failed")
    began = time.monotonic()
    outcomes, undone = run_ranks([creates(10), fails(torch_error), creates(12)], wait=20)
    assert time.monotonic() - began < 5  # no rank waits for the deadline
    assert outcomes[1] is torch_error
    assert undone == [10, 12]
    for error in (outcomes[0], outcomes[2]):
        assert isinstance(error, meshkit.DisagreementError)
        lines = str(error).splitlines()
        assert lines[0] == SUMMARY
        assert lines[1].startswith("  rank 1 (host ")
        assert lines[1].endswith(") gave up: RuntimeError: Gloo connectFullMesh failed")


def test_a_rank_announces_its_own_failure_at_once() -> None:
    outcomes, undone = run_ranks(
        [creates(10), fails(OSError("too many open files")), None], wait=20
    )
    assert isinstance(outcomes[1], OSError)
    assert "gave up: OSError: too many open files" in str(outcomes[0])
    assert undone == [10]


def test_creation_that_never_ends_is_abandoned() -> None:
    """A backend may wait for a dead peer for ever."""
    end = threading.Event()
    began = time.monotonic()
    outcomes, undone = run_ranks([lambda connect: end.wait(30), creates(11), None])
    assert 1.5 <= time.monotonic() - began < 4
    assert all(error.missing_ranks == (2,) for error in outcomes[:2])
    assert str(outcomes[0].__cause__) == "it did not finish within 1 s"
    assert undone == [11]
    end.set()


def test_without_a_store_no_rank_waits() -> None:
    proposal, timeout = Proposal("init", {}, SUMMARY), timedelta(seconds=9)
    result = commit(proposal, None, timeout, lambda connect: connect, print, connects=True)
    assert result == timedelta(seconds=1.8)
