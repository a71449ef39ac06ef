"""The benchmark of a recovery: its rows, and one small loss."""

from __future__ import annotations

import pytest

from benchmarks import recovery


def test_both_sides_lose_a_rank_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[int] = []

    def lose(ranks: int, after_error: list[float]) -> float:
        losses.append(ranks)
        after_error.append(0.25 * ranks)
        return 2.0

    monkeypatch.setattr(recovery, "lose", lose, raising=True)
    monkeypatch.setattr(recovery, "restart", lambda: 16.0, raising=True)
    whole, small, large = recovery.run(quick=False)
    assert losses == [8, 8, 8, 64]
    assert whole.ratio is not None
    assert (whole.ours, whole.theirs, whole.ratio.median) == (2.0, 16.0, 0.125)
    assert [(row.scale, row.ours, row.met) for row in (small, large)] == [
        (8, 2.0, True),
        (64, 16.0, False),
    ]
    assert len(recovery.run(quick=True)) == 2


@pytest.mark.slow
def test_a_loss_takes_longer_than_its_recovery() -> None:
    after_error: list[float] = []
    seconds = recovery.lose(6, after_error)
    assert 0 < after_error[0] < seconds
