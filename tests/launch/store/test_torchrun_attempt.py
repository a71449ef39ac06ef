"""Attempts of a torchrun job at one store: agents with other counts, worlds of other sizes."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.rendezvous import rendezvous
from meshkit.launch.store.deadline import Deadline
from meshkit.launch.store.keys import GENERATION
from meshkit.launch.store.rank_lease import acquire_rank, is_past
from meshkit.launch.store.torchrun_attempt import store_of_attempt
from meshkit.testing.faults import Strike, play


def attempt_of(
    store: dist.Store, agent: str, count: int, rank: int = 1, size: int = 2
) -> dist.Store:
    """Return the store of a worker of an agent with a restart count."""
    world = meshkit.detect({"RANK": str(rank), "WORLD_SIZE": str(size)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        patch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/{agent}/attempt_{count}/0/error.json")
        return store_of_attempt(world, store)


def are_equal(first: dist.Store, second: dist.Store) -> bool:
    """Return whether both are the same part of a store."""
    first.set("probe", "")
    is_equal = second.check(["probe"])
    first.delete_key("probe")
    return bool(is_equal)


def test_a_rank_of_an_earlier_attempt_is_an_error() -> None:
    """torchrun's agent keeps its store over restarts."""
    base = dist.HashStore()
    attempt_of(base, "a", 2)
    with pytest.raises(meshkit.LaunchError) as caught:
        attempt_of(base, "a", 1)
    host, pid = socket.gethostname(), os.getpid()
    assert str(caught.value) == (
        "rank 1 is of attempt 1 of the job, which is over.\n"
        f"  Attempt 2 has begun, with rank 1 on host {host}, pid {pid}; this is pid {pid}.\n"
        f"  Fix: end this process (kill {pid} on host {host})."
    )
    assert caught.value.variables == {"TORCHELASTIC_RESTART_COUNT": "1"}


def test_agents_whose_counts_differ_are_in_one_attempt() -> None:
    base = dist.HashStore()
    first, beside = attempt_of(base, "a", 0), attempt_of(base, "b", 0)
    assert are_equal(first, beside)
    second = attempt_of(base, "a", 1)
    assert not are_equal(first, second)
    assert are_equal(second, attempt_of(base, "b", 0))  # its count is unchanged
    assert are_equal(second, attempt_of(base, "c", 0))  # a new agent
    assert are_equal(second, attempt_of(base, "a", 1))
    assert not are_equal(second, third := attempt_of(base, "c", 1))
    assert are_equal(third, attempt_of(base, "b", 1))  # the next attempt, same count
    assert are_equal(third, attempt_of(base, "a", 2))
    assert not are_equal(third, attempt_of(base, "a", 3))


def test_a_world_of_another_size_is_another_attempt() -> None:
    base = dist.HashStore()
    assert not are_equal(attempt_of(base, "a", 0, size=2), attempt_of(base, "a", 0, size=4))
    assert are_equal(attempt_of(base, "b", 0, size=4), attempt_of(base, "a", 0, size=4))


def test_without_torchrun_all_sizes_are_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with another world size then raise."""
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    base = dist.HashStore()
    worlds = [meshkit.detect({"RANK": "1", "WORLD_SIZE": size}) for size in ("2", "3")]
    assert are_equal(*(store_of_attempt(world, base) for world in worlds))


def test_waiting_ranks_read_that_their_attempt_is_over() -> None:
    base = dist.HashStore()
    old = attempt_of(base, "a", 0)
    assert [acquire_rank(old, rank).generation for rank in (0, 1, 1)] == [1, 1, 2]
    assert not is_past(old)
    new = attempt_of(base, "b", 1)
    assert [is_past(old), is_past(new)] == [False, False]  # an agent that was not there before
    attempt_of(base, "a", 1)
    assert is_past(old)
    for generation in (1, 2):
        assert dist.PrefixStore(GENERATION.format(generation), old).check(
            ["over", "round/1/decision"]
        )
    assert not is_past(attempt_of(base, "b", 1))


def test_a_rank_that_joins_as_the_attempt_ends_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [True, True, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setattr(rendezvous, "is_past", lambda base: answers.pop(0))
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"})
    rendezvous._enter_generation(world, Deadline.after(5))
    assert answers == []


def join_attempt(strike: Strike, port: int, counts: list[int], waits: list[float]) -> Any:
    """Join an attempt; each rank is the only worker of an agent with so many restarts.

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


def test_attempts_that_only_one_agent_counts() -> None:
    """The counting agent joins last, then first. Then a new agent joins the two."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    attempts = [([0, 0], [0.0, 0.0]), ([1, 0], [0.7, 0.0]), ([2, 0], [0.0, 0.7])]
    for counts, waits in (*attempts, ([0, 2, 0], [0.0, 0.0, 0.0])):
        played = play(join_attempt, len(counts), (store.port, counts, waits), timeout=60)
        texts = {outcome.text for outcome in played.outcomes.values()}
        assert texts == {str(("torchrun", len(counts)))}, played
        assert max(played.seconds(rank) for rank in range(len(counts))) < 10
