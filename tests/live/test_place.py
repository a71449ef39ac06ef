"""Where a rank is, by the frames of its thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.live.guard.stack import (
    frames_of_error,
    frames_of_thread,
    is_collective_error,
    rank_status,
)
from tests.live import guard_jobs as jobs


def test_the_line_of_ones_own_code() -> None:
    try:
        meshkit.Layout(dp=0)
    except meshkit.SpecError as error:
        found = rank_status(3, {}, frames_of_error(error), error="SpecError: x")
    assert (found.rank, found.operation, found.error) == (3, "", "SpecError: x")
    assert found.line.startswith("test_place.py:")
    assert found.line.endswith("(test_the_line_of_ones_own_code)")
    assert str(found) == "left with SpecError: x"


def test_the_line_of_another_thread_and_of_none() -> None:
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
def test_which_errors_are_a_collectives(error: BaseException, is_one: bool) -> None:
    assert is_collective_error(error) is is_one


def test_the_operation_and_the_axes() -> None:
    """Of a collective, of a barrier of ours, over an axis, over the world, over a foreign group."""
    told: list[Any] = meshkit.spawn(jobs.operations, 2, timeout=60)
    for found in told:
        assert found == {
            "dp": "all_reduce over dp",
            "world": "broadcast over dp",
            "foreign": "all_gather over a group of mine",
            "barrier": "barrier over dp",
            "begun": "wait over dp",
            "none": "",
        }
