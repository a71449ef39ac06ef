"""Creation on all ranks or on none, with threads as ranks and without groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch import creation as module
from meshkit.launch.agreement import Agreement
from meshkit.launch.creation import Creation, create_on_all
from meshkit.launch.store import Store
from meshkit.launch.times import TIMES, Deadline, wait_for_abandoned
from meshkit.launch.world import World
from tests.promises import BUSY

SUMMARY = "a rank could not create it."
Create = Callable[[Creation], Any]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMES", replace(TIMES, create=1.0, create_report=0.5))


def run_ranks(creates: list[Create | None], wait: float = 1.0) -> tuple[list[Any], list[int]]:
    """Return the outcome of each rank, and the results undone; a rank with None never arrives."""
    root, undone = dist.HashStore(), []
    outcomes: list[Any] = [None] * len(creates)

    def start(rank: int, create: Create) -> None:
        world = World(rank, 3, rank, None, None, None, "a", 1, "test", init_method="store://a:1")
        store, limit = Store(root, world), timedelta(seconds=wait)
        end = Agreement(
            *(store, "init/end", rank, range(3)), call="init", limit=limit, summary=SUMMARY
        )
        try:
            outcomes[rank] = create_on_all(end, limit, create, undone.append, connects=True)
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=start, args=pair) for pair in enumerate(creates) if pair[1]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes, sorted(undone)


def fails(error: BaseException) -> Create:
    def create(creation: Creation) -> Any:
        raise error

    return create


def creates(number: int) -> Create:
    return lambda connect: number


TORCH_ERROR = RuntimeError("Gloo connectFullMesh failed")


def test_a_creation_is_given_up_as_soon_as_another_rank_has_failed() -> None:
    for error in (TORCH_ERROR, OSError("no descriptor")):
        end, began, seen = threading.Event(), time.monotonic(), []

        def connect(creation: Creation) -> Any:
            seen.append(creation)  # noqa: B023
            end.wait(30)  # noqa: B023
            return "late"

        outcomes, undone = run_ranks([connect, fails(error), connect], wait=20)
        assert time.monotonic() - began < 5 + BUSY
        assert outcomes[1] is error
        for outcome in (outcomes[0], outcomes[2]):
            assert outcome.requests == {1: f"{type(error).__name__}: {error}"}
        assert not undone  # yet
        for creation in seen:  # its thread creates no further group
            with pytest.raises(RuntimeError, match="given up"):
                creation.check()
        end.set()  # its result is undone then, as the next test shows
        wait_for_abandoned(Deadline.after(5))


def test_a_missing_rank_is_named_and_the_failure_is_the_cause() -> None:
    began = time.monotonic()
    outcomes, undone = run_ranks([creates(10), fails(TORCH_ERROR), None])
    assert 1.5 <= time.monotonic() - began < 1.5 + 3 + BUSY
    assert len({str(error) for error in outcomes[:2]}) == 1
    assert all(error.missing_ranks == (2,) for error in outcomes[:2])
    assert outcomes[1].__cause__ is TORCH_ERROR
    assert undone == [10]


def test_if_all_ranks_arrive_the_failure_is_reported() -> None:
    began = time.monotonic()
    outcomes, undone = run_ranks([creates(10), fails(TORCH_ERROR), creates(12)], wait=20)
    assert time.monotonic() - began < 5 + BUSY  # no rank waits for the deadline
    assert outcomes[1] is TORCH_ERROR
    assert undone == [10, 12]
    for error in (outcomes[0], outcomes[2]):
        assert isinstance(error, meshkit.DisagreementError)
        assert error.requests == {1: f"RuntimeError: {TORCH_ERROR}"}


def test_a_rank_announces_its_own_failure_at_once() -> None:
    outcomes, undone = run_ranks([creates(10), fails(OSError("no descriptor")), None], wait=20)
    assert isinstance(outcomes[1], OSError)
    assert outcomes[0].requests == {1: "OSError: no descriptor"}
    assert undone == [10]


def test_creation_that_never_ends_is_abandoned() -> None:
    """A backend may wait for a dead peer for ever."""
    end, began = threading.Event(), time.monotonic()
    outcomes, undone = run_ranks([lambda connect: end.wait(30), creates(11), None])
    assert 1.5 <= time.monotonic() - began < 4 + BUSY
    assert all(error.missing_ranks == (2,) for error in outcomes[:2])
    assert str(outcomes[0].__cause__) == "it did not finish within 1 s"
    assert undone == [11]
    end.set()


def test_without_a_store_no_rank_waits() -> None:
    create_on_all(None, timedelta(seconds=9), Creation.check, print, connects=True)
