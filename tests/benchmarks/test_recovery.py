"""The benchmark of a recovery: its rows, and one small loss."""

from __future__ import annotations

import pytest

from benchmarks import recovery


@pytest.mark.slow
def test_a_loss_takes_longer_than_its_recovery() -> None:
    after_error: list[float] = []
    seconds = recovery.lose(6, after_error)
    assert 0 < after_error[0] < seconds
