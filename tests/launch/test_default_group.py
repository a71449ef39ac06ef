"""The default group of a large job: which pairs of ranks it connects, and when."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import default_group
from meshkit.launch.job import require_job
from meshkit.launch.times import TIMES
from meshkit.testing.faults import Strike, play
from tests.live.resources import descriptors
from tests.promises import BUSY

RANKS = 8


def connect_as_if_large(patch: pytest.MonkeyPatch) -> None:
    """Let a job of eight ranks connect as one of more than 32."""
    patch.setattr(default_group, "EAGER_RANKS", RANKS - 1)


def use_every_pair() -> list[float]:
    """Gather the rank numbers on the last rank, then exchange them; return the exchanged ones."""
    rank, last = torch.tensor([float(dist.get_rank())]), RANKS - 1
    parts = [torch.zeros(1) for _ in range(RANKS)]
    dist.gather(rank, parts if dist.get_rank() == last else None, dst=last)
    received = torch.zeros(RANKS)
    dist.all_to_all_single(received, rank.repeat(RANKS))
    return [float(number) for number in received]


def connected() -> tuple[bool, bool, int]:
    """Return which pairs are connected, and the number of descriptors of this rank."""
    connections = require_job().connections
    return connections.near, connections.all, descriptors()


def connections_of_a_large_job() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        meshkit.init()
    states = [connected()]
    variable = os.environ.get(default_group.LAZY)
    with meshkit.build_mesh(dp=4, tp=2) as mesh:  # the default group is that of the whole mesh
        assert mesh.group() is dist.group.WORLD
    states.append(connected())
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), src=5)
    dist.all_gather([torch.ones(1) for _ in range(RANKS)], torch.ones(1))
    states.append(connected())
    whole = meshkit.build_mesh(dp=RANKS)  # it is the group of an axis, too
    assert whole.group("dp") is dist.group.WORLD
    states.append(connected())
    received = use_every_pair()
    states.append(connected())
    return variable, states, received


def test_a_large_default_group_connects_the_pairs_that_a_mesh_uses() -> None:
    for variable, states, received in meshkit.spawn(connections_of_a_large_job, RANKS, timeout=120):
        assert variable is None  # only while the group is created
        (first, built, used, whole, last) = states
        assert first[:2] == (False, False)
        assert built[:2] == (True, False)
        assert used == built  # common collectives connect no further pair
        assert whole[:2] == (True, True)
        assert last == whole  # nor does any other collective
        assert first[2] < built[2] < whole[2]
        assert received == [float(rank) for rank in range(RANKS)]


def respect_variable(value: str) -> tuple[str | None, bool]:
    os.environ[default_group.LAZY] = value
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        meshkit.init()
    return os.environ.get(default_group.LAZY), require_job().connections.all


def test_the_choice_of_the_user_is_kept() -> None:
    assert meshkit.spawn(respect_variable, RANKS, ("0",), timeout=60) == [("0", True)] * RANKS


def lose_rank_while_connecting(strike: Strike, how: str) -> str:
    """Lose a rank when the first pairs connect, and leave the job."""
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        world = meshkit.init()
        if world.rank == 3:
            patch.setattr(dist, "barrier", getattr(strike, how))
        try:
            meshkit.build_mesh(dp=4, tp=2, arrival_timeout=4)
        except meshkit.RankTimeoutError as error:
            if error.missing_ranks != (3,):
                raise
            meshkit.shutdown()
            return str(error)
    return "no error"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_rank_lost_while_pairs_connect_is_named_in_time(how: str) -> None:
    played = play(lose_rank_while_connecting, RANKS, (how,), timeout=120)
    assert played.fired == 3
    assert sorted(played.outcomes) == [rank for rank in range(RANKS) if rank != 3]
    for rank, outcome in played.outcomes.items():
        assert "Missing: 3" in outcome.text
        assert played.seconds(rank) <= TIMES.create + 4 + BUSY


def wait_for_late_rank() -> float:
    """Come to a pair that was never used 4 s late, within the timeout of 20 s of the group."""
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        meshkit.init(timeout=20)
    began = time.monotonic()
    if dist.get_rank() == 0:
        time.sleep(5)
    parts = [torch.zeros(1) for _ in range(RANKS)]
    dist.gather(torch.ones(1), parts if dist.get_rank() == 3 else None, dst=3)
    return time.monotonic() - began


@pytest.mark.slow
def test_a_pair_that_was_never_used_waits_for_a_late_rank() -> None:
    waits = meshkit.spawn(wait_for_late_rank, RANKS, timeout=120)
    assert 4 < waits[3] < 20
