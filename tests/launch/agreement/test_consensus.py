"""Meetings at a store, with threads for ranks."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.launch.agreement.consensus import Participants, Proposal, agree, announce_failure
from meshkit.launch.launchers.world import World
from meshkit.launch.store import client as stores
from meshkit.launch.store.check_in import hosts_of

CALL = Call("build_mesh", kwargs={"dp": 4, "sp": 2})
LAYOUT = meshkit.Layout(dp=4, sp=2)


def place(rank: int) -> str:
    return " ".join(f"{axis}={index}" for axis, index in LAYOUT.coordinate(rank).items())


def world(rank: int, world_size: int = 8) -> World:
    return World(rank, world_size, rank, None, None, None, "a", 29500, "hand-written")


ABOUT = "ranks disagree about the mesh; no process group was created."


def come(
    store: dist.Store, who: World, wait: float, request: dict[str, str] | None = None
) -> object:
    """Arrive; the error where there was one."""
    matter = Proposal(CALL, request or {}, ABOUT, (), place if who.world_size == 8 else None)
    try:
        agree(matter, Participants.of(store, who), timedelta(seconds=wait))
    except meshkit.MeshkitError as error:
        return error
    return "met"


def meet(store: dist.Store, seconds: dict[int, float], wait: float = 1.0) -> dict[int, object]:
    """What became of each rank that came, after so many seconds; absent ranks never come."""
    became: dict[int, object] = {}

    def start(rank: int, after: float) -> None:
        time.sleep(after)
        became[rank] = come(store, world(rank), wait)

    threads = [threading.Thread(target=start, args=item) for item in seconds.items()]
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
    assert 1 <= time.monotonic() - began < 1 + 3  # as promised in live/README.md
    host = f"host {socket.gethostname()}"
    for error in became.values():
        assert isinstance(error, meshkit.RankTimeoutError)
        assert error.missing_ranks == (6, 7)
        assert str(error) == (
            "2 of 8 ranks did not arrive at build_mesh(dp=4, sp=2) within 1 s.\n"
            f"  Missing: 6 (dp=3 sp=0), 7 (dp=3 sp=1). Arrived: 0-5 on {host}.\n"
            "  Fix: look at the logs of ranks 6-7 first."
        )


def test_a_late_rank_obeys_the_verdict_at_once_and_can_meet_again() -> None:
    store = dist.HashStore()
    became = meet(store, {**dict.fromkeys(range(7), 0.0), 7: 2.5})
    late = became[7]
    assert isinstance(late, meshkit.RankTimeoutError)
    assert str(late) == (
        "1 of 8 ranks did not arrive at build_mesh(dp=4, sp=2) within 1 s.\n"
        f"  Missing: 7 (dp=3 sp=1). Arrived: 0-6 on host {socket.gethostname()}.\n"
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
    error = come(dist.HashStore(), replace(world(0), world_size=1000), 0.05)
    assert isinstance(error, meshkit.RankTimeoutError)
    assert error.missing_ranks == tuple(range(1, 1000))
    assert "Missing: 1, 2, 3, 4, 5, 6, 7, 8, and 991 more. Arrived: 0 on host " in str(error)
    assert str(error).endswith("look at the logs of ranks 1-999 first.")


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        ([], None),
        (["n1", "n2"], None),  # the launcher calls hosts by other names than they do themselves
        (["HERE", "n2", "n3"], "  No rank came from hosts n2, n3."),
        (["HERE"], None),
        (["HERE.cluster", "n2"], "  No rank came from host n2."),
        (["HERE", *(f"n{i}" for i in range(20))], ", n7, and 12 more."),
    ],
)
def test_hosts_from_which_nobody_came(expected: list[str], line: str | None) -> None:
    here = socket.gethostname().partition(".")[0]
    hosts = [host.replace("HERE", here) for host in expected]
    matter = Proposal(CALL, {}, ABOUT, hosts=lambda: hosts)
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        agree(matter, Participants.of(dist.HashStore(), world(0, 2)), timedelta(seconds=0.05))
    text = str(caught.value)
    assert ("No rank came from" in text) == (line is not None)
    assert line is None or line in text


class Gone(dist.Store):
    """A store whose host has left."""

    def add(self, key: str, amount: int) -> int:
        raise dist.DistNetworkError("Connection reset by peer")


def test_a_store_whose_host_has_left_is_told_in_words() -> None:
    error = come(Gone(), world(3), 1)
    assert isinstance(error, meshkit.RankTimeoutError)
    assert str(error) == (
        "build_mesh(dp=4, sp=2): rank 3 lost the store where the ranks meet.\n"
        "  It was at a:29500; the process that hosts it has ended.\n"
        "  Fix: look at the log of rank 0 first, or of the torchrun agent."
    )
    assert isinstance(error.__cause__, dist.DistNetworkError)


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
            threading.Thread(target=come, args=(store, world(rank, count), 20))
            for rank in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        monkeypatch.undo()
        # one more, the counter of meetings, goes to the store itself
        assert len(counting.calls) == 5 * count
        found.append(sorted(set(counting.calls)))
    assert found == [["add", "check", "compare_set", "get", "set", "wait"]] * 3


def all_come(store: dist.Store, requests: list[dict[str, str]], wait: float = 5) -> list[object]:
    """What became of each rank that came with a request."""
    became: dict[int, object] = {}

    def start(rank: int) -> None:
        became[rank] = come(store, world(rank), wait, requests[rank])

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [became[rank] for rank in range(len(requests))]


MINE, OTHER = {"sizes": "dp=4 sp=2"}, {"sizes": "dp=2 sp=4"}


@pytest.mark.parametrize("odd", [0, 3, 7])
def test_a_rank_that_asks_for_something_else(odd: int) -> None:
    store = dist.HashStore()
    began = time.monotonic()
    told = all_come(store, [OTHER if rank == odd else MINE for rank in range(8)])
    assert time.monotonic() - began < 3
    assert len({str(error) for error in told}) == 1
    for error in told:
        assert isinstance(error, meshkit.DisagreementError)
        assert error.requests == {
            r: f"sizes={(OTHER if r == odd else MINE)['sizes']}" for r in range(8)
        }
    lines = str(told[0]).splitlines()
    assert lines[0] == ABOUT
    assert lines[2] == f"  rank {odd} (host {socket.gethostname()}, pid {os.getpid()}):  dp=2 sp=4"
    assert lines[3:] == ["  Fix: pass equal sizes on every rank."]
    assert all_come(store, [MINE] * 8) == ["met"] * 8  # and again, on the same store


def test_who_disagrees_and_who_is_missing_are_both_told() -> None:
    told = all_come(dist.HashStore(), [MINE, OTHER, MINE], wait=0.5)
    assert {type(error) for error in told} == {meshkit.DisagreementError}
    assert "  Missing: ranks 3-7." in str(told[0]).splitlines()


def test_a_rank_that_gave_up_is_quoted_at_once() -> None:
    store = dist.HashStore()
    began = time.monotonic()
    error = meshkit.SpecError("build_mesh(dp=3) needs 3 ranks.\n  evidence\n  Fix: dp=8.")
    announce_failure(Proposal(CALL, {}, ABOUT), Participants.of(store, world(5)), error)
    told = come(store, world(2), 30)
    assert time.monotonic() - began < 1
    assert isinstance(told, meshkit.DisagreementError)
    assert str(told) == (
        f"{ABOUT}\n"
        f"  rank 5 (host {socket.gethostname()}, pid {os.getpid()}) gave up: "
        "SpecError: build_mesh(dp=3) needs 3 ranks.\n"
        "  evidence\n"
        "  Fix: dp=8."
    )
    assert told.requests == {5: "SpecError: build_mesh(dp=3) needs 3 ranks."}


def test_a_rank_that_gives_up_says_so_before_it_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last of the others, which in a file looks for all, would find all here."""
    told, real = [], dist.Store.set

    def note(store: dist.Store, key: str, value: str) -> None:
        told.append((key, store.check(["verdict"])))
        real(store, key, value)

    monkeypatch.setattr(dist.PrefixStore, "set", note, raising=False)
    announce_failure(
        Proposal(CALL, {}, ABOUT), Participants.of(dist.HashStore(), world(5)), ValueError("x")
    )
    assert told == [("here/5", True)]


@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "b", "a"], ["b", "b", "a"]])
def test_in_a_file_nobody_counts_and_all_hosts_are_known(
    hosts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank looks at the file by itself."""
    here = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: getattr(here, "host", "a"))
    monkeypatch.setattr(stores, "within", lambda _, work: work())
    became: dict[int, object] = {}

    def start(rank: int) -> None:
        here.host = hosts[rank]
        store = dist.FileStore(str(tmp_path / "store"), -1)
        party = Participants.of(store, world(rank, 3))
        number = agree(Proposal(CALL, {}, ABOUT), party, timedelta(seconds=20))
        meeting = dist.PrefixStore(f"meeting/{number}", store)
        became[rank] = hosts_of(meeting, range(3)), meeting.check(["count"])

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert became == dict.fromkeys(range(3), (hosts, False))


def test_a_rank_that_gives_up_on_a_store_that_is_gone_says_nothing() -> None:
    announce_failure(Proposal(CALL, {}, ABOUT), Participants.of(Gone(), world(5)), ValueError("x"))
