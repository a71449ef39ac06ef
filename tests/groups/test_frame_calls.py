"""The call in which a rank waits, read from the variables of torch's frames."""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

import meshkit
from meshkit.groups.frame_calls import frames_of_thread, no_collection
from meshkit.groups.status import rank_status
from meshkit.guard import sampling, watch
from meshkit.launch.disagreement import TracedCall
from tests.guard.test_sampling import alone
from tests.pool import Pool
from tests.preloaded_python import run_python
from tests.promises import BUSY

RANKS = 2
MICRO_BATCHES = 4  # of 2 samples each


def wait_in_a_schedule(name: str, sleeper: int, place: str) -> Any:
    """Take two steps of a pipeline; return the call in which the peer of a rank that sleeps waits.

    The rank sleeps before its second step, or in its last loss there, until the peer waits.
    """
    mesh = meshkit.build_mesh(pp=2)
    rank, group, losses = mesh.rank, mesh.group("pp"), list[str]()
    root = dist.distributed_c10d._get_default_store()
    store = dist.PrefixStore(f"{name}/{place}/{sleeper}", root)

    def sleep() -> None:
        store.set("sleeps", "")
        store.get("goes on")

    def loss_of(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses.append(place)
        if rank == sleeper and losses == ["step 2"] + ["loss"] * MICRO_BATCHES:
            sleep()
        return (y - target).square().mean()

    schedule = make_schedule(name, rank, group, loss_of)
    x, seen = torch.ones(2 * MICRO_BATCHES, 4), list[Any]()

    def step() -> None:
        schedule.step(*[x] * (rank == 0), **({"target": x} if rank == 1 else {}))

    def look(thread: int) -> None:
        store.get("sleeps")
        deadline = time.monotonic() + BUSY
        while time.monotonic() < deadline and (len(seen) < 2 or seen[-1] != seen[-2]):
            time.sleep(0.2)
            status = rank_status(rank, {"pp": group}, frames_of_thread(thread))
            calls = [call._replace(line="") for call in status.calls.get("pp", ())]
            seen.append((status.function, status.group, calls, status.line))
        store.set("goes on", "")

    step()
    losses[:] = ["step 2"]
    if rank == sleeper and place == "step":
        sleep()
    looker = threading.Thread(target=look, args=(threading.get_ident(),))
    if rank != sleeper:
        looker.start()
    step()
    if rank != sleeper:
        looker.join()
    mesh.close()
    return seen[-1:]


def make_schedule(name: str, rank: int, group: dist.ProcessGroup, loss: Any) -> Any:
    """Return a schedule of torch with one stage a rank, or two if it is interleaved."""
    numbers = [rank, rank + 2] if "Interleaved" in name else [rank]
    count, device = 2 * len(numbers), torch.device("cpu")
    stages = [PipelineStage(nn.Linear(4, 4), i, count, device, group=group) for i in numbers]
    own: Any = stages if len(stages) > 1 else stages[0]
    return getattr(schedules, name)(own, MICRO_BATCHES, loss_fn=loss)


def message(name: str, peer: int) -> TracedCall:
    return TracedCall(0, name, (((2, 4), "float32"),), "", peer, "begun")


CASES: dict[str, tuple[str, int, str, list[TracedCall]]] = {
    "GPipe, forward": ("ScheduleGPipe", 0, "step", [message("irecv", 0)]),
    "GPipe, sends": ("ScheduleGPipe", 1, "step", [message("isend", 1)]),
    "1F1B, forward": ("Schedule1F1B", 0, "step", [message("irecv", 0)]),
    "1F1B, both": ("Schedule1F1B", 1, "step", [message("isend", 1)]),
    "1F1B, backward": ("Schedule1F1B", 1, "loss", [message("irecv", 1)]),
    "interleaved": ("ScheduleInterleaved1F1B", 0, "step", []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wait_in_a_schedule_of_torch_is_that_for_its_message(pool: Pool, case: str) -> None:
    name, sleeper, place, calls = CASES[case]
    seen = pool.run(wait_in_a_schedule, name, sleeper, place)[1 - sleeper]
    ((function, group, waits, line),) = seen
    expected = (calls[0].name, "pp") if calls else ("wait", "")
    assert ((function, group), waits) == (expected, calls)
    assert line.startswith("test_frame_calls.py:")
    assert line.endswith("(step)")


def watch_thread(thread: int) -> Callable[[], object]:
    """Return the call by which a guard reads the status of a thread."""
    guard: Any = SimpleNamespace(status=lambda _, frames, __: rank_status(0, {}, frames))
    tracker: Any = SimpleNamespace(leaving=None, current=None)
    return lambda: watch._status_of_thread(guard, tracker, thread)


def sample_thread(thread: int) -> Callable[[], object]:
    """Return the call by which a sampler looks at a thread."""
    sampling.MIN_PAUSE = sampling.MAX_PAUSE = 0
    sampler = alone()

    def sample() -> object:
        sampler.thread = thread
        return sampler._sample()

    return sample


RECURSIONS = """
def few(n):
    return [n] if n == 0 else [n] + few(n - 1)

def many(n, a=1, b=2):
    x = y = z = n
    return x if n == 0 else many(n - 1, x, y) + z
"""


def collect_while_another_thread_reads_frames(reader: str) -> None:
    """Let each collection of the thread that reads give way to the thread that is read."""
    read, ident, is_over = globals()[reader](threading.get_ident()), 0, threading.Event()

    def give_way(_phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() == ident:
            time.sleep(1e-5)

    def read_on() -> None:
        nonlocal ident
        ident = threading.get_ident()
        while not is_over.is_set():
            read()

    functions: dict[str, Any] = {}
    exec(compile(RECURSIONS, copy.__file__, "exec"), functions)  # frames of Python itself
    gc.freeze()  # a collection looks at few objects
    gc.callbacks.append(give_way)
    gc.set_threshold(1)
    thread = threading.Thread(target=read_on)
    thread.start()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        functions["few"](20)
        functions["many"](9)
    is_over.set()
    thread.join()
    print(gc.isenabled())


@pytest.mark.parametrize("reader", ["watch_thread", "sample_thread"])
def test_a_collection_while_frames_of_another_thread_are_read_crashes_nothing(reader: str) -> None:
    """Python 3.11 makes frames that are asked for, and may collect garbage at that moment."""
    module, name = __name__, collect_while_another_thread_reads_frames.__name__
    done = run_python(f"from {module} import {name}; {name}({reader!r})")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_child_that_is_forked_while_frames_are_read_collects_garbage() -> None:
    with no_collection():
        child = os.fork()
        if not child:
            signal.alarm(10)
            with no_collection():
                is_paused = not gc.isenabled()
            os._exit(0 if gc.isenabled() and is_paused == (sys.version_info[:2] == (3, 11)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()
