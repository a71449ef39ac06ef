"""Seconds of calls: which calls count, and by which clock."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from meshkit.bench import stopwatch
from meshkit.bench.stopwatch import synchronize, time_calls

CPU = torch.device("cpu")


def test_calls_to_warm_up_do_not_count() -> None:
    waits = iter([0.03, 0.03, 0.0, 0.02, 0.0])
    took = time_calls(lambda: time.sleep(next(waits)), 2, 3, CPU)
    assert len(took) == 3
    assert took[1] >= 0.02 > max(took[0], took[2])
    assert list(waits) == []


class Device:
    """A stand-in for an accelerator: what happens, in order, at which second of its stream."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.clock = 0.0

    def call(self) -> None:
        self.said.append("call")
        self.clock += 0.5 * len(self.said)

    def event(self, device: torch.device, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at=None)

        def record() -> None:
            self.said.append("event")
            event.at = self.clock

        event.record = record
        event.elapsed_time = lambda after: (after.at - event.at) * 1e3  # torch tells milliseconds
        return event


def test_on_cuda_events_are_read_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(stopwatch.torch, "Event", device.event)
    monkeypatch.setattr(stopwatch, "synchronize", lambda _: device.said.append("synchronize"))
    took = time_calls(device.call, 1, 2, torch.device("cuda", 0))
    assert device.said == [
        "call",
        "synchronize",
        "event",
        "call",
        "event",
        "call",
        "event",
        "synchronize",
    ]
    assert took == pytest.approx([0.5 * 4, 0.5 * 6])


def test_on_another_accelerator_each_call_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(stopwatch, "synchronize", lambda _: device.said.append("synchronize"))
    assert len(time_calls(device.call, 0, 2, torch.device("xpu", 0))) == 2
    assert device.said == ["synchronize", "call", "synchronize", "call", "synchronize"]


def test_a_cpu_has_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(stopwatch.torch.accelerator, "synchronize", waited.append)
    synchronize(CPU)
    assert waited == []
    others = [torch.device("cuda", 0), torch.device("xpu", 0)]
    for other in others:
        synchronize(other)
    assert waited == others
