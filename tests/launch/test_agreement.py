"""Agreements, with threads as ranks at a store in memory and in a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement import Agreement, is_part_of
from meshkit.launch.judges import Decision
from meshkit.launch.store import Store
from meshkit.launch.world import World
from tests.promises import BUSY

RANKS = 3
LONG = timedelta(seconds=30)
Act = Callable[[Agreement], Any]


@pytest.fixture(params=["memory", "file"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> dist.Store:
    return dist.HashStore() if request.param == "memory" else dist.FileStore(f"{tmp_path}/s", -1)


def make(root: dist.Store, rank: int, **options: Any) -> Agreement:
    """Return an agreement of a rank that hosts no store."""
    world = World(rank, RANKS, rank, None, None, None, "a", 1, "test", init_method="store://a:1")
    given = {"name": "round/1", "call": "mesh.agree", "limit": LONG, **options}
    return Agreement(Store(root, world), given.pop("name"), rank, range(RANKS), **given)


def play(*acts: Callable[[], Any]) -> list[Any]:
    """Return what each act returns or raises, each in a thread."""

    def run(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return [*pool.map(run, acts)]


def test_equal_facts_agree_and_other_facts_or_another_call_differ(root: dist.Store) -> None:
    def agree(rank: int, name: str, fact: int, call: str = "mesh.agree") -> Decision:
        return make(root, rank, name=name, call=call).same({"step": fact})

    outcomes = play(*(lambda rank=rank: agree(rank, "a", 1) for rank in range(RANKS)))
    assert all(isinstance(outcome, Decision) and outcome.error is None for outcome in outcomes)
    outcomes = play(*(lambda rank=rank: agree(rank, "b", rank // 2) for rank in range(RANKS)))
    assert all(isinstance(outcome, meshkit.DisagreementError) for outcome in outcomes)
    assert outcomes[0].requests[2] == "call=mesh.agree step=1"
    calls = ["mesh.agree", "mesh.agree", "mesh.close"]
    outcomes = play(*(lambda rank=rank: agree(rank, "c", 1, calls[rank]) for rank in range(RANKS)))
    assert all(isinstance(outcome, meshkit.DisagreementError) for outcome in outcomes)


def test_no_rank_waits_for_one_whose_check_raises(root: dist.Store) -> None:
    refusal = meshkit.SpecError("no tensor.")

    def check() -> None:
        raise refusal

    began = time.monotonic()
    checks = [None, check, None]
    outcomes = play(*(lambda r=r: make(root, r).same({}, checks[r]) for r in range(RANKS)))
    assert time.monotonic() - began < 10 + BUSY
    assert outcomes[1] is refusal
    for outcome in (outcomes[0], outcomes[2]):
        assert isinstance(outcome, meshkit.DisagreementError)
        assert [*outcome.requests] == [1]


def test_ranks_that_state_nothing_read_what_the_others_state(root: dist.Store) -> None:
    def state(rank: int, name: str, value: Any, *, alike: bool) -> Any:
        return make(root, rank, name=name).stated({}, "tensor", lambda: value, alike=alike)

    values = ["float32", None, "float64"]
    outcomes = play(*(lambda r=r: state(r, "a", values[r], alike=False) for r in range(RANKS)))
    assert all(sorted(o) == [("float32", [0]), ("float64", [2])] for o in outcomes)
    outcomes = play(*(lambda r=r: state(r, "b", values[r], alike=True) for r in range(RANKS)))
    assert all(isinstance(outcome, meshkit.DisagreementError) for outcome in outcomes)


def test_a_comparison_waits_for_no_rank_and_raises_where_facts_differ(root: dist.Store) -> None:
    make(root, 2).compare({"seed": 0})
    with pytest.raises(meshkit.DisagreementError) as caught:
        make(root, 0).compare({"seed": 1})
    assert [*caught.value.requests] == [0, 2]
    make(root, 1).compare({"seed": 0})


def test_a_watch_ends_with_what_a_look_returns_and_at_a_decision(root: dist.Store) -> None:
    """Rank 2 never arrives: rank 0 ends the wait, and rank 1 reads its decision."""

    def vote(rank: int) -> Decision:
        with make(root, rank) as agreement:
            agreement.arrive({"call": "commit"})
            veto = agreement.watch(lambda: "aborted" if rank == 0 else None, every=0.2)
            if veto is not None:
                agreement.round.say(Decision(value=veto))
            return agreement.decide().check(rank)

    outcomes = play(lambda: vote(0), lambda: vote(1))
    assert [outcome.value for outcome in outcomes] == ["aborted", "aborted"]


def test_the_time_of_a_rank_begins_at_its_first_wait(root: dist.Store) -> None:
    late = make(root, 0, limit=timedelta(seconds=0.5))
    time.sleep(0.6)
    assert not late.deadline.expired
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        late.same({})
    assert caught.value.missing_ranks == (1, 2)


@pytest.mark.parametrize("fails", [None, 1, 4])
def test_numbered_rounds_leave_the_keys_of_two(root: dist.Store, fails: int | None) -> None:
    """A rank that fails in a round before it arrives counts there all the same."""

    def run(rank: int) -> None:
        before = None
        for number in range(1, 7):
            before = make(root, rank, name=f"round/{number}", number=number, before=before)
            if rank == 1 and number == fails:
                before.fail(ValueError("played"))
            elif number == fails:
                with pytest.raises(meshkit.DisagreementError):
                    before.same({})
            else:
                before.same({})

    assert play(*(lambda r=r: run(r) for r in range(RANKS))) == [None] * RANKS
    kept = [number for number in range(1, 7) if root.check([f"round/{number}/count"])]
    assert kept == [5, 6]


def test_a_kept_round_stays_and_is_read_again(root: dist.Store) -> None:
    first = [make(root, rank) for rank in range(RANKS)]
    play(*(lambda a=a: a.same({}) for a in first))
    arrivals = [agreement.keep() for agreement in first]
    second = [make(root, r, name="round/2", before=first[r]) for r in range(RANKS)]
    play(*(lambda a=a: a.same({}) for a in second))
    third = [make(root, r, name="round/3", before=second[r]) for r in range(RANKS)]
    play(*(lambda a=a: a.same({}) for a in third))
    assert all([*sorted(read().arrived)] == [0, 1, 2] for read in arrivals)


def test_the_parts_of_a_mesh() -> None:
    for name in ("mesh/3", "mesh/3/barrier/ab", "move/3.0/4.0", "move/4.0/3.1"):
        assert is_part_of(name, 3)
    for name in ("", "mesh/30", "move/4.0/30.0", "seeds", "other/3"):
        assert not is_part_of(name, 3)
