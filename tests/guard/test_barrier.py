"""A barrier names the ranks that did not come; mesh.verify checks and times every group."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import meshkit
from meshkit.guard import barrier as barrier_module
from meshkit.launch.judges import Arrival, Arrivals, Process, RankState, Sighting
from meshkit.launch.process import current_process
from meshkit.testing.faults import Strike, play
from tests.faults import error_of
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 8  # of the pool


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


def mistake_timeouts_for_axes() -> None:
    mesh = meshkit.build_mesh(dp=1)
    calls: tuple[tuple[tuple[Any, ...], float], ...] = (
        ((60,), 60),
        ((0,), 60),
        ((99999999999999,), 60),
        (("1 min",), 60),
        (("dp", 2.5), 2.5),
    )
    for axes, seconds in calls:
        with pytest.raises(meshkit.SpecError) as caught:
            mesh.barrier(*axes)
        assert caught.value.fix == f"timeout={seconds}."
        mesh.barrier(*axes[:-1], timeout=seconds)


def test_a_timeout_by_position_is_named_and_valid() -> None:
    meshkit.spawn(mistake_timeouts_for_axes, 1, timeout=60)


def stop_in_the_barrier(strike: Strike) -> Any:
    """Stop rank 1 after it has arrived; rank 0 comes later."""
    mesh = meshkit.build_mesh(dp=3)
    if strike.rank == 1:
        strike.later(0.5, strike.stop)
    if strike.rank == 0:
        time.sleep(1.5)
    mesh.barrier("dp", timeout=4)


def test_a_rank_that_is_stopped_after_it_has_arrived_is_named() -> None:
    played = play(stop_in_the_barrier, 3, timeout=60)
    assert (played.fired, played.ends[1]) == (1, "stopped")
    for rank in (0, 2):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks[0]) == ("RankTimeoutError", 1)
        assert "Rank 1 (dp=1) is stopped: " in outcome.text


def test_only_ranks_of_this_host_that_came_when_the_time_was_over_were_late() -> None:
    here, there = current_process(), Process("b", 1, "another machine")
    came = {0: (here, 100.0), 1: (here, 100.4), 2: (here, 106.0), 3: (there, 900.0)}
    arrived = {
        rank: Arrival(process, {barrier_module.ARRIVAL_TIME: at})
        for rank, (process, at) in came.items()
    }
    assert barrier_module._late_ranks(Arrivals(range(4), arrived), 2.0) == {2: 6.0}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (RankState.ENDED, "has ended"),
        (RankState.STOPPED, "is stopped"),
        (RankState.UNKNOWN, "has not arrived at the barrier"),
        (RankState.BUSY, "has not arrived at the barrier"),
    ],
)
def test_a_barrier_that_breaks_says_what_a_missing_rank_does(state: RankState, text: str) -> None:
    came, missing = {0: Arrival(current_process(), {})}, {1: Sighting(state, "host b, pid 3")}
    round = SimpleNamespace(arrivals=lambda: Arrivals(range(2), came, seen=missing))
    agreement: Any = SimpleNamespace(round=round)
    error = barrier_module._broken_error(agreement, RuntimeError("closed"), "dp={}".format)
    assert f"Rank 1 (dp=1) {text}: host b, pid 3." in str(error)


def sleep_before(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
    def late(*args: Any) -> Any:
        time.sleep(seconds)
        return call(*args)

    return late


def verify_slowly() -> None:
    """Verify a mesh whose rank 5 is slow; all ranks return the same."""
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        if mesh.rank == 5:
            late = sleep_before(0.05, barrier_module._time_gather)
            patch.setattr(barrier_module, "_time_gather", late)
        verification = mesh.verify(timeout=20)
        mesh.agree("verification", verification)
    assert verification.slowest_rank == 5
    assert 0.03 < verification.waited < 1
    assert sorted((g.axes, g.num_groups, g.group_size) for g in verification.groups) == [
        (("dp",), 4, 2),
        (("dp", "sp"), 2, 4),
        (("dp", "sp", "tp"), 1, 8),
        (("sp",), 4, 2),
        (("tp",), 4, 2),
    ]
    for group in verification.groups:
        assert 0 < group.seconds <= group.slowest_seconds < 1
        assert 5 in group.slowest  # its peers wait for it in every group
    peers = f"its peers wait {verification.waited * 1e3:.3f} ms for it"
    assert f"slowest rank: 5 (dp=1 sp=0 tp=1), {peers}" in str(verification)


def verify_a_part_of_the_world_and_a_mesh_of_one() -> None:
    for ranks, groups in ([2, 0], [("dp",)]), ([1], []):
        with meshkit.build_mesh(dp=-1, ranks=ranks) as mesh:
            if mesh.inside:
                verification = mesh.verify(timeout=20)
                assert [group.axes for group in verification.groups] == groups
                if not groups:
                    assert (verification.slowest_rank, verification.waited) == (None, 0.0)
            else:
                assert (error_of(mesh.verify) or "")[0] == "CoordinateError"


def verify_a_wrong_group() -> None:
    """Verify while the gather of rank 3 expects its members in reverse: every rank raises."""
    has_members = barrier_module._has_members

    def reversed_members(members: list[int], *more: Any) -> Any:
        return has_members(members[::-1] if len(members) == 2 else members, *more)

    with meshkit.build_mesh(dp=4, sp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        if mesh.rank == 3:
            patch.setattr(barrier_module, "_has_members", reversed_members)
        kind, text = error_of(mesh.verify) or ("", "")
        assert kind == "MeshkitError"
        assert "or another order, on ranks 3." in text


@pytest.mark.parametrize(
    "check",
    [
        verify_slowly,
        pytest.param(verify_a_part_of_the_world_and_a_mesh_of_one, marks=needs_order),
        verify_a_wrong_group,
    ],
)
def test_verify_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)


def miss_verify() -> Any:
    """Call verify on rank 0 alone."""
    mesh = meshkit.build_mesh(dp=2)
    if mesh.rank == 1:
        time.sleep(9)
        return None
    try:
        mesh.verify(timeout=1)
    except meshkit.CollectiveError as error:
        return error.missing_ranks
    return "verified"


@pytest.mark.slow
def test_a_rank_missing_at_verify_is_reported() -> None:
    assert meshkit.spawn(miss_verify, 2, timeout=60) == [(1,), None]
