"""Rounds, with threads as ranks, at each kind of store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch.distributed as dist

import meshkit
from meshkit.errors import MeshkitError
from meshkit.guard.hang import who_is_behind
from meshkit.launch import round as rounds
from meshkit.launch import store as stores
from meshkit.launch.disagreement import RankStatus
from meshkit.launch.judges import Arrivals, Decision, RankState, Sighting, all_done, all_same
from meshkit.launch.regroup import RecoveryFacts, RecoveryWaits, who_lives
from meshkit.launch.round import Claimant, Round
from meshkit.launch.store import Store, error_to_json
from meshkit.launch.times import TIMES, Deadline
from meshkit.launch.world import World
from meshkit.layout.layout import Layout
from tests.promises import BUSY

SUMMARY = "ranks disagree about the mesh."
A, B = {"sizes": "dp=4"}, {"sizes": "dp=2 tp=2"}
Act = Callable[[Round], Any]


@pytest.fixture(params=["memory", "tcp", "file"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dist.Store]:
    if request.param == "memory":
        yield dist.HashStore()
    elif request.param == "file":
        yield dist.FileStore(str(tmp_path / "store"), -1)
    else:
        yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def world(rank: int, size: int) -> World:
    """Return a rank that hosts no store, so that it leaves at once."""
    return World(rank, size, rank, None, None, None, None, None, "test", init_method="store://a:1")


def play(root: dist.Store, acts: Mapping[int, Act], size: int, **options: Any) -> dict[int, Any]:
    """Return what each rank's act returns or raises, in threads with clients of their own."""

    def run(rank: int) -> Any:
        store = Store(root, world(rank, size)).clone()
        try:
            with Round(store, "round/1", rank, range(size), summary=SUMMARY, **options) as round:
                return acts[rank](round)
        except MeshkitError as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return dict(zip(acts, pool.map(run, acts), strict=True))


def agree(facts: Mapping[str, Any], seconds: float = 5, **options: Any) -> Act:
    def act(round: Round) -> Decision:
        round.arrive(facts, same=True, **options)
        judge = all_same(SUMMARY, seconds=seconds)
        return round.decide(judge, Deadline.after(seconds)).check(round.rank)

    return act


def test_a_store_that_stalls_has_the_time_of_the_ranks_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stalling(Store):
        def add(self, key: str, number: int) -> int:
            time.sleep(0.5)
            return super().add(key, number)

        def part(self, name: str) -> Store:
            return Stalling(self.root, self.world, name)

    for module in (rounds, stores):
        monkeypatch.setattr(module, "TIMES", replace(TIMES, store=0.1))
    for deadline, is_lost in ((Deadline.after(5), False), (None, True)):
        round = Round(Stalling(dist.HashStore(), world(0, 1)), "round/1", 0, range(1))
        with pytest.raises(meshkit.RankTimeoutError) if is_lost else nullcontext():
            round.arrive(A, deadline=deadline)


def test_other_ranks_judge_if_the_first_ones_are_lost(root: dist.Store) -> None:
    def look(ranks: Sequence[int]) -> dict[int, Sighting]:
        return {rank: Sighting(RankState.ENDED, "") for rank in ranks if rank < 4}

    own = [Round(Store(root, world(rank, 6)), "lost", rank, range(6), look=look) for rank in (4, 5)]
    for _ in range(4):
        own[0].store.add("judging", 1)  # of ranks 0 to 3, which have ended since
    for round in own:
        round.arrive(RecoveryFacts().to_facts())
    began = time.monotonic()
    decision = own[0].decide(
        who_lives(RecoveryWaits(20.0, 1.0, 5.0)), Deadline.after(20), poll=0.05
    )
    assert sorted(decision.members) == [4, 5]
    assert time.monotonic() - began < 5 + BUSY


def test_an_interrupted_wait_announces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Store, seconds: float, work: object) -> None:
        raise KeyboardInterrupt

    round = Round(Store(dist.HashStore(), world(0, 2)), "round/1", 0, range(2))
    round.arrive(A)
    monkeypatch.setattr(Store, "within", interrupt)
    monkeypatch.setattr(Store, "try_within", lambda *_: pytest.fail("the store is held"))
    with pytest.raises(KeyboardInterrupt), round:
        round.decide(all_same(SUMMARY, seconds=5), Deadline.after(5))


def test_a_conflict_that_comes_during_the_look_counts() -> None:
    store = Store(dist.HashStore(), world(0, 2))
    late = Round(store, "end", 1, range(2))

    def look(ranks: Sequence[int]) -> dict[int, Sighting]:
        if not late.arrival_number:
            late.arrive({"call": "end"}, same=True, objection=meshkit.LaunchError("no group"))
        return {}

    first = Round(store, "end", 0, range(2), look=look)
    first.arrive({"call": "end"}, same=True)
    decision = first.decide(all_done(SUMMARY, seconds=0.1), Deadline.after(0.1))
    assert decision.error is not None


def kinds(results: Mapping[int, Any]) -> list[str]:
    return [type(result).__name__ for result in results.values()]


def test_ranks_that_are_the_same_agree(root: dist.Store) -> None:
    assert kinds(play(root, dict.fromkeys(range(4), agree(A)), 4)) == ["Decision"] * 4


def test_ranks_that_differ_raise_one_error(root: dist.Store) -> None:
    results = play(root, {0: agree(A), 1: agree(A), 2: agree(B)}, 3)
    assert kinds(results) == ["DisagreementError"] * 3
    assert len({str(error) for error in results.values()}) == 1
    assert results[0].requests.keys() == {0, 1, 2}


def test_missing_ranks_are_named_with_their_last_process(root: dist.Store) -> None:
    def look(ranks: Any) -> dict[int, Sighting]:
        return {rank: Sighting(RankState.ENDED, "host b, pid 7") for rank in ranks if rank == 2}

    acts = dict.fromkeys(range(2), agree(A, 0.5))
    began = time.monotonic()
    results = play(root, acts, 4, look=look)
    assert time.monotonic() - began < 3 + BUSY
    assert [error.missing_ranks for error in results.values()] == [(2,), (2,)]
    late = play(root, {2: agree(A), 3: agree(A)}, 4)  # they read the decision
    assert [error.missing_ranks for error in late.values()] == [(2,), (2,)]
    assert "Rank 2 came after that." in late[2].evidence


def test_a_rank_that_differs_from_ranks_that_have_agreed_says_so(root: dist.Store) -> None:
    play(root, dict.fromkeys(range(2), agree(A)), 2)
    (late,) = play(root, {2: agree(B)}, 2).values()
    assert isinstance(late, meshkit.DisagreementError)
    assert 2 in late.requests


def test_a_failure_that_leaves_the_block_is_announced_at_once(root: dist.Store) -> None:
    def fail(round: Round) -> None:
        raise meshkit.SpecError("dp is 0.", fix="dp=1.")

    began = time.monotonic()
    results = play(root, {0: agree(A, 20), 1: fail, 2: agree(A, 20)}, 4)
    assert time.monotonic() - began < 5 + BUSY
    assert kinds(results) == ["DisagreementError", "SpecError", "DisagreementError"]
    assert results[0].requests == {1: "SpecError: dp is 0."}
    assert results[0].fix_text == "dp=1."


def test_an_error_after_the_decision_is_not_announced(root: dist.Store) -> None:
    def fail(round: Round) -> None:
        agree(A)(round)
        raise meshkit.SpecError("dp is 0.")

    assert kinds(play(root, {0: agree(A), 1: fail}, 2)) == ["Decision", "SpecError"]
    assert kinds(play(root, {0: agree(A)}, 2)) == ["Decision"]


def test_only_one_rank_may_have_a_unique_value(root: dist.Store) -> None:
    def clash(first: Claimant, second: Claimant) -> MeshkitError:
        return meshkit.LaunchError(f"ranks {first.rank} and {second.rank} use one device.")

    acts = {rank: agree(A, unique={f"device/{rank // 2}": clash}) for rank in range(3)}
    results = play(root, acts, 3)
    assert kinds(results) == ["LaunchError"] * 3
    assert {str(error) for error in results.values()} == {"ranks 0 and 1 use one device."}


def test_a_missing_rank_is_the_reason_of_an_objection(root: dist.Store) -> None:
    def done(objection: MeshkitError | None) -> Act:
        def act(round: Round) -> Decision:
            round.arrive({"call": "end"}, same=True, objection=objection)
            judge = all_done("ranks failed.", seconds=0.5)
            return round.decide(judge, Deadline.after(0.5)).check(round.rank)

        return act

    acts = {0: done(meshkit.LaunchError("no connection to rank 2")), 1: done(None)}
    assert [e.missing_ranks for e in play(root, acts, 3).values()] == [(2,), (2,)]


def test_a_polled_round_ends_before_all_have_arrived(root: dist.Store) -> None:
    def live(round: Round) -> Decision:
        round.arrive(RecoveryFacts(failed=True, step=round.rank).to_facts())
        judge = who_lives(RecoveryWaits(20, 0.3, 1), [6])
        return round.decide(judge, Deadline.after(20), poll=0.02)

    began = time.monotonic()
    results = play(root, dict.fromkeys(range(6), live), 7)
    assert time.monotonic() - began < 5 + BUSY
    assert all([*decision.members] == [*range(6)] for decision in results.values())
    assert RecoveryFacts.from_facts(results[5].members[3]).step == 3


def test_only_the_first_ranks_judge(root: dist.Store) -> None:
    judges = set()

    def live(round: Round) -> Decision:
        def judge(seen: Arrivals) -> Decision | None:
            judges.add(round.rank)
            return Decision(value=1) if seen.waited > 0.3 else None

        round.arrive({})
        return round.decide(judge, Deadline.after(20), poll=0.02)

    results = play(root, dict.fromkeys(range(7), live), 8)
    assert len(judges) <= rounds.JUDGES
    assert {decision.value for decision in results.values()} == {1}


def test_what_one_rank_says_all_others_hear(root: dist.Store) -> None:
    acts: dict[int, Act] = dict.fromkeys(range(1, 3), lambda r: r.follow(Deadline.after(5)).value)
    acts[0] = lambda round: round.say(Decision(value={"a": [0]})).value
    assert play(root, acts, 3) == {0: {"a": [0]}, 1: {"a": [0]}, 2: {"a": [0]}}
    (silent,) = play(dist.HashStore(), {1: lambda r: r.follow(Deadline.after(0.1))}, 2).values()
    assert silent is None


def test_a_value_that_no_rank_wrote_is_an_error(root: dist.Store) -> None:
    store = Store(root, world(0, 1))
    store.set("round/1/decision", "[")
    (error,) = play(root, {0: agree(A)}, 2).values()
    assert isinstance(error, meshkit.LaunchError)
    assert "decision" in error.summary


def test_a_round_costs_four_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("set", "get", "add", "has", "claim", "append", "wait"):
        method = getattr(Store, name)

        def count(*args: Any, name: str = name, method: Any = method, **options: Any) -> Any:
            calls.append(name)
            return method(*args, **options)

        monkeypatch.setattr(Store, name, count)
    play(dist.HashStore(), dict.fromkeys(range(3), agree(A)), 3)
    assert len(calls) == 3 * 4 + 1


class Counting(Store):
    """A store that counts its operations, and their processor seconds with those of the host."""

    counts: ClassVar[list[float]] = [0, 0.0]

    def part(self, name: str) -> Counting:
        return Counting(self.root, self.world, f"{self.path}/{name}" if self.path else name)

    def within(self, seconds: float, work: Callable[[], Any], extend: object = None) -> Any:
        return work()  # without a thread for each


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            result = operation(*args, **options)
            Counting.counts[0] += 1
            Counting.counts[1] += time.process_time() - began
            return result

        return call

    monkeypatch.setattr(Counting, "counts", [0, 0.0])
    for name in ("set", "get", "add", "has", "claim", "append", "wait"):
        monkeypatch.setattr(Counting, name, counted(getattr(Store, name)))
    return Counting


def rounds_of_living(counting: type[Counting], size: int, *, lost: int) -> list[Round]:
    """Return the round of each rank whose process lives; the last ones have ended."""
    root = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    look = lambda ranks: {rank: Sighting(RankState.ENDED, "") for rank in ranks}  # noqa: E731
    return [
        Round(counting(root, world(rank, size)), "recovery/1", rank, range(size), look=look)
        for rank in range(size - lost)
    ]


def test_a_thousand_ranks_answer_a_roll_call_with_few_operations(
    counting: type[Counting],
) -> None:
    """One process has ended; every other one leaves its status, and reads the report."""
    size = 1024
    alive = rounds_of_living(counting, size, lost=1)
    for round in alive:
        status = RankStatus(
            round.rank, {"dp": 5, "tp": 7}, "all_reduce", "tp", "train.py:18 (step)"
        )
        round.arrive(status.to_facts())
    judge = who_is_behind(Layout(dp=128, tp=8), "failed.", lambda ranks: {}, known=0.3)

    def report(seen: Arrivals) -> Decision | None:
        """Return the report as a value, as a guard does: nobody counts who has read it."""
        decision = judge(seen)
        error = None if decision is None else decision.error
        return decision if error is None else Decision(value=error_to_json(error))

    for round in alive:
        decision = round.decide(report, Deadline.after(60), poll=0.5)
        assert decision.value["missing_ranks"] == [1023]
    operations, seconds = counting.counts
    assert operations <= 5.1 * size
    assert seconds < 2 + BUSY, seconds


def test_a_thousand_ranks_decide_who_lives_with_few_operations(counting: type[Counting]) -> None:
    """Every process that has ended is looked at, and the decision is short."""
    size, lost = 1024, 100
    alive = rounds_of_living(counting, size, lost=lost)
    for round in alive:
        round.arrive(RecoveryFacts("dp=1024, number 1", None, True, True, 5).to_facts())
    judge = who_lives(RecoveryWaits(300, 1, 5))
    for round in alive:
        decision = round.decide(judge, Deadline.after(60), poll=0.5)
        assert len(decision.members) == size - lost
    operations, seconds = counting.counts
    assert operations <= 5 * size
    assert len(alive[0].store.get(rounds.DECISION)) < 10_000
    assert seconds < 2 + BUSY, seconds
