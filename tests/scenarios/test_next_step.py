"""From the loss of ranks to the next step of those that live: seconds, not the waits of a job.

Ranks wait for each other for a minute, a guard for twenty seconds and torch for a minute, so that a
rank that waits for a lost one is far too late.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import job
from meshkit.launch.job import Job
from meshkit.recover import rounds
from meshkit.testing.faults import Played, Strike, play
from tests.promises import BUSY

GUARD, ARRIVAL, LOST_AT = 20.0, 60.0, 3
ONE, TWO = 2.0, 4.0  # seconds until the next step after one loss, and after two within a second

# the function before which a second rank is killed while the others recover from the first loss
POINTS: dict[str, tuple[Any, str]] = {
    "before the groups": (Job, "rejoin"),
    "while groups connect": (job, "create_default_group"),
    "before the mesh": (rounds, "open_groups"),
}


def train(strike: Strike, second: str) -> Any:
    """Lose the last rank, and rank 1 at a point; return when the step after that has ended."""
    meshkit.init(arrival_timeout=ARRIVAL, timeout=ARRIVAL)
    mesh, step, last = meshkit.build_mesh(dp=-1), 0, dist.get_world_size() - 1
    while step <= LOST_AT:
        try:
            with mesh.guard(timeout=GUARD):
                if step == LOST_AT and strike.rank == last:
                    strike.kill()
                dist.all_reduce(torch.ones(1), group=mesh.group())
            step += 1
        except meshkit.CollectiveError:
            if second and strike.rank == 1:
                pytest.MonkeyPatch().setattr(*POINTS[second], lambda *_, **__: strike.kill())
            mesh = mesh.recover(step=step)
    ended = time.monotonic()
    mesh.close()
    meshkit.shutdown()
    return ended, mesh.layout.num_ranks


AT_ONCE = 1
JOBS: dict[str, Callable[[], Played]] = {
    "test_after_one_loss": partial(play, train, 4, ("",), timeout=150),
    **{
        f"test_after_two_losses_within_a_second[{second}]": partial(
            play, train, 6, (second,), timeout=150
        )
        for second in POINTS
    },
}


def check(played: Played, ranks: int, lost: int, within: float) -> None:
    """Check that all ranks that live have taken the next step in time."""
    assert played.fired == ranks - 1
    ends = [outcome for outcome in played.outcomes.values() if outcome.kind == "returned"]
    assert len(ends) == ranks - lost, played
    for ended, size in (ast.literal_eval(end.text) for end in ends):
        assert size == ranks - lost
        assert ended - played.at < within + BUSY


def test_after_one_loss(played: Played) -> None:
    check(played, 4, 1, ONE)


@pytest.mark.parametrize("second", POINTS)
def test_after_two_losses_within_a_second(second: str, played: Played) -> None:
    assert [*played.ends.values()].count("SIGKILL") == 2
    check(played, 6, 2, 1 + TWO)
