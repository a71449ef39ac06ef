"""The round that decides who lives, with threads as ranks and a store in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement import members
from meshkit.launch.agreement.members import MembershipRound, _missing, held_steps, own_request
from meshkit.launch.store import keys
from meshkit.launch.store.deadline import Deadline
from meshkit.launch.store.rank_lease import LeaseHolder

RUNS = LeaseHolder.current()
ENDED = RUNS._replace(start=f"{RUNS.start}0")  # a process of this host that started at no time
LIMIT = 2.0


def take_part(
    store: dist.Store,
    rank: int,
    *,
    failed: bool = True,
    mesh: str = "dp=4",
    step: int | None = 3,
    silent: Sequence[int] = (),
    holders: Mapping[int, LeaseHolder] | None = None,
    newcomers: Sequence[int] = (),
    **same: str,
) -> Any:
    """Run a round of four ranks on one of them; return the ranks that live, or the error."""
    request = own_request(mesh, failed=failed, step=step, holds_state=True, **same)
    deadline = Deadline.after(LIMIT)
    known = {} if holders is None else holders
    round = MembershipRound(store, rank, range(4), request, deadline, silent, 0.3, known, newcomers)
    try:
        return round.decide()
    except meshkit.MeshkitError as error:
        return error


def together(store: dist.Store, ranks: Sequence[int], **options: Any) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(take_part, store, rank, **options) for rank in ranks]
        return [future.result() for future in futures]


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    began = time.monotonic()
    results = together(dist.HashStore(), [0, 1, 3], holders={2: ENDED})
    assert [result.ranks for result in results] == [[0, 1, 3]] * 3
    assert held_steps(results[0]) == {0: 3, 1: 3, 3: 3}
    assert time.monotonic() - began < LIMIT


def test_a_silent_rank_is_waited_for_less() -> None:
    began = time.monotonic()
    results = together(dist.HashStore(), [0, 1, 3], silent=[2], holders={2: RUNS})
    assert [result.ranks for result in results] == [[0, 1, 3]] * 3
    assert 0.3 <= time.monotonic() - began < LIMIT


def test_any_other_rank_is_waited_for_until_the_deadline() -> None:
    began = time.monotonic()
    (alone,) = together(dist.HashStore(), [1])
    assert alone.ranks == [1]
    assert time.monotonic() - began >= LIMIT


def test_a_rank_that_comes_later_is_lost_and_changes_nothing() -> None:
    store = dist.HashStore()
    together(store, [0, 1, 3], holders={2: ENDED})
    before = store.get(keys.DECISION)
    late = take_part(store, 2)
    assert isinstance(late, meshkit.RankTimeoutError)
    assert "rank 2 was declared lost" in late.summary
    assert not store.check([keys.CHECK_IN.format(2)])
    assert store.get(keys.DECISION) == before


def test_without_a_failure_nothing_is_decided() -> None:
    store = dist.HashStore()
    errors = together(store, range(4), failed=False)
    assert {error.summary for error in errors} == {"the mesh is healthy: all 4 ranks are here."}
    assert take_part(store, 0) is None  # a failure that comes later has a round of its own
    (error,) = together(dist.HashStore(), [0], failed=False)
    assert error.missing_ranks == (1, 2, 3)


def test_different_meshes_are_an_error_of_all() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(take_part, store, r, mesh=f"dp={r // 2}") for r in range(4)]
        errors = [future.result() for future in futures]
    assert {type(error) for error in errors} == {meshkit.DisagreementError}
    assert {str(error) for error in errors} == {str(errors[0])}


def test_newcomers_join_without_a_failure_and_are_waited_for_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "NEWCOMER_TIME", 0.3, raising=True)
    store, began = dist.HashStore(), time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        ranks = [
            pool.submit(take_part, store, rank, failed=False, newcomers=[2, 3]) for rank in (0, 1)
        ]
        round = MembershipRound(store, 2, range(4), {}, Deadline.after(LIMIT), (), 0, {})
        joined = pool.submit(round.join).result()
        results = [rank.result() for rank in ranks]
    assert 0.3 <= time.monotonic() - began < LIMIT
    assert [result.ranks for result in (*results, joined)] == [[0, 1, 2]] * 3
    assert held_steps(joined) == {0: 3, 1: 3}


def test_a_newcomer_never_decides() -> None:
    store = dist.HashStore()
    round = MembershipRound(store, 2, range(3), {}, Deadline.after(0.2), (), 0, {})
    with pytest.raises(meshkit.RankTimeoutError, match=r"did not decide within 0\.2 s"):
        round.join()
    assert not store.check([keys.DECISION])


def test_only_ranks_that_pass_a_value_compare_it() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(4) as pool:
        least: list[dict[str, str]] = [{"min_ranks": "2"}, {}, {}, {"min_ranks": "2"}]
        futures = [pool.submit(take_part, store, rank, **least[rank]) for rank in range(4)]
        assert [future.result().ranks for future in futures] == [[0, 1, 2, 3]] * 4


@pytest.mark.parametrize("arrived", [[], [0], [1, 4], [0, 1, 2, 3, 4]])
def test_missing_ranks_are_found(arrived: list[int]) -> None:
    store = dist.HashStore()
    for rank in arrived:
        store.set(keys.CHECK_IN.format(rank), "")
    assert _missing(store, range(5)) == [rank for rank in range(5) if rank not in arrived]
