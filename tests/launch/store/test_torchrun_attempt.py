"""Attempts of torchrun's at one store: agents whose counts differ, worlds of other sizes."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.launch.rendezvous import rendezvous
from meshkit.launch.store.rank_lease import acquire_rank
from meshkit.launch.store.torchrun_attempt import is_past, store_of_attempt
from meshkit.testing.faults import Strike, play

CALL = Call("init")


def of(store: dist.Store, agent: str, count: int, rank: int = 1, size: int = 2) -> dist.Store:
    """What a worker of that agent takes for its store."""
    world = meshkit.detect({"RANK": str(rank), "WORLD_SIZE": str(size)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        patch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/{agent}/attempt_{count}/0/error.json")
        return store_of_attempt(world, store)


def is_one(first: dist.Store, second: dist.Store) -> bool:
    first.set("probe", "")
    found = second.check(["probe"])
    first.delete_key("probe")
    return bool(found)


def test_a_rank_of_an_earlier_attempt_is_refused() -> None:
    """torchrun's agent keeps its store over restarts."""
    base = dist.HashStore()
    of(base, "a", 2)
    with pytest.raises(meshkit.LaunchError) as caught:
        of(base, "a", 1)
    host, pid = socket.gethostname(), os.getpid()
    assert str(caught.value) == (
        "init(): rank 1 is of attempt 1 of the job, which is over.\n"
        f"  Attempt 2 has begun, with rank 1 on host {host}, pid {pid}; this is pid {pid}.\n"
        f"  Fix: end this process (kill {pid} on host {host})."
    )
    assert caught.value.variables == {"TORCHELASTIC_RESTART_COUNT": "1"}


def test_agents_whose_counts_differ_are_in_one_attempt() -> None:
    base = dist.HashStore()
    first, beside = of(base, "a", 0), of(base, "b", 0)
    assert is_one(first, beside)
    second = of(base, "a", 1)
    assert not is_one(first, second)
    assert is_one(second, of(base, "b", 0))  # told by the other: its own count is what it was
    assert is_one(second, of(base, "c", 0))  # a new one
    assert is_one(second, of(base, "a", 1))
    assert not is_one(second, third := of(base, "c", 1))
    assert is_one(third, of(base, "b", 1))  # one number more, though both count a restart
    assert is_one(third, of(base, "a", 2))
    assert not is_one(third, of(base, "a", 3))


def test_a_world_of_another_size_is_another_attempt() -> None:
    base = dist.HashStore()
    assert not is_one(of(base, "a", 0, size=2), of(base, "a", 0, size=4))
    assert is_one(of(base, "b", 0, size=4), of(base, "a", 0, size=4))


def test_without_torchrun_all_sizes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that ranks which take the world for another size are told."""
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    base = dist.HashStore()
    worlds = [meshkit.detect({"RANK": "1", "WORLD_SIZE": size}) for size in ("2", "3")]
    assert is_one(*(store_of_attempt(world, base) for world in worlds))


def test_who_waits_in_an_attempt_is_told_that_it_is_over() -> None:
    base = dist.HashStore()
    old = of(base, "a", 0)
    assert [acquire_rank(old, 0), acquire_rank(old, 1), acquire_rank(old, 1)] == [1, 1, 2]
    assert not is_past(old)
    new = of(base, "b", 1)
    assert [is_past(old), is_past(new)] == [False, False]  # an agent that was not there before
    of(base, "a", 1)
    assert is_past(old)
    for generation in (1, 2):
        meeting = dist.PrefixStore(f"meshkit/{generation}", old)
        assert meeting.check(["over", "meeting/1/verdict"])
    assert not is_past(of(base, "b", 1))


def test_who_takes_a_seat_just_as_the_attempt_ends_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [True, True, False]
    monkeypatch.setattr(rendezvous, "is_past", lambda base: answers.pop(0))
    world, wait = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"}), timedelta(seconds=5)
    rendezvous._opened(world, wait, time.monotonic())
    assert answers == []


def begins(strike: Strike, port: int, counts: list[int], waits: list[float]) -> Any:
    """An attempt of a job: each rank is the only worker of an agent, which has so many restarts.

    Agents are numbered from the end, so that a new one is rank 0.
    """
    me, size = strike.rank, len(counts)
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(me), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update(TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT=str(counts[me]))
    os.environ["TORCHELASTIC_ERROR_FILE"] = f"/tmp/x_{size - me}/attempt_{counts[me]}/0/error.json"
    time.sleep(waits[me])
    strike.note()
    world = meshkit.init(arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return world.launcher, int(total)


def test_attempts_in_which_one_agent_alone_counts_a_restart() -> None:
    """It comes after the one who was told of it, then before; then a new agent joins the two."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    attempts = [([0, 0], [0.0, 0.0]), ([1, 0], [0.7, 0.0]), ([2, 0], [0.0, 0.7])]
    for counts, waits in (*attempts, ([0, 2, 0], [0.0, 0.0, 0.0])):
        played = play(begins, len(counts), (store.port, counts, waits), timeout=60)
        told = {one.text for one in played.outcomes.values()}
        assert told == {str(("torchrun", len(counts)))}, played
        assert max(played.seconds(rank) for rank in range(len(counts))) < 10
