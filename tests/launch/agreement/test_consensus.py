"""Agreement rounds at a store, with threads as ranks."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.core.errors import CALL
from meshkit.launch.agreement import verdict
from meshkit.launch.agreement.consensus import agree, announce_failure
from meshkit.launch.agreement.proposal import Participants, Proposal
from meshkit.launch.launchers.world import World
from meshkit.launch.store import deadline as deadlines
from meshkit.launch.store.check_in import CheckIn, ProcessIdentity, read_hosts
from meshkit.launch.store.deadline import STORE_GRACE, Deadline
from meshkit.launch.store.keys import ROUND

LAYOUT = meshkit.Layout(dp=4, sp=2)


def coordinate(rank: int) -> str:
    """Return the coordinate of a rank as text."""
    return " ".join(f"{axis}={index}" for axis, index in LAYOUT.coordinate(rank).items())


def world(rank: int, world_size: int = 8) -> World:
    """Return one rank of a world."""
    return World(rank, world_size, rank, None, None, None, "a", 29500, "hand-written")


SUMMARY = "ranks disagree about the mesh; no process group was created."
Outcome = meshkit.MeshkitError | str


def check_in(
    store: dist.Store, who: World, wait: float, fields: dict[str, str] | None = None
) -> Outcome:
    """Take part in a round; return "agreed", or the error."""
    describe = coordinate if who.world_size == 8 else None
    proposal = Proposal("build_mesh", fields or {}, SUMMARY, (), describe)
    try:
        agree(proposal, Participants.of(store, who), Deadline.after(wait))
    except meshkit.MeshkitError as error:
        return error
    return "agreed"


def run_threads(threads: list[threading.Thread]) -> None:
    """Run threads to their end."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def run_round(store: dist.Store, delays: dict[int, float], wait: float = 1.0) -> dict[int, Outcome]:
    """Return the outcome of each rank; each checks in after its delay, absent ranks never do."""
    outcomes: dict[int, Outcome] = {}

    def start(rank: int, delay: float) -> None:
        time.sleep(delay)
        outcomes[rank] = check_in(store, world(rank), wait)

    run_threads([threading.Thread(target=start, args=item) for item in delays.items()])
    return outcomes


def run_requests(
    store: dist.Store, requests: list[dict[str, str]], wait: float = 5
) -> list[Outcome]:
    """Return the outcome of each rank; each checks in at once with its request."""
    outcomes: dict[int, Outcome] = {}

    def start(rank: int) -> None:
        outcomes[rank] = check_in(store, world(rank), wait, requests[rank])

    ranks = range(len(requests))
    run_threads([threading.Thread(target=start, args=(rank,)) for rank in ranks])
    return [outcomes[rank] for rank in ranks]


def test_rounds_follow_each_other_on_one_store() -> None:
    store = dist.HashStore()
    for _ in range(3):
        assert run_round(store, dict.fromkeys(range(8), 0.0)) == dict.fromkeys(range(8), "agreed")


def test_just_inside_the_deadline() -> None:
    outcomes = run_round(dist.HashStore(), {**dict.fromkeys(range(7), 0.0), 7: 0.5}, wait=2)
    assert set(outcomes.values()) == {"agreed"}


def test_two_missing_ranks_are_named() -> None:
    began = time.monotonic()
    outcomes = run_round(dist.HashStore(), dict.fromkeys(range(6), 0.0))
    assert 1 <= time.monotonic() - began < 1 + 3  # as promised in live/README.md
    host = f"host {socket.gethostname()}"
    for error in outcomes.values():
        assert isinstance(error, meshkit.RankTimeoutError)
        assert error.missing_ranks == (6, 7)
        assert str(error) == (
            "2 of 8 ranks did not arrive at this call within 1 s.\n"
            f"  Missing: 6 (dp=3 sp=0), 7 (dp=3 sp=1). Arrived: 0-5 on {host}.\n"
            "  Fix: look at the logs of ranks 6-7 first."
        )


def test_a_late_rank_follows_the_decision_at_once_and_the_next_round_works() -> None:
    store = dist.HashStore()
    outcomes = run_round(store, {**dict.fromkeys(range(7), 0.0), 7: 2.5})
    late = outcomes[7]
    assert isinstance(late, meshkit.RankTimeoutError)
    assert str(late) == (
        "1 of 8 ranks did not arrive at this call within 1 s.\n"
        f"  Missing: 7 (dp=3 sp=1). Arrived: 0-6 on host {socket.gethostname()}.\n"
        "  Rank 7 came after that.\n"
        "  Fix: look at the logs of rank 7 first."
    )
    assert all(isinstance(error, meshkit.RankTimeoutError) for error in outcomes.values())
    assert set(run_round(store, dict.fromkeys(range(8), 0.0)).values()) == {"agreed"}


def test_a_round_has_one_decision_whenever_the_last_rank_arrives() -> None:
    """Around the deadline either all ranks agree or all raise."""
    seen = set()
    for after in (0.0, 0.28, 0.3, 0.32, 1.0):
        outcomes = run_round(dist.HashStore(), {**dict.fromkeys(range(7), 0.0), 7: after}, wait=0.3)
        kinds = {type(outcome).__name__ for outcome in outcomes.values()}
        assert len(kinds) == 1, outcomes
        seen |= kinds
    assert seen == {"str", "RankTimeoutError"}  # both outcomes occurred


def test_many_missing_ranks_are_summarized() -> None:
    error = check_in(dist.HashStore(), replace(world(0), world_size=1000), 0.05)
    assert isinstance(error, meshkit.RankTimeoutError)
    assert error.missing_ranks == tuple(range(1, 1000))
    assert "Missing: 1, 2, 3, 4, 5, 6, 7, 8, and 991 more. Arrived: 0 on host " in str(error)
    assert str(error).endswith("look at the logs of ranks 1-999 first.")


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        ([], None),
        (["n1", "n2"], None),  # the launcher's host names are not their own
        (["THIS", "n2", "n3"], "  No rank came from hosts n2, n3."),
        (["THIS"], None),
        (["THIS.cluster", "n2"], "  No rank came from host n2."),
        (["THIS", *(f"n{i}" for i in range(20))], ", n7, and 12 more."),
    ],
)
def test_hosts_without_check_ins_are_named(expected: list[str], line: str | None) -> None:
    this_host = socket.gethostname().partition(".")[0]
    hosts = [host.replace("THIS", this_host) for host in expected]
    proposal = Proposal("build_mesh", {}, SUMMARY, expected_hosts=lambda: hosts)
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        agree(proposal, Participants.of(dist.HashStore(), world(0, 2)), Deadline.after(0.05))
    text = str(caught.value)
    assert ("No rank came from" in text) == (line is not None)
    assert line is None or line in text


def test_a_rank_that_comes_while_the_report_is_made_is_late_and_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, look = dist.HashStore(), verdict.last_seen

    def come(*args: object) -> dict[int, str]:
        CheckIn(ProcessIdentity.current(), {"call": "build_mesh"}).post(rounds, 2)
        return look(*args)  # type: ignore[arg-type]

    rounds = dist.PrefixStore(ROUND.format("", 1), store)
    monkeypatch.setattr(verdict, "last_seen", come, raising=True)
    error = check_in(store, world(0, 4), 0.05)
    assert isinstance(error, meshkit.RankTimeoutError)
    assert error.missing_ranks == (1, 3)
    assert "Rank 2 came late, after 0.05 s." in error.evidence


def test_half_a_million_missing_ranks_take_bounded_time_and_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    error = check_in(dist.HashStore(), replace(world(0), world_size=500_000), 0.05)
    assert isinstance(error, meshkit.RankTimeoutError)
    assert "499999 of 500000 ranks did not arrive" in str(error)
    assert time.monotonic() - began < STORE_GRACE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


class LostStore(dist.Store):
    """A store whose host is gone."""

    def add(self, key: str, amount: int) -> int:
        raise dist.DistNetworkError("Connection reset by peer")


def test_a_lost_store_is_reported() -> None:
    error = check_in(LostStore(), world(3), 1)
    assert isinstance(error, meshkit.RankTimeoutError)
    assert str(error) == (
        "rank 3 lost the store of the job.\n"
        "  It was at a:29500; the process that hosts it has ended.\n"
        "  Fix: look at the log of rank 0 first, or of the torchrun agent."
    )
    assert isinstance(error.__cause__, dist.DistNetworkError)


class Counting:
    """The store operations of a rank."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wrap(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            self.calls.append(name)
            return call(*args)

        return counted


def test_a_rank_needs_four_operations_whatever_the_world_size_and_one_to_count_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operations = []
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
            threading.Thread(target=check_in, args=(store, world(rank, count), 20))
            for rank in range(count)
        ]
        run_threads(threads)
        monkeypatch.undo()
        # one more, the counter of rounds, goes to the store itself
        assert len(counting.calls) == 4 * count + 1  # the last rank looks for a conflict
        operations.append(sorted(set(counting.calls)))
    assert operations == [["add", "check", "compare_set", "get", "set"]] * 3


REQUEST, OTHER_REQUEST = {"sizes": "dp=4 sp=2"}, {"sizes": "dp=2 sp=4"}


@pytest.mark.parametrize("odd", [0, 3, 7])
def test_a_rank_with_another_request_is_named_on_all_ranks(odd: int) -> None:
    store = dist.HashStore()
    began = time.monotonic()
    outcomes = run_requests(store, [OTHER_REQUEST if rank == odd else REQUEST for rank in range(8)])
    assert time.monotonic() - began < 3
    assert len({str(error) for error in outcomes}) == 1
    for error in outcomes:
        assert isinstance(error, meshkit.DisagreementError)
        assert error.requests == {
            r: f"call=build_mesh sizes={(OTHER_REQUEST if r == odd else REQUEST)['sizes']}"
            for r in range(8)
        }
    lines = str(outcomes[0]).splitlines()
    assert lines[0] == SUMMARY
    assert lines[2] == f"  rank {odd} (host {socket.gethostname()}, pid {os.getpid()}):  dp=2 sp=4"
    assert lines[3:] == ["  Fix: pass equal sizes on every rank."]
    assert run_requests(store, [REQUEST] * 8) == ["agreed"] * 8  # and again, on the same store


def test_disagreeing_and_missing_ranks_are_both_named() -> None:
    outcomes = run_requests(dist.HashStore(), [REQUEST, OTHER_REQUEST, REQUEST], wait=0.5)
    assert {type(error) for error in outcomes} == {meshkit.DisagreementError}
    assert "  Missing: ranks 3-7." in str(outcomes[0]).splitlines()


def test_the_failure_of_a_rank_is_quoted_at_once() -> None:
    store = dist.HashStore()
    began = time.monotonic()
    error = meshkit.SpecError(f"{CALL} needs 3 ranks.", "evidence", fix="dp=8.")
    error.quote(Call("build_mesh", kwargs={"dp": 3}))
    announce_failure(Proposal("build_mesh", {}, SUMMARY), Participants.of(store, world(5)), error)
    outcomes = check_in(store, world(2), 30)
    assert time.monotonic() - began < 1
    assert isinstance(outcomes, meshkit.DisagreementError)
    assert str(outcomes) == (
        f"{SUMMARY}\n"
        f"  rank 5 (host {socket.gethostname()}, pid {os.getpid()}) gave up: "
        "SpecError: build_mesh(dp=3) needs 3 ranks.\n"
        "  evidence\n"
        "  Fix: dp=8."
    )
    assert outcomes.requests == {5: "SpecError: build_mesh(dp=3) needs 3 ranks."}


def test_a_rank_posts_its_failure_before_its_check_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the last rank to check in could decide that all agree."""
    outcomes, real = [], dist.Store.set

    def note(store: dist.Store, key: str, value: str) -> None:
        outcomes.append((key, store.check(["decision"])))
        real(store, key, value)

    monkeypatch.setattr(dist.PrefixStore, "set", note, raising=False)
    announce_failure(
        Proposal("build_mesh", {}, SUMMARY),
        Participants.of(dist.HashStore(), world(5)),
        ValueError("x"),
    )
    assert outcomes == [("check_in/5", True)]


@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "b", "a"], ["b", "b", "a"]])
def test_a_file_store_keeps_no_counter_and_all_hosts_are_known(
    hosts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank opens the file by itself."""
    host = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: getattr(host, "name", "a"))
    monkeypatch.setattr(deadlines, "run_with_deadline", lambda _, work: work())
    outcomes: dict[int, object] = {}

    def start(rank: int) -> None:
        host.name = hosts[rank]
        store = dist.FileStore(str(tmp_path / "store"), -1)
        party = Participants.of(store, world(rank, 3))
        number = agree(Proposal("build_mesh", {}, SUMMARY), party, Deadline.after(20))
        rounds = dist.PrefixStore(ROUND.format("", number), store)
        outcomes[rank] = read_hosts(rounds, range(3)), rounds.check(["count"])

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes == dict.fromkeys(range(3), (hosts, False))


def test_a_failure_at_a_lost_store_is_not_announced() -> None:
    announce_failure(
        Proposal("build_mesh", {}, SUMMARY), Participants.of(LostStore(), world(5)), ValueError("x")
    )


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("last", ["end", "start"])
def test_a_rank_that_calls_something_else_at_the_end_of_a_call_is_reported_at_once(
    tmp_path: Path, is_file: bool, last: str
) -> None:
    """No rank waits for the deadline: all raise when every rank has arrived."""
    outcomes: dict[int, Outcome] = {}
    base = dist.FileStore(str(tmp_path / "store"), -1) if is_file else dist.HashStore()

    def start(rank: int) -> None:
        stage = "" if rank == 2 else "the end of "
        time.sleep(0.3 * ((rank == 2) == (last == "start")))
        proposal = Proposal("build_mesh", {}, SUMMARY, stage=stage)
        store = dist.FileStore(str(tmp_path / "store"), -1) if is_file else base
        try:
            agree(proposal, Participants.of(store, world(rank, 4)), Deadline.after(30))
        except meshkit.MeshkitError as error:
            outcomes[rank] = error

    began = time.monotonic()
    run_threads([threading.Thread(target=start, args=(rank,)) for rank in range(4)])
    assert time.monotonic() - began < 10
    texts = {str(error) for error in outcomes.values()}
    assert len(outcomes) == 4
    (text,) = texts
    assert "ranks 0-1 and 3:  call=the end of build_mesh\n" in text
    assert "  call=build_mesh\n" in text
