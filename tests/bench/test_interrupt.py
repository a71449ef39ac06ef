"""Ctrl-C is a mark, in this process or for all; the second one is a KeyboardInterrupt."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from meshkit.bench import measure as interrupt
from meshkit.bench.measure import SAME_SIGNAL, Interruption


def test_a_signal_sets_the_mark_and_the_handler_comes_back(tmp_path: Path) -> None:
    before, file = signal.getsignal(signal.SIGINT), tmp_path / "stop"
    with Interruption(str(file)) as interruption:
        other = Interruption(str(file))
        assert not interruption
        assert not other
        signal.raise_signal(signal.SIGINT)
        assert interruption
        assert other  # by the file
        assert file.exists()
        assert not Interruption()
        assert not Interruption(str(tmp_path / "another"))
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_file_the_mark_is_this_process_own() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption


def test_a_second_signal_is_an_interrupt_unless_it_is_the_same_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        for later in (0.0, SAME_SIGNAL):  # what a launcher passes on comes soon after
            now[0] = 100.0 + later
            signal.raise_signal(signal.SIGINT)
        now[0] += 0.01
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
