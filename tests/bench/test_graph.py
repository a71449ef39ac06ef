"""Calls in a CUDA graph, on a stand-in for torch.cuda: what happens in which order.

Never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshkit.bench import graph as graph_module
from meshkit.bench import sweep
from meshkit.bench.graph import REPLAYS, captured, seconds_by_graph
from meshkit.bench.sweep import LEAST, Sweep, Terms

CUDA = torch.device("cuda", 0)


class Cuda:
    """A stand-in for torch.cuda: streams, a graph that plays again what it caught, a clock."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.on = "main"
        self.clock = 0.0
        self.capturing: list[Any] | None = None

    def call(self, work: Any = lambda: None) -> None:
        self.said.append(f"call on {self.on}")
        if self.capturing is not None:
            self.capturing.append(work)
            return
        work()
        self.clock += 0.5

    def settle(self, device: torch.device) -> None:
        assert device == CUDA
        assert self.capturing is None  # cudaStreamCapture forbids it
        self.said.append("settle")

    def stand_in(self) -> SimpleNamespace:
        """What the module sees as ``torch``."""
        cuda = SimpleNamespace(
            Stream=lambda device: self._stream("side"),
            current_stream=lambda device: self._stream(self.on),
            stream=self._on,
            graph=self._capture,
            CUDAGraph=self._graph,
        )
        return SimpleNamespace(cuda=cuda, Event=self._event)

    def _stream(self, name: str) -> SimpleNamespace:
        def wait_stream(other: SimpleNamespace) -> None:
            self.said.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream)

    @contextmanager
    def _on(self, stream: SimpleNamespace) -> Iterator[None]:
        self.on = stream.name
        yield
        self.on = "main"

    @contextmanager
    def _capture(self, graph: SimpleNamespace, *, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        assert self.on == "main"
        self.on, self.capturing = "graph", graph.work
        yield
        self.on, self.capturing = "main", None

    def _graph(self) -> SimpleNamespace:
        graph = SimpleNamespace(work=[])

        def replay() -> None:
            self.said.append("replay")
            for work in graph.work:
                work()
            self.clock += 0.25 * len(graph.work)

        graph.replay = replay
        return graph

    def _event(self, device: torch.device, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at=None)

        def record() -> None:
            assert self.capturing is None
            self.said.append("event")
            event.at = self.clock

        event.record = record
        event.elapsed_time = lambda after: (after.at - event.at) * 1e3
        return event


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    monkeypatch.setattr(graph_module, "torch", found.stand_in())
    monkeypatch.setattr(graph_module, "settle", found.settle)
    monkeypatch.setattr(sweep, "settle", found.settle)
    return found


WARM = ["side waits for main", "call on side", "call on side", "main waits for side", "settle"]


def test_calls_warm_up_on_a_side_stream_before_they_are_captured(cuda: Cuda) -> None:
    captured(cuda.call, 2, 3, CUDA)
    assert cuda.said == [*WARM, *["call on graph"] * 3]


def test_one_call_at_the_least_makes_the_communicators(cuda: Cuda) -> None:
    captured(cuda.call, 0, 1, CUDA)
    assert cuda.said.count("call on side") == 1


def test_each_replay_is_between_two_events_and_told_by_the_call(cuda: Cuda) -> None:
    took = seconds_by_graph(cuda.call, 2, 3, CUDA)
    assert took == pytest.approx([0.25] * REPLAYS)
    once = ["event", "replay", "event", "settle"]
    assert cuda.said == [*WARM, *["call on graph"] * 3, "replay", "settle", *once * REPLAYS]


class Call:
    """A prepared call whose result is right only if a replay has written it."""

    def __init__(self, cuda: Cuda, replayed: int) -> None:
        self._cuda, self._replayed, self._out = cuda, replayed, 0

    def make(self) -> None:
        self._cuda.call(self._write)

    def _write(self) -> None:
        replaying = self._cuda.said[-1] == "replay"
        self._out = self._replayed if replaying else 0

    def renew(self) -> None:
        self._cuda.said.append("renew")
        self._out = 100

    def wrong(self, rank: int) -> int:
        return self._out


@pytest.mark.parametrize("replayed", [0, 7])
def test_what_a_replay_has_written_is_compared(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, replayed: int
) -> None:
    monkeypatch.setattr(sweep, "run", lambda calls: [call.make() for call in calls])
    mesh: Any = SimpleNamespace(rank=0)
    graphs, each = (
        Sweep(mesh, CUDA, {}, Terms(1, 2, 20.0, graph=graph), lambda: False, lambda case: None)
        for graph in (True, False)
    )
    ready: Any = [Call(cuda, replayed)]
    assert each._wrong(ready) == 0
    assert cuda.said == []
    assert graphs._wrong(ready) == replayed
    assert cuda.said[-3:] == ["renew", "replay", "settle"]


def test_replays_too_fit_into_a_quarter_of_the_deadline() -> None:
    for slowest in (1e-6, 0.01, 0.05, 1.0):
        for graph in (True, False):
            terms = Terms(3, 100, 10.0, graph=graph)
            warm, counted = terms.calls(slowest)
            runs = counted * (REPLAYS + 1 if graph else 1)
            assert warm <= 3
            assert LEAST <= counted <= 100
            assert counted == LEAST or runs * slowest <= 2.5
    assert Terms(3, 100, 10.0, graph=True).calls(1e-6) == (3, 100)
    assert Terms(3, 100, 10.0).calls(0.05) == (3, 50)
    assert Terms(3, 100, 10.0, graph=True).calls(0.05) == (3, 8)
    assert Terms(3, 100, 10.0).calls(2.0) == (1, LEAST)


def test_times_are_taken_by_the_way_that_is_asked_for() -> None:
    assert Terms(1, 2, 3.0, graph=True).seconds is seconds_by_graph
    assert Terms(1, 2, 3.0).seconds is sweep.seconds
    assert (Terms(1, 2, 3.0, graph=True).counted, Terms(1, 2, 3.0).counted) == (REPLAYS, None)


@pytest.mark.parametrize(("warm_up", "counted"), [(0, 2), (1, 2), (3, 20)])
def test_calls_of_a_pass_by_counting_them(cuda: Cuda, warm_up: int, counted: int) -> None:
    ran = [0, 0]

    def count(way: int) -> None:
        ran[way] += 1

    seconds_by_graph(lambda: cuda.call(lambda: count(0)), warm_up, counted, CUDA)
    sweep.seconds(lambda: count(1), warm_up, counted, torch.device("cpu"))
    with_graph, without = (Terms(warm_up, counted, 9.0, graph=graph) for graph in (True, False))
    assert [with_graph.most, without.most] == ran
    if warm_up == 0:
        assert [with_graph.least, without.least] == ran


def test_calls_of_a_check_by_counting_them(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[None] = []
    monkeypatch.setattr(
        sweep, "run", lambda calls: [cuda.call(lambda: ran.append(None)) for _ in calls]
    )
    mesh: Any = SimpleNamespace(rank=0)
    ready: Any = [Call(cuda, 0)]
    for graph in (True, False):
        ran.clear()
        terms = Terms(1, 2, 20.0, graph=graph)
        sweep.run(ready)
        Sweep(mesh, CUDA, {}, terms, lambda: False, lambda case: None)._wrong(ready)
        assert len(ran) == terms.checks


def test_two_calls_count_at_the_least() -> None:
    assert Terms(3, 1, 20.0).most == 3 + LEAST
    assert Terms(3, 1, 20.0, graph=True).most == 3 + LEAST * (REPLAYS + 1)
