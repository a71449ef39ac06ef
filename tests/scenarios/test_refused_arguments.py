"""One rank passes an argument that meshkit refuses, inside a guard, and lives on.

The other ranks wait for it: at first its peers in the call that was meant, then all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from tests.promises import BUSY

RANKS, ODD = 4, 1
LIMIT = 2.0  # seconds of the guard
Call = Callable[[meshkit.Mesh, bool], object]
X = torch.ones(4, 4)
CALLS: dict[str, Call] = {
    "barrier": lambda m, odd: m.barrier("zz" if odd else "tp"),
    "timeout": lambda m, odd: m.barrier(timeout=-1 if odd else None),
    "shift": lambda m, odd: m.shift(X, "zz" if odd else "tp"),
    "exchange": lambda m, odd: m.exchange(X, "zz" if odd else "tp", [2, 2]),
    "pattern": lambda m, odd: m.redistribute(X, "a/zz b -> a b" if odd else "a/tp b -> a b"),
    "op": lambda m, odd: m.redistribute(X, "a b +tp -> a b =tp", op="median" if odd else "sum"),
    "token_weights": lambda m, odd: m.token_weights([3], "zz" if odd else "tp"),
}


def refuse_in_a_guard() -> dict[str, tuple[str, float]]:
    """Return the error of this rank by call, and the seconds until it came."""
    texts = {}
    for name, call in CALLS.items():
        meshkit.init()
        text, began = "no error", 0.0
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            mesh.barrier()
            try:
                with mesh.guard(timeout=LIMIT):
                    began = time.monotonic()
                    call(mesh, mesh.rank == ODD)
                    dist.all_reduce(torch.ones(1), group=mesh.group())
            except meshkit.MeshkitError as error:
                text = f"{type(error).__name__}: {error}"
            texts[name] = text, time.monotonic() - began
        meshkit.shutdown()
    return texts


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, tuple[str, float]]]:
    return meshkit.spawn(refuse_in_a_guard, RANKS, timeout=120)


@pytest.mark.parametrize("name", CALLS)
def test_the_end_of_a_guard_tells_all_ranks_of_a_refused_argument(
    outcomes: list[Any], name: str
) -> None:
    own, _ = outcomes[ODD][name]
    error = own.partition(":")[0]
    assert error in ("UnknownAxisError", "SpecError")
    for rank in {*range(RANKS)} - {ODD}:
        text, seconds = outcomes[rank][name]
        assert LIMIT - 1 < seconds < LIMIT + 1 + BUSY, (rank, text)
        assert f"rank {ODD} " in text, (rank, text)
        assert f"left with {error}: mesh.{own.partition('mesh.')[2][:8]}" in text, (rank, text)
