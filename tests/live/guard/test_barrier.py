"""A barrier names the ranks that did not come, whichever time ends first."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

import meshkit
from meshkit.testing.faults import Strike, play

BUSY = 3.0


def wait_at_barrier(strike: Strike, in_guard: bool, seconds: float) -> Any:
    """Let rank 2 come late to a barrier that may wait longer than the group or the guard."""
    mesh = meshkit.build_mesh(dp=3, timeout=20 if in_guard else 2, arrival_timeout=30)
    with mesh.guard(timeout=2) if in_guard else contextlib.nullcontext():
        if mesh.rank == 2:
            strike.note()
            time.sleep(seconds)
        mesh.barrier(timeout=9)


@pytest.mark.parametrize("in_guard", [False, True], ids=["group", "guard"])
def test_the_missing_rank_is_named_though_torch_raises_first(in_guard: bool) -> None:
    played = play(wait_at_barrier, 3, (in_guard, 6.0), timeout=60)
    assert played.fired == 2
    for rank in (0, 1):
        outcome = played.outcomes[rank]
        assert outcome.missing_ranks == (2,), outcome
        assert "dp=2" in outcome.text
        assert played.seconds(rank) < 2 + 1 + BUSY
    first = min((played.outcomes[rank] for rank in (0, 1)), key=lambda outcome: outcome.at)
    assert first.kind == "RankTimeoutError"
    assert "did not arrive at mesh.barrier(timeout=9) within 2 s." in first.text
