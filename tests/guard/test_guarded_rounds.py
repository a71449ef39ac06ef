"""Ranks that meet in the store inside a guard name a missing one at its timeout."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import meshkit
from meshkit.testing.faults import Strike, play
from tests.promises import BUSY

LIMIT = 2.0  # seconds of the guard; ranks wait a minute for each other outside it


def meet(mesh: meshkit.Mesh, call: str) -> Any:
    """Make a call in which all ranks meet in the store."""
    x = torch.ones(2, 2)
    if call == "agree":
        return mesh.agree("step", 1)
    if call == "whole_state":
        return mesh.whole_state({"x": x}, {"x": "a/dp b"})
    return mesh.transfer({"x": "a/dp b -> a b/dp"}, to=mesh, like={"x": x})


def meet_without(strike: Strike, call: str, fault: str, outer: bool) -> None:
    """Meet in a call to which one rank does not come."""
    meshkit.init(device="cpu", arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3)
    mesh.agree("begin", 0)
    if mesh.rank == 1:
        if fault == "stop":
            strike.stop()
        strike.note()
        time.sleep(LIMIT + 8)
        return
    limits = (LIMIT, 30) if outer else (30, LIMIT)
    with mesh.guard(timeout=limits[0]), mesh.guard(timeout=limits[1]):
        meet(mesh, call)


@pytest.mark.parametrize(
    ("call", "fault", "outer"),
    [
        ("agree", "stop", False),
        ("agree", "sleep", True),
        ("transfer", "sleep", False),
        pytest.param("whole_state", "stop", False, marks=pytest.mark.slow),
    ],
)
def test_ranks_wait_for_a_missing_one_as_long_as_the_guard_says(
    call: str, fault: str, outer: bool
) -> None:
    played = play(meet_without, 3, (call, fault, outer), timeout=90)
    assert played.fired == 1
    for rank in (0, 2):
        outcome = played.outcomes[rank]
        assert outcome.kind == "RankTimeoutError", outcome
        assert outcome.missing_ranks == (1,)
        assert f"within {LIMIT:g} s" in outcome.text
        assert LIMIT - 0.5 < played.seconds(rank) < LIMIT + BUSY
