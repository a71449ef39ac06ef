"""What ranks claim when they meet: seeds that are alike, devices that are theirs alone."""

from __future__ import annotations

import os
import random
import socket
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.core.errors import LaunchError, MeshkitError
from meshkit.launch import device as device_module
from meshkit.launch import job
from meshkit.launch.agreement.claims import Claim, Claimant, conflicting_claim
from meshkit.launch.agreement.consensus import Participants, Proposal, agree
from meshkit.launch.store.error_json import error_from_json, error_to_json

HOST = socket.gethostname()


def clash(first: Claimant, second: Claimant) -> MeshkitError:
    return LaunchError(f"{first} and {second}: {first.value}, {second.value}")


def test_the_first_to_claim_a_key_decides_its_value() -> None:
    store = dist.HashStore()
    assert conflicting_claim(store, 3, (Claim("a", "x", clash),)) is None
    assert conflicting_claim(store, 1, (Claim("a", "x", clash), Claim("b", "y", clash))) is None
    error = conflicting_claim(store, 0, (Claim("a", "x", clash), Claim("b", "z", clash)))
    here = f"(host {HOST}, pid {os.getpid()})"
    assert str(error) == f"rank 0 {here} and rank 1 {here}: z, y"


@pytest.mark.parametrize(
    "error",
    [
        LaunchError("one\n  Fix: é"),
        meshkit.DisagreementError("two", requests={3: "seed=1", 0: "seed=2"}),
        MeshkitError("three"),
        meshkit.RankTimeoutError("four", missing_ranks=(2, 5)),
    ],
)
def test_a_refusal_comes_out_as_it_went_in(error: MeshkitError) -> None:
    told = error_from_json(error_to_json(error))
    assert (type(told), str(told)) == (type(error), str(error))
    assert vars(told) == vars(error)


def test_a_word_that_is_no_error_of_ours_makes_no_class() -> None:
    assert type(error_from_json('{"error": "SystemExit", "text": "x"}')) is MeshkitError


def refusal_of_init(arguments: dict[str, Any]) -> Any:
    """What init raises, in how long, and what is left."""
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=30, **arguments)
    except meshkit.MeshkitError as error:
        requests = getattr(error, "requests", None)
        told = type(error).__name__, str(error), requests, time.monotonic() - began
        return (*told, dist.is_initialized())
    return "joined"


def seeds(by_rank: list[int | str | None]) -> Any:
    return refusal_of_init({"seed": by_rank[meshkit.detect().rank]})


def test_different_seeds_are_told_to_all_ranks_alike() -> None:
    told = meshkit.spawn(seeds, 4, ([7, 7, 8, 7],), timeout=60)
    kinds, texts, requests, seconds, joined = zip(*told, strict=True)
    assert set(kinds) == {"DisagreementError"}
    assert len(set(texts)) == 1
    assert max(seconds) < 15
    assert joined == (False,) * 4
    lines = texts[0].splitlines()
    assert lines[0] == "ranks disagree about init(seed=...); no process group was created."
    assert f"rank 2 (host {HOST}, pid " in texts[0]
    assert lines[-1] == (
        "  Fix: pass the same seed on every rank, or seed='shared', which rank 0 draws for all."
    )
    assert all(found == requests[0] and found[2] == "seed=8" for found in requests)


@pytest.mark.parametrize("by_rank", [[None, 3], [3, "shared"]])
def test_a_seed_on_some_ranks_only_is_no_agreement(by_rank: list[int | str | None]) -> None:
    told = meshkit.spawn(seeds, 2, (by_rank,), timeout=60)
    assert {one[0] for one in told} == {"DisagreementError"}


def test_equal_seeds_join() -> None:
    assert meshkit.spawn(seeds, 2, ([3, 3],), timeout=60) == ["joined"] * 2


def one_clashes_before_another_comes(seconds: float) -> Any:
    """Let rank 2 come when the others have already been refused."""
    rank = meshkit.detect().rank
    time.sleep(seconds if rank == 2 else 0)
    return seeds([1, 2, 1])


def test_a_rank_that_comes_later_hears_the_refusal() -> None:
    told = meshkit.spawn(one_clashes_before_another_comes, 3, (3.0,), timeout=60)
    assert len({one[1] for one in told}) == 1
    assert all(one[3] < 15 for one in told)


def test_a_rank_is_here_only_when_its_claims_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a judge at the deadline would find everybody here, and no clash yet."""

    keys: list[str] = []
    for name in ("set", "compare_set"):
        call = getattr(dist.Store, name)

        def kept(store: dist.Store, key: str, *rest: str, call: Any = call) -> object:
            keys.append(key)
            return call(store, key, *rest)

        monkeypatch.setattr(dist.PrefixStore, name, kept, raising=False)
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"})
    matter = Proposal(Call("init"), {}, "", (Claim("a", "x", clash),))
    agree(matter, Participants.of(dist.HashStore(), world), timedelta(seconds=5))
    assert keys == ["claim/a", "request", "here/0", "verdict"]


def draws() -> Any:
    """The first numbers of every generator, after seed='shared', twice in one job."""
    found = []
    for _ in range(2):
        meshkit.init(seed="shared")
        numbers = random.random(), float(np.random.rand()), float(torch.rand(()))
        found.append((*numbers, torch.initial_seed()))
    return found


def test_a_shared_seed_is_one_number_for_all_and_new_each_time() -> None:
    by_rank = meshkit.spawn(draws, 3, timeout=60)
    assert by_rank[0] == by_rank[1] == by_rank[2]
    assert by_rank[0][0] != by_rank[0][1]
    assert meshkit.spawn(draws, 1, timeout=60)[0] != by_rank[0]


def later_seeds_differ() -> Any:
    """A second init with another seed on one rank; that rank, or the other, is told."""
    meshkit.init(seed=1)
    dist.barrier()
    try:
        meshkit.init(seed=5 + meshkit.detect().rank)
        told = "accepted"
    except meshkit.DisagreementError as error:
        told = str(error)
    dist.barrier()
    return told


def test_a_later_seed_that_differs_is_told() -> None:
    told = meshkit.spawn(later_seeds_differ, 2, timeout=60)
    assert sorted(text == "accepted" for text in told) == [False, True]
    (text,) = (text for text in told if text != "accepted")
    assert "seed=5" in text
    assert "seed=6" in text


def share_a_device(uuids: list[str | None], backend: str) -> Any:
    """Join as if the ranks computed on devices with these UUIDs, through that backend."""
    uuid = uuids[meshkit.detect().rank]
    claim = device_module.device_claim

    def claim_of_a_gpu(call: Any, rank: int, device: torch.device, _: str) -> Any:
        return claim(call, rank, torch.device("cuda", 0), backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "device_uuid", lambda device: uuid)
        patch.setattr(job, "device_claim", claim_of_a_gpu)
        return refusal_of_init({})


def test_two_ranks_on_one_device_are_named_on_all_ranks() -> None:
    uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-b"]
    told = meshkit.spawn(share_a_device, 4, (uuids, "nccl"), timeout=60)
    kinds, texts, _, seconds, joined = zip(*told, strict=True)
    assert set(kinds) == {"LaunchError"}
    assert len(set(texts)) == 1
    assert (max(seconds) < 15, joined) == (True, (False,) * 4)
    line, evidence, fix = texts[0].splitlines()
    assert line == (
        "init(arrival_timeout=30): ranks 1 and 3 use one device, "
        "and nccl needs one device per rank."
    )
    assert evidence.startswith(f"  Both compute on cuda GPU-b: rank 1 (host {HOST}, pid ")
    assert fix == (
        "  Fix: start one rank per device, or give each its own: device='cuda:<local rank>', or "
        "CUDA_VISIBLE_DEVICES; or init(backend='gloo')."
    )


@pytest.mark.parametrize(
    ("uuids", "backend", "shares"),
    [
        (["GPU-a", "GPU-b"], "nccl", "0"),
        (["GPU-a", "GPU-a"], "gloo", "0"),
        (["GPU-a", "GPU-a"], "cpu:nccl,cuda:gloo", "0"),
        ([None, None], "nccl", "0"),
        (["GPU-a", "GPU-a"], "nccl", "1"),
    ],
)
def test_nothing_is_refused_that_works(
    uuids: list[str | None], backend: str, shares: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", shares)
    told = meshkit.spawn(share_a_device, 2, (uuids, backend), timeout=60)
    assert told == ["joined"] * 2
