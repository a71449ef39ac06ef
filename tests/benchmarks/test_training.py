"""Training beside torch's own stack: the same losses, on two ranks."""

from __future__ import annotations

import pytest

import meshkit
from benchmarks import training


def test_both_sides_train_the_same() -> None:
    results = meshkit.spawn(
        training.train_both, 2, ({"dp": 1, "sp": 2, "tp": 1}, 2, 1), timeout=120
    )
    for ours, theirs, times in results:
        assert len(ours) == len(theirs) == 4  # two steps that do not count, and two that do
        training.check_losses(ours, theirs)
        assert ours == results[0][0]
        assert ours[3] < ours[0], "the loss did not fall"
        assert [len(side) for side in times] == [1, 1]


def test_different_losses_are_refused() -> None:
    training.check_losses([5.5, 5.0], [5.5001, 5.0])
    with pytest.raises(RuntimeError, match=r"report different losses: \[5\.5\] and"):
        training.check_losses([5.5], [5.51])


def test_tokens_per_second_of_the_slowest_rank() -> None:
    by_rank = [([1.0, 2.0], [1.0, 4.0]), ([2.0, 1.0], [1.0, 1.0])]
    row = training.tokens_row(by_rank, steps=4)
    tokens = 4 * 32 * 128
    assert (row.ours, row.theirs) == (tokens / 2, tokens * (1 + 1 / 4) / 2)
    assert row.ratio is not None
    assert row.ratio.median == 1.25  # of 1 / 2 and 4 / 2
    assert row.met
