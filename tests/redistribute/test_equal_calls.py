"""Calls that must be equal, compared on gloo as on NCCL: no rank waits for the comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.groups import status
from meshkit.redistribute import equal_calls
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4  # of the pool
ODD = 2  # the rank that makes another call


def moves_of(mesh: meshkit.Mesh, *, odd: bool) -> dict[str, Callable[[], object]]:
    """Return a call for each way in which one rank may differ; all move as many bytes.

    Moves of other bytes end a process in gloo, over which the stand-in for NCCL plays too.
    """
    x = torch.ones(2, 2)
    other = x.view(4, 1) if odd else x
    gather = "a b/tp -> a b" if odd else "a/tp b -> a b"
    return {
        "shape": lambda: mesh.redistribute(other, "a/tp b -> a b"),
        "dtype": lambda: mesh.redistribute(x.int() if odd else x, "a/tp b -> a b"),
        "pattern": lambda: mesh.redistribute(x, gather),
        "op": lambda: mesh.redistribute(x, "a b +tp -> a b =tp", op="max" if odd else "sum"),
        "shift": lambda: mesh.shift(other, "tp", 1),
        "exchange": lambda: mesh.exchange(x[:, None] if odd else x, "tp", [1, 1]),
        "begin": lambda: mesh.begin(other, "a b +tp -> a b =tp").wait(),
    }


def disagree(kind: str, reading: str) -> Any:
    """Make another call on rank 2 as on NCCL; return the ranks and lines of the error."""
    patch = pytest.MonkeyPatch()
    patch.setattr(equal_calls, "is_late", lambda _: True)
    mesh = meshkit.build_mesh(dp=2, tp=2)
    x = torch.ones(2)
    try:
        with mesh.guard(timeout=20):
            moves_of(mesh, odd=mesh.rank == ODD)[kind]()
            if reading == "next":
                deadline = time.monotonic() + BUSY
                while not status.pending()[0].is_done() and time.monotonic() < deadline:
                    time.sleep(0.01)
                mesh.redistribute(x, "a/tp -> a")
    except meshkit.DisagreementError as error:
        return sorted(error.requests), error.evidence
    finally:
        patch.undo()
        mesh.close()
    return None


@pytest.mark.parametrize("kind", ["shape", "dtype", "pattern", "op", "shift", "exchange", "begin"])
@pytest.mark.parametrize("reading", ["next", "end"])
def test_another_call_on_one_rank_is_named_after_it(pool: Pool, kind: str, reading: str) -> None:
    first, second, *others = pool.run(disagree, kind, reading)
    assert first is second is None
    assert others[0] == others[1]
    ranks, (line, other) = others[0]
    assert ranks == [2, 3]
    assert line.startswith("rank 2: ")
    assert other.startswith("rank 3: ")


def call_with_long_facts(kind: str) -> Any:
    """Make calls whose texts differ behind their first 512 bytes; return the lines of the error."""
    names = [f"{'dim' * 10}{number}" for number in range(12)]
    sizes = dict.fromkeys(names, 1)
    text = " ".join(names)
    with meshkit.build_mesh(tp=RANKS) as mesh:
        is_odd = mesh.rank == ODD
        x = torch.ones(1, *[1] * len(names))
        if kind == "dtype" and is_odd:
            x = x.int()
        if kind == "sizes" and is_odd:
            x = x.unflatten(-1, [1]).expand(*x.shape[:-1], 1).new_ones(*x.shape[:-1], 2)
            sizes[names[-1]] = 2
        end = f"{text} z" if kind == "pattern" and is_odd else f"z {text}"
        try:
            mesh.redistribute(x, f"z/tp {text} -> {end}", **sizes)
        except meshkit.DisagreementError as error:
            return [error.summary[:40], *error.evidence], error.requests
    return None


@pytest.mark.parametrize("kind", ["dtype", "sizes", "pattern"])
def test_calls_that_differ_behind_a_long_text_are_told_apart(pool: Pool, kind: str) -> None:
    results = pool.run(call_with_long_facts, kind)
    assert results[0] is not None
    assert all(result == results[0] for result in results)
    _, requests = results[0]
    odd, *others = requests.pop(ODD), *{*requests.values()}
    assert others != [odd]
    assert len(others) == 1
    if kind == "dtype":
        assert "torch.int32" in odd
        assert "torch.float32" in others[0]


def move_equally() -> Any:
    """Return the number of comparisons that are left while and after equal calls are made."""
    patch, x = pytest.MonkeyPatch(), torch.ones(2, 2)
    patch.setattr(equal_calls, "is_late", lambda _: True)
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        with mesh.guard(timeout=20), mesh.guard(timeout=20):
            for _ in range(100):
                for move in moves_of(mesh, odd=False).values():
                    move()
            inside, mesh_wide = len(status.pending()), mesh.redistribute(x, "a b +tp -> a b =tp")
        patch.undo()
        return inside < 100, len(status.pending()), mesh_wide.tolist()


def test_equal_calls_leave_nothing_behind(pool: Pool) -> None:
    assert pool.run(move_equally) == [(True, 0, [[2.0, 2.0], [2.0, 2.0]])] * RANKS


# ------------------------------------------------------------------ a device with streams


class Stream:
    """A stream of the stand-in for a device, and its events, which note what is done there."""

    acts: ClassVar[list[str]] = []
    current: ClassVar[list[str]] = ["caller"]

    def __init__(self, device: torch.device) -> None:
        self.event = SimpleNamespace(query=lambda: False, synchronize=self.end)

    def record_event(self) -> Any:
        self.note("event")
        return self.event

    def end(self) -> None:
        self.note("synchronize")

    @classmethod
    def note(cls, act: str) -> None:
        cls.acts.append(f"{act} on {cls.current[-1]}")

    @classmethod
    @contextmanager
    def enter(cls, stream: Stream) -> Iterator[None]:
        cls.current.append("side")
        yield
        cls.current.pop()


def play_device(patch: pytest.MonkeyPatch) -> None:
    """Play a device with streams, whose tensors are those of the CPU."""
    Stream.acts.clear()
    equal_calls.side_stream.cache_clear()
    module = SimpleNamespace(Stream=Stream, stream=Stream.enter)
    patch.setattr(equal_calls, "is_late", lambda _: True)
    patch.setattr(equal_calls, "has_streams", lambda _: True)
    patch.setattr(torch, "get_device_module", lambda _: module)
    note = Stream.note
    patch.setattr(torch.Tensor, "pin_memory", lambda x: (note("pin"), x.clone())[1])
    patch.setattr(torch.Tensor, "record_stream", lambda x, _: note("keep"))
    copy, reduce = torch.Tensor.copy_, dist.all_reduce
    patch.setattr(torch.Tensor, "copy_", lambda x, *a, **k: (note("copy"), copy(x, *a, **k))[1])

    def all_reduce(*args: Any, **options: Any) -> Any:
        note("reduce")
        work = reduce(*args, **options)
        return work and SimpleNamespace(
            wait=lambda *_: (note("wait"), work.wait()), is_completed=work.is_completed
        )

    patch.setattr(dist, "all_reduce", all_reduce)


def compare_on_device() -> Any:
    """Return what a device with streams did for a comparison, and for reading it."""
    patch, x = pytest.MonkeyPatch(), torch.ones(2)
    with meshkit.build_mesh(dp=2, tp=2) as mesh, mesh.guard(timeout=20):
        play_device(patch)
        mesh.redistribute(x, "a/tp -> a")
        began = [*Stream.acts]
        mesh.redistribute(x, "a/tp -> a")  # the first event has not come: nothing is read
        count = len(status.pending())
        Stream.acts.clear()
        status.check_pending(wait=True)
        patch.undo()
        equal_calls.side_stream.cache_clear()
        return began, count, [*Stream.acts]


def test_a_result_is_copied_to_the_host_beside_the_stream_of_the_caller(pool: Pool) -> None:
    on_caller, on_side = ["pin on caller", "reduce on caller"], ["wait", "copy", "event"]
    began = [*on_caller, *(f"{act} on side" for act in on_side), "keep on caller"]
    read = ["wait on caller", "synchronize on caller"] * 2
    assert pool.run(compare_on_device) == [(began, 2, read)] * RANKS
