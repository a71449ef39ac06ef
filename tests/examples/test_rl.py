"""A policy that is trained on one mesh and sampled on another is that of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meshkit
from examples import rl

STEPS = 8


def train(trainer: str, sampler: str) -> dict[str, Any]:
    """Return the rewards and weights on this rank."""
    return rl.main([f"--trainer={trainer}", f"--sampler={sampler}", f"--steps={STEPS}"])


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the rewards and weights of one process."""
    return meshkit.spawn(train, 1, ("dp=1", "dp=1"), timeout=60)[0]


@pytest.mark.parametrize(
    ("ranks", "trainer", "sampler"),
    [
        pytest.param(4, "dp=2 tp=2", "dp=4", id="same-ranks"),
        pytest.param(8, "dp=2 tp=2", "dp=2 tp=2", id="0-3-and-4-7"),
        pytest.param(8, "dp=3 tp=2", "tp=2", id="0-5-and-6-7"),
    ],
)
def test_rewards_and_weights_are_those_of_one_process(
    alone: dict[str, Any], ranks: int, trainer: str, sampler: str
) -> None:
    results = meshkit.spawn(train, ranks, (trainer, sampler), timeout=100)
    assert alone["rewards"][-1] > alone["rewards"][0] + 0.1
    trained = [result for result in results if result]
    assert len(trained) == {"dp=2 tp=2": 4, "dp=3 tp=2": 6}[trainer]
    for result in trained:
        torch.testing.assert_close(result["rewards"], alone["rewards"], rtol=1e-12, atol=0)
        assert result["weights"].keys() == alone["weights"].keys()
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-12, atol=1e-12)
