"""Seeds of init: equal on all ranks, or drawn by rank 0."""

from __future__ import annotations

import random
import socket
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.job import parse_seed

HOST = socket.gethostname()


def join(by_rank: list[int | str | None]) -> Any:
    """Join with this rank's seed; return the error, the seconds, and whether a group is left."""
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=30, seed=by_rank[meshkit.detect().rank])
    except meshkit.DisagreementError as error:
        return str(error), error.requests, time.monotonic() - began, dist.is_initialized()
    return "joined"


def test_different_seeds_are_reported_on_all_ranks() -> None:
    errors = meshkit.spawn(join, 4, ([7, 7, 8, 7],), timeout=60)
    texts, requests, seconds, joined = zip(*errors, strict=True)
    assert len(set(texts)) == 1
    assert max(seconds) < 15
    assert joined == (False,) * 4
    summary, common, odd, fix = texts[0].splitlines()
    assert summary == "ranks disagree about init(); no process group was created."
    assert common == "  ranks 0-1 and 3:  seed=7"
    assert odd.startswith(f"  rank 2 (host {HOST}, pid ")
    assert odd.endswith("):  seed=8")
    assert fix == (
        "  Fix: pass the same seed on every rank, or seed='shared', which rank 0 draws for all."
    )
    assert all(request == requests[0] and "seed=8" in request[2] for request in requests)


@pytest.mark.parametrize("by_rank", [[None, 3], [3, "shared"]])
def test_a_seed_on_some_ranks_only_is_a_disagreement(by_rank: list[int | str | None]) -> None:
    errors = meshkit.spawn(join, 2, (by_rank,), timeout=60)
    assert all("ranks disagree about init()" in error[0] for error in errors)


def test_equal_seeds_join() -> None:
    assert meshkit.spawn(join, 2, ([3, 3],), timeout=60) == ["joined"] * 2


def join_late(seconds: float) -> Any:
    """Let rank 2 join after the other ranks have posted their conflict."""
    rank = meshkit.detect().rank
    time.sleep(seconds if rank == 2 else 0)
    return join([1, 2, 1])


def test_a_late_rank_reads_the_disagreement() -> None:
    errors = meshkit.spawn(join_late, 3, (3.0,), timeout=60)
    assert len({error[0] for error in errors}) == 1
    assert all(error[2] < 15 for error in errors)


def draw() -> Any:
    """Return the first number of every generator after seed="shared", twice in one job."""
    draws = []
    for _ in range(2):
        meshkit.init(seed="shared")
        numbers = random.random(), float(np.random.rand()), float(torch.rand(()))
        draws.append((*numbers, torch.initial_seed()))
    return draws


def test_a_shared_seed_is_equal_on_all_ranks_and_new_each_time() -> None:
    by_rank = meshkit.spawn(draw, 3, timeout=60)
    assert by_rank[0] == by_rank[1] == by_rank[2]
    assert by_rank[0][0] != by_rank[0][1]
    assert meshkit.spawn(draw, 1, timeout=60)[0] != by_rank[0]


def seed_again() -> str:
    """Call init a second time with different seeds on the two ranks."""
    meshkit.init(seed=1)
    dist.barrier()
    try:
        meshkit.init(seed=5 + meshkit.detect().rank)
        text = "accepted"
    except meshkit.DisagreementError as error:
        text = str(error)
    dist.barrier()
    return text


def test_a_later_seed_that_differs_is_reported_on_the_second_rank() -> None:
    texts = meshkit.spawn(seed_again, 2, timeout=60)
    (text,) = (text for text in texts if text != "accepted")
    assert "seed=5" in text
    assert "seed=6" in text


def test_a_seed_fits_into_32_bits() -> None:
    assert parse_seed(2**32 - 1) == 2**32 - 1
    for seed in (2**32, -1):
        with pytest.raises(meshkit.SpecError, match="seed is"):
            parse_seed(seed)
