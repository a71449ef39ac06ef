"""A killed rank whose forked child lives: the child holds no connection of the rank."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Strike, play

BUSY = 3.0


def kill_a_rank_with_a_child(strike: Strike, odd: int, store: str, in_collective: bool) -> Any:
    method = {"init_method": store} if store else {}
    meshkit.init(arrival_timeout=30, timeout=50, **method)
    mesh = meshkit.build_mesh(dp=-1)
    dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    if mesh.rank == odd:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        time.sleep(0.5)
        strike.kill()
    if in_collective:
        dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    else:
        mesh.agree("x", 1)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    ("odd", "tcp", "in_collective"), [(1, False, True), (0, True, True), (0, True, False)]
)
def test_the_others_notice_the_death_at_once(odd: int, tcp: bool, in_collective: bool) -> None:
    args = odd, free_address() if tcp else "", in_collective
    played = play(kill_a_rank_with_a_child, 3, args, timeout=60)
    assert (played.fired, played.ends[odd]) == (odd, "SIGKILL")
    for rank in {0, 1, 2} - {odd}:
        assert played.outcomes[rank].kind in (
            "RuntimeError",
            "RankTimeoutError",
            "DistBackendError",
        )
        assert played.seconds(rank) < 1 + BUSY, played.outcomes[rank]


def read_after_fork() -> Any:
    """Fork a child; the rank still communicates after it."""
    mesh = meshkit.build_mesh(dp=-1)
    total = torch.ones(1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    dist.all_reduce(total, group=mesh.group("dp"))
    mesh.barrier()
    return int(total), status


def test_the_connections_of_the_rank_stay() -> None:
    assert meshkit.spawn(read_after_fork, 2, timeout=60) == [(2, 0), (2, 0)]
