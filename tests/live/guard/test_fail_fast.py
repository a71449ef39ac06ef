"""A rank that leaves a guard with an error of its own, which the other ranks quote."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.world import free_port
from meshkit.live.guard import guard
from meshkit.live.guard.roll_call import ANSWER_TIME, MIN_POLL
from meshkit.testing.faults import Strike, play

PROMISED = 1.0
BUSY = 1.5  # seconds that other work on the machine may add
LIMIT = 2.0  # seconds of the guard
LIVES_ON = 6.0  # seconds for which a rank goes on after its error; the others may not wait for it


def divide() -> None:
    print(1 // 0)


def exit_slowly() -> None:
    raise SystemExit(3)


ERRORS: dict[str, Callable[[], None]] = {"ZeroDivisionError": divide, "SystemExit": exit_slowly}


def leave_with_error(strike: Strike, name: str) -> Any:
    """Leave the guard with an error on rank 1; the process then lives on for some seconds."""
    mesh = meshkit.build_mesh(dp=2, sp=2, arrival_timeout=30)
    group = mesh.group("dp"), mesh.group("sp"), mesh.group()  # noqa: F841 # held, as users do
    try:
        with mesh.guard(timeout=LIMIT):
            dist.all_reduce(torch.ones(1), group=mesh.group())
            if mesh.rank == 1:
                strike.note()
                ERRORS[name]()
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
            dist.all_reduce(torch.ones(1), group=mesh.group("sp"))
    finally:
        if mesh.rank == 1:
            time.sleep(LIVES_ON)


@pytest.mark.parametrize("name", ["ZeroDivisionError", "SystemExit"])
def test_the_others_raise_at_the_time_of_the_guard_and_quote_the_error(name: str) -> None:
    played = play(leave_with_error, 4, (name,), timeout=60)
    assert played.fired == 1
    assert played.outcomes[1].kind == name
    for rank in (0, 2, 3):
        outcome = played.outcomes[rank]
        assert outcome.kind == "CollectiveError", outcome
        assert f"left with {name}" in outcome.text
        assert "look at rank 1 first" in outcome.text
        assert outcome.missing_ranks == (), outcome
        assert played.seconds(rank) < LIMIT + PROMISED + BUSY, (rank, outcome)


def kill_host(strike: Strike, init_method: str) -> Any:
    """Kill rank 0, which hosts the store, in a guard; the ranks that raise live on for seconds."""
    meshkit.init(init_method=init_method, arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3)
    dist.barrier()
    if mesh.rank == 0:
        strike.later(1.0, strike.kill)
    try:
        with mesh.guard(timeout=LIMIT):
            while True:
                dist.all_reduce(torch.ones(10), group=mesh.group("dp"))
    finally:
        time.sleep(LIVES_ON)


def test_the_others_raise_if_the_host_of_the_store_dies() -> None:
    played = play(kill_host, 3, (f"tcp://127.0.0.1:{free_port()}",), timeout=60)
    assert played.fired == 0
    for rank in (1, 2):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("CollectiveError", (0,)), outcome
        assert played.seconds(rank) < LIMIT + LIVES_ON + PROMISED + BUSY, (rank, outcome)


LATE = 2.0  # seconds for which rank 1 gets no time on the processor


def answer_late(strike: Strike, init_method: str) -> Any:
    """Leave the guard with an error on rank 2; rank 1 answers late, and rank 0 hosts the store."""
    meshkit.init(init_method=init_method, arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3)

    def delay(call: Callable[..., Any], *args: Any) -> Any:
        time.sleep(LATE)
        return call(*args)

    if mesh.rank == 1:
        patch = pytest.MonkeyPatch()
        for name in ("respond", "report_failure"):  # the watching thread, and the main thread
            patch.setattr(guard, name, partial(delay, getattr(guard, name)), raising=True)
    with mesh.guard(timeout=60):
        if mesh.rank == 2:
            strike.note()
            exit_slowly()
        dist.recv(torch.ones(1), src=2, group=mesh.group("dp"))


def test_the_host_of_the_store_stays_for_a_rank_that_answers_late() -> None:
    played = play(answer_late, 3, (f"tcp://127.0.0.1:{free_port()}",), timeout=60)
    assert played.fired == 2
    for rank in (0, 1):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("CollectiveError", ()), outcome
        assert "left with SystemExit: 3" in outcome.text, outcome
    assert played.outcomes[0].text == played.outcomes[1].text
    assert played.seconds(0) < ANSWER_TIME + 2 * MIN_POLL + BUSY


def end_inside_guard(strike: Strike, how: str, init_method: str | None) -> Any:
    """Close the mesh, or leave the job, on rank 1 while the others wait in a guard."""
    meshkit.init(init_method=init_method, arrival_timeout=30)
    mesh = meshkit.build_mesh(dp=-1, arrival_timeout=30)
    dist.barrier()
    if mesh.rank == 1:
        strike.note()
        {"mesh.close()": mesh.close, "meshkit.shutdown()": meshkit.shutdown}[how]()
        time.sleep(2 + LIVES_ON)  # beyond the time of the guard
        return
    with mesh.guard(timeout=2):
        dist.all_reduce(torch.ones(1), group=mesh.group("dp"))


@pytest.mark.parametrize(
    ("how", "store"), [("mesh.close()", "file"), ("meshkit.shutdown()", "tcp")]
)
def test_a_rank_that_closes_or_leaves_is_named_with_its_call(how: str, store: str) -> None:
    method = f"tcp://127.0.0.1:{free_port()}" if store == "tcp" else None
    played = play(end_inside_guard, 3, (how, method), timeout=60)
    assert played.fired == 1
    for rank in (0, 2):
        outcome = played.outcomes[rank]
        assert outcome.kind == "CollectiveError", outcome
        assert f"Left: rank 1 (dp=1) has called {how}." in outcome.text, outcome.text
        assert "look at rank 1 first" in outcome.text
        assert played.seconds(rank) < 2 + PROMISED + BUSY
