"""Values at the store that no rank wrote: an error that names the key, on every rank."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement.consensus import agree
from meshkit.launch.agreement.proposal import Participants, Proposal
from meshkit.launch.store import keys
from meshkit.launch.store.deadline import STORE_GRACE, Deadline
from meshkit.launch.store.rank_lease import acquire_rank
from meshkit.launch.world import World

WORLD = World(0, 2, 0, None, None, None, "a", 29500, "hand-written")
GARBAGE = [
    b"\xff\xfe\x00garbage",
    b"[]",
    b"7",
    b"null",
    b'{"process": 5, "request": [], "seconds": 3}',
    b'["x", "y", "z", 5, 6]',
    b'{"process": [5, "x"], "start": 1, "claim": 2, "generation": "NaN"}',
    b"[" * 100_000,
    b"9" * 10_000,
    b"{" + b" " * 1_000_000 + b"}",
]
JOIN = [keys.LEASE.format(0), keys.NEWEST]
ROUND = [keys.REQUEST, keys.CONFLICT, keys.DECISION, keys.CHECK_IN.format(1)]


def named(error: BaseException, key: str) -> bool:
    return f"the key {key!r} of the job's store" in str(error) and "no rank wrote" in str(error)


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("key", JOIN)
def test_a_rank_that_joins_names_the_key(key: str, value: bytes) -> None:
    base = dist.HashStore()
    base.set(key, value)  # type: ignore[arg-type]
    if key == keys.NEWEST and value == b"7":
        pytest.skip("7 is a number")
    with pytest.raises(meshkit.LaunchError) as caught:
        acquire_rank(base, 0)
    assert named(caught.value, key), caught.value
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("key", ROUND)
def test_both_ranks_of_a_round_name_the_key(key: str, value: bytes) -> None:
    """With an absent rank 1, if the key is its check-in: it is read at the deadline."""
    store, errors = dist.HashStore(), list[BaseException]()
    dist.PrefixStore(keys.ROUND.format("", 1), store).set(key, value)  # type: ignore[arg-type]
    proposal = Proposal("build_mesh", {"a": "b"}, "ranks disagree.")
    began = time.monotonic()

    def take_part(rank: int) -> None:
        try:
            participants = Participants.of(store, replace(WORLD, rank=rank))
            agree(proposal, participants, Deadline.after(0.3))
        except BaseException as error:
            errors.append(error)

    ranks = [0] if key == keys.CHECK_IN.format(1) else [0, 1]
    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 0.3 + STORE_GRACE
    assert errors
    for error in errors:
        assert isinstance(error, meshkit.MeshkitError), error
    assert any(named(error, key) for error in errors) or key == keys.DECISION, errors


def test_a_forged_decision_becomes_an_error_of_ours_and_nothing_else() -> None:
    store = dist.HashStore()
    forged = {"error": "__import__('os').system('x')", "summary": {"a": 1}, "evidence": [1, [2]]}
    round_store = dist.PrefixStore(keys.ROUND.format("", 1), store)
    round_store.set(keys.DECISION, json.dumps(forged))
    with pytest.raises(meshkit.MeshkitError) as caught:
        agree(Proposal("x", {}, "y."), Participants.of(store, WORLD), Deadline.after(0.2))
    assert type(caught.value) is meshkit.MeshkitError
