"""A rank that fails during a move to another mesh: its peers raise in time, and name it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Played, Strike, play

LIMIT = 4.0  # seconds of the guards
WIDTH = 2**20  # more elements than a socket holds
BUSY = 10.0  # more seconds on a machine that is loaded


def move_with(strike: Strike, odd: int, fault: str, guarded: bool) -> None:
    """Move a tensor twice; before the second move one rank fails."""
    meshkit.init()
    source = meshkit.build_mesh(ranks=[0, 1], dp=2, timeout=LIMIT)
    target = meshkit.build_mesh(ranks=[2, 3], tp=2, timeout=LIMIT)
    own = source if source.inside else target
    x: Any = torch.ones(4, WIDTH) if source.inside else None

    def move() -> None:
        source.redistribute(x, "o/dp i -> o i/tp", to=target)

    move()
    dist.barrier()
    if own.rank == odd:
        if fault == "shape":
            strike.note()
            x = torch.ones(5, WIDTH)
        else:
            {"kill": strike.kill, "stop": strike.stop}[fault]()
    elif fault == "kill":
        time.sleep(0.5)  # the connections of the killed rank are closed
    if guarded:
        with own.guard(timeout=LIMIT):
            move()
    else:
        move()


def run(odd: int, fault: str, guarded: bool) -> Played:
    """Return the outcome of the four ranks."""
    return play(move_with, 4, (odd, fault, guarded), timeout=90)


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "guarded"])
@pytest.mark.parametrize("fault", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("odd", "peers"), [(1, (2, 3)), (3, (0, 1))], ids=["sender", "receiver"])
def test_the_peers_of_a_rank_that_is_gone_name_it(
    odd: int, peers: tuple[int, int], fault: str, guarded: bool
) -> None:
    played = run(odd, fault, guarded)
    assert played.fired == odd
    for rank in peers:
        outcome = played.outcomes[rank]
        assert outcome.kind == ("CollectiveError" if guarded else "RuntimeError"), outcome
        assert f"to or from rank {odd}." in outcome.text, outcome
        assert played.seconds(rank) < LIMIT + BUSY


def test_a_sender_with_another_shape_raises_before_it_sends() -> None:
    played = run(1, "shape", True)
    assert played.fired == 1
    assert played.outcomes[1].kind == "SpecError"
    assert f"x has sizes i={WIDTH} o=10, not i={WIDTH} o=8" in played.outcomes[1].text
    for rank in (2, 3):
        assert played.outcomes[rank].kind == "CollectiveError", played.outcomes[rank]
        assert "to or from rank" in played.outcomes[rank].text
        assert played.seconds(rank) < LIMIT + BUSY
