"""A rank that waits gets its error from its own watching thread, if no other rank tells it."""

from __future__ import annotations

import ast
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.live.guard import guard
from meshkit.testing.faults import Strike, play

WAIT = 20.0  # seconds for which rank 1 keeps its connections


def keep_connections(strike: Strike) -> Any:
    """Kill rank 3; rank 1, which notices, keeps its connections until rank 0 has raised."""
    mesh = meshkit.build_mesh(dp=2, tp=2)
    raised = Path(strike.folder, "raised")
    if mesh.rank == 1:
        pytest.MonkeyPatch().setattr(guard, "break_off", lambda groups: None, raising=True)
    try:
        with mesh.guard(timeout=60):
            if mesh.rank == 3:
                strike.kill()
            axis = "dp" if mesh.rank == 1 else "tp"
            dist.all_reduce(torch.ones(1), group=mesh.group(axis))
    except meshkit.CollectiveError as error:
        if mesh.rank == 0:
            raised.touch()
        deadline = time.monotonic() + WAIT
        while mesh.rank == 1 and not raised.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return raised.exists() or mesh.rank == 2, error.missing_ranks


def test_a_rank_that_waits_raises_the_report_it_has_read() -> None:
    played = play(keep_connections, 4, timeout=120)
    assert played.fired == 3
    for rank in (0, 1, 2):
        assert played.outcomes[rank].kind == "returned", played.outcomes[rank]
        assert ast.literal_eval(played.outcomes[rank].text) == (True, (3,))
