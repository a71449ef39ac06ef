"""Meetings at a store, with threads for ranks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.launch.meet import arrive
from meshkit.launch.world import World

CALL = Call("build_mesh", kwargs={"dp": 4, "sp": 2})
LAYOUT = meshkit.Layout(dp=4, sp=2)


def place(rank: int) -> str:
    return " ".join(f"{axis}={index}" for axis, index in LAYOUT.coordinate(rank).items())


def world(rank: int, world_size: int = 8) -> World:
    return World(rank, world_size, rank, None, None, None, "a", 29500, "hand-written")


def meet(store: dist.Store, seconds: dict[int, float], wait: float = 1.0) -> dict[int, object]:
    """What became of each rank that came, after so many seconds; absent ranks never come."""
    became: dict[int, object] = {}

    def come(rank: int, after: float) -> None:
        time.sleep(after)
        try:
            arrive(CALL, store, world(rank), timedelta(seconds=wait), place=place)
            became[rank] = "met"
        except meshkit.RankTimeoutError as error:
            became[rank] = error

    threads = [threading.Thread(target=come, args=item) for item in seconds.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return became


def test_all_come() -> None:
    store = dist.HashStore()
    for _ in range(3):  # one meeting after another, on one store
        assert meet(store, dict.fromkeys(range(8), 0.0)) == dict.fromkeys(range(8), "met")


def test_just_inside_the_deadline() -> None:
    became = meet(dist.HashStore(), {**dict.fromkeys(range(7), 0.0), 7: 0.5}, wait=2)
    assert set(became.values()) == {"met"}


def test_two_are_missing_word_for_word() -> None:
    began = time.monotonic()
    became = meet(dist.HashStore(), dict.fromkeys(range(6), 0.0))
    assert 1 <= time.monotonic() - began < 3
    for error in became.values():
        assert isinstance(error, meshkit.RankTimeoutError)
        assert error.missing_ranks == (6, 7)
        assert str(error) == (
            "2 of 8 ranks did not arrive at build_mesh(dp=4, sp=2) within 1 s.\n"
            f"  Missing: 6 (dp=3 sp=0), 7 (dp=3 sp=1). Arrived: 0-5 on {socket.gethostname()}.\n"
            "  Fix: look at the logs of ranks 6-7 first."
        )


def test_a_late_rank_obeys_the_verdict_at_once_and_can_meet_again() -> None:
    store = dist.HashStore()
    became = meet(store, {**dict.fromkeys(range(7), 0.0), 7: 2.5})
    late = became[7]
    assert isinstance(late, meshkit.RankTimeoutError)
    assert str(late) == (
        "1 of 8 ranks did not arrive at build_mesh(dp=4, sp=2) within 1 s.\n"
        f"  Missing: 7 (dp=3 sp=1). Arrived: 0-6 on {socket.gethostname()}.\n"
        "  Rank 7 came after that.\n"
        "  Fix: look at the logs of rank 7 first."
    )
    assert all(isinstance(error, meshkit.RankTimeoutError) for error in became.values())
    assert set(meet(store, dict.fromkeys(range(8), 0.0)).values()) == {"met"}


def test_a_meeting_has_one_verdict_whenever_the_last_rank_comes() -> None:
    """Around the deadline either all meet or all are told: never some of each."""
    seen = set()
    for after in (0.0, 0.28, 0.3, 0.32, 1.0):
        became = meet(dist.HashStore(), {**dict.fromkeys(range(7), 0.0), 7: after}, wait=0.3)
        kinds = {type(outcome).__name__ for outcome in became.values()}
        assert len(kinds) == 1, became
        seen |= kinds
    assert seen == {"str", "RankTimeoutError"}  # both ends of the range were met


def test_many_missing_ranks_are_summed_up() -> None:
    error: object = None
    try:
        arrive(CALL, dist.HashStore(), world(0, 1000), timedelta(seconds=0.05))
    except meshkit.RankTimeoutError as caught:
        error = caught
    assert isinstance(error, meshkit.RankTimeoutError)
    assert error.missing_ranks == tuple(range(1, 1000))
    assert "Missing: 1, 2, 3, 4, 5, 6, 7, 8, and 991 more. Arrived: 0 on " in str(error)
    assert str(error).endswith("look at the logs of ranks 1-999 first.")


class Gone(dist.Store):
    """A store whose host has left."""

    def add(self, key: str, amount: int) -> int:
        raise dist.DistNetworkError("Connection reset by peer")


def test_a_store_whose_host_has_left_is_told_in_words() -> None:
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        arrive(CALL, Gone(), world(3), timedelta(seconds=1))
    assert str(caught.value) == (
        "build_mesh(dp=4, sp=2): rank 3 lost the store where the ranks meet.\n"
        "  It was at a:29500; the process that hosts it has ended.\n"
        "  Fix: look at the log of rank 0 first, or of the torchrun agent."
    )
    assert isinstance(caught.value.__cause__, dist.DistNetworkError)


class Counting:
    """How many operations a rank asks of the store."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wrap(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            self.calls.append(name)
            return call(*args)

        return counted


def test_a_rank_needs_six_operations_at_most_whatever_the_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for count in (2, 8, 32):
        counting, store = Counting(), dist.HashStore()
        for name in ("add", "set", "get", "wait", "compare_set", "check"):
            monkeypatch.setattr(
                dist.PrefixStore,
                name,
                counting.wrap(name, getattr(dist.Store, name)),
                raising=False,
            )
        threads = [
            threading.Thread(
                target=arrive, args=(CALL, store, world(rank, count), timedelta(seconds=20))
            )
            for rank in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        monkeypatch.undo()
        # one more, the counter of meetings, goes to the store itself; the last writes the verdict
        assert len(counting.calls) == 4 * count + 1
        found.append(sorted(set(counting.calls)))
    assert found == [["add", "compare_set", "get", "set", "wait"]] * 3
