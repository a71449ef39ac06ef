"""An encoder and a decoder on other ranks train as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meshkit
from examples import two_towers

WEIGHTS = {"encoder", "up", "down"}


def train(row: str) -> dict[str, Any]:
    """Return the losses and weights of this rank."""
    return two_towers.main(row.split())


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the losses and weights of one process."""
    return meshkit.spawn(train, 1, ("--encoder=1 --dp=1 --tp=1",), timeout=60)[0]


@pytest.mark.parametrize(
    ("ranks", "row"),
    [
        pytest.param(8, "--encoder=4 --dp=2 --tp=2", id="disjoint"),
        pytest.param(4, "--encoder=4 --dp=2 --tp=2", id="same-ranks"),
        pytest.param(4, "--encoder=2 --dp=1 --tp=4", id="overlapping"),
    ],
)
def test_losses_and_weights_are_those_of_one_process(
    alone: dict[str, Any], ranks: int, row: str
) -> None:
    results = meshkit.spawn(train, ranks, (row,), timeout=100)
    losses = torch.stack(alone["losses"])
    assert losses[-1] < 0.8 * losses[0]
    assert {name for result in results for name in result} == {"losses", *WEIGHTS}
    for result in results:
        torch.testing.assert_close(torch.stack(result["losses"]), losses, rtol=1e-12, atol=0)
        for name in WEIGHTS & result.keys():
            torch.testing.assert_close(result[name], alone[name], rtol=1e-12, atol=1e-13)
