"""The line and the operation of a rank, read from the frames of its thread."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.live.guard.barrier import wait
from meshkit.live.guard.current import tracking
from meshkit.live.guard.stack import (
    frames_of_error,
    frames_of_thread,
    is_collective_error,
    rank_status,
)


def test_the_line_of_user_code() -> None:
    try:
        meshkit.Layout(dp=0)
    except meshkit.SpecError as error:
        found = rank_status(3, {}, frames_of_error(error), error="SpecError: x")
    assert (found.rank, found.operation, found.error) == (3, "", "SpecError: x")
    assert found.line.startswith("test_place.py:")
    assert found.line.endswith("(test_the_line_of_user_code)")
    assert str(found) == "left with SpecError: x"


def test_the_line_of_another_thread_and_of_an_ended_one() -> None:
    begun, end = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        end.wait(30)  # in the standard library, which is not one's own code

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait(30)
    assert thread.ident is not None
    line = rank_status(0, {}, frames_of_thread(thread.ident)).line
    end.set()
    thread.join()
    assert line.startswith("test_place.py:")
    assert line.endswith("(waits)")
    gone = rank_status(0, {}, frames_of_thread(thread.ident))
    assert str(gone) == "in no collective, no line is known"


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (dist.DistNetworkError("x"), True),
        (dist.DistBackendError("NCCL error in: a.cpp"), True),
        (RuntimeError("[a/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (RuntimeError("Wait timeout"), True),
        (RuntimeError("NCCL communicator was aborted on rank 0."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (RuntimeError("CUDA out of memory"), False),
        (RuntimeError("DataLoader timed out after 5 seconds"), False),
        (RuntimeError("Application timeout caused pair closure"), True),
        (ValueError("gloo"), False),
        (meshkit.LaunchError("gloo timed out"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_which_errors_come_from_a_collective(error: BaseException, is_one: bool) -> None:
    assert is_collective_error(error) is is_one


def find_operations() -> Any:
    """Return the operation that place reads from the frames inside each collective."""
    mesh = meshkit.build_mesh(dp=2)
    mine = dist.new_group([0, 1], group_desc="a group of mine")
    seen: list[str] = []

    def look(*_: Any, **__: Any) -> Any:
        frames, current = frames_of_thread(threading.get_ident()), tracker.current
        seen.append(rank_status(mesh.rank, mesh._groups.by_key, frames, current).operation)
        raise ZeroDivisionError

    calls = {
        "dp": lambda: dist.all_reduce(torch.ones(1), group=mesh.group("dp")),
        "world": lambda: dist.broadcast(torch.ones(1), 0),
        "foreign": lambda: dist.all_gather([torch.ones(1)] * 2, torch.ones(1), group=mine),
        "barrier": lambda: mesh.barrier("dp"),
        "begun": lambda: wait(SimpleNamespace(wait=look), mesh.group("dp")),  # type: ignore[arg-type]
        "none": look,
    }
    c10d = dist.distributed_c10d
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c10d, "_rank_not_in_group", look)
        patch.setattr(dist, "barrier", look)
        for name, call in calls.items():
            seen.clear()
            with contextlib.suppress(ZeroDivisionError), tracking() as tracker:
                call()
            found[name] = seen[0]  # torch calls it again when it logs the error
    return found


def test_the_operation_and_the_axes() -> None:
    """For collectives and barriers over an axis, the world, and a group of the user."""
    told: list[Any] = meshkit.spawn(find_operations, 2, timeout=60)
    for found in told:
        assert found == {
            "dp": "all_reduce over dp",
            "world": "broadcast over dp",
            "foreign": "all_gather over a group of mine",
            "barrier": "barrier over dp",
            "begun": "wait over dp",
            "none": "",
        }
