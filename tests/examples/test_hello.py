"""The first example runs under spawn, and its check can fail."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import meshkit
from examples import hello


def test_under_spawn() -> None:
    assert meshkit.spawn(hello.main, 3, timeout=60) == [0, 0, 0]


def deaf() -> int:
    """Run the example with an all-reduce that loses all other ranks."""

    def nothing(_: torch.Tensor) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", nothing)
        return hello.main()


def test_a_missing_rank_fails_the_check(capfd: pytest.CaptureFixture[str]) -> None:
    assert meshkit.spawn(deaf, 2, timeout=60) == [1, 1]
