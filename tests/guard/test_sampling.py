"""The own times of live ranks, and the line that names a rank which is late of its own."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit import Mesh
from meshkit.guard import sampling
from meshkit.guard.sampling import NOT_MEASURED, StepSampler
from meshkit.launch.world import free_port
from tests.pool import Pool

RANKS = 8
STEPS = 60
START = 15  # the first step in which a rank is late
Late = tuple[int, str, float]  # the rank, the part of the step, the seconds


@contextmanager
def log() -> Iterator[list[str]]:
    """Collect the lines of meshkit's log."""
    lines = list[str]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("meshkit").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("meshkit").removeHandler(handler)


@contextmanager
def job(url: str) -> Iterator[None]:
    """Join a job with a store at an address, instead of the job of the pool."""
    meshkit.shutdown()
    meshkit.init(init_method=url)
    try:
        yield
    finally:
        meshkit.shutdown()


def take_step(mesh: Mesh, step: int, late: Late | None) -> None:
    """Take a step of 10 ms, with collectives over each axis."""

    def work(part: str, seconds: float) -> None:
        is_late = late is not None and late[:2] == (mesh.rank, part) and step >= START
        time.sleep(seconds + (late[2] if late is not None and is_late else 0))

    work("loader", 0.001)
    with mesh.guard(timeout=60, stragglers=True):
        work("forward", 0.004)
        dist.all_reduce(torch.ones(4), group=mesh.group("tp"))
        work("backward", 0.004)
        dist.all_reduce(torch.ones(4), group=mesh.group("dp"), async_op=True).wait()


def run_steps(url: str, runs: list[Late | None]) -> list[list[str]]:
    """Return the log of each run, each on a mesh of its own."""
    logs = []
    with job(url):
        for late in runs:
            with log() as lines, meshkit.build_mesh(dp=4, tp=2) as mesh:
                for step in range(1, STEPS + 1):
                    take_step(mesh, step, late)
            logs.append(lines)
    return logs


def name_of(late: Late) -> str:
    return f"dp={late[0] // 2} tp={late[0] % 2} (rank {late[0]}, host "


def check(pool: Pool, runs: list[Late | None]) -> tuple[int, int]:
    """Return in how many runs the late rank was named, and how many other lines there are."""
    url = f"tcp://127.0.0.1:{free_port()}"
    first, *others = pool.run(run_steps, url, runs, timeout=30 + 20 * len(runs))
    assert not any(any(lines) for lines in others)  # the first rank of the mesh alone reports
    named = wrong = 0
    for late, lines in zip(runs, first, strict=True):
        good = [line for line in lines if late is not None and line.startswith(name_of(late))]
        named += len(good) == 1
        wrong += len(lines) - len(good)
        assert all(line.endswith("of its own") for line in good)
    return named, wrong


def test_a_rank_that_is_late_of_its_own_is_named(pool: Pool) -> None:
    """Lateness of 50 ms, which a loaded machine shows too; on a quiet one 5 ms suffice."""
    runs: list[Late | None] = [(5, "backward", 0.05), (2, "loader", 0.05)]
    assert check(pool, runs) == (2, 0)


RUNS = [pytest.param(4, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("count", RUNS)
def test_live_runs_name_the_late_rank(pool: Pool, count: int) -> None:
    chance = random.Random(0)
    parts = ["loader", "forward", "backward"]
    runs: list[Late | None] = [
        (chance.randrange(RANKS), chance.choice(parts), chance.uniform(0.03, 0.05))
        for _ in range(count)
    ]
    named, wrong = check(pool, runs)
    assert named >= count - 1
    assert wrong == 0


@pytest.mark.parametrize("count", RUNS)
def test_live_runs_without_a_late_rank_name_none(pool: Pool, count: int) -> None:
    assert check(pool, [None] * count) == (0, 0)


def sampler_of(mesh: Mesh) -> StepSampler:
    sampler = mesh._guard_state.sampler
    assert sampler is not None
    return sampler


class Slow(torch.autograd.Function):
    """An identity whose backward takes 40 ms on rank 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        time.sleep(0.04 if dist.get_rank() == 1 else 0)
        return grads[0]


def train(url: str) -> tuple[float, float] | None:
    """Return the median seconds of a step, and of this rank's own part, in DDP."""
    with job(url), meshkit.build_mesh(dp=RANKS) as mesh:
        model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=mesh.group("dp"))
        for _ in range(12):
            with mesh.guard(timeout=60, stragglers=True):
                model(Slow.apply(torch.ones(2, 4, requires_grad=True))).sum().backward()
        steps = torch.tensor([*sampler_of(mesh).steps.values()])
        length, own = steps.median(dim=0).values.tolist()
        return length, own


def test_a_wait_of_ddp_in_the_backward_is_not_own_time(pool: Pool) -> None:
    """The peers of rank 1 wait 40 ms in C++, where the backward of DDP ends."""
    times = pool.run(train, f"tcp://127.0.0.1:{free_port()}")
    own = [own for _, own in times]
    assert min(length for length, _ in times) >= 0.04
    assert own[1] >= 0.03
    assert sorted(own)[len(own) // 2] <= own[1] - 0.015


def measure_in_a_file(url: str) -> tuple[list[str], bool]:
    """Return the log, and whether a thread measures."""
    with job(url), log() as lines, meshkit.build_mesh(dp=RANKS) as mesh:
        for _ in range(2):
            with mesh.guard(timeout=60, stragglers=True):
                mesh.barrier()
        runs = any(thread.name == "meshkit-steps" for thread in threading.enumerate())
    return lines, runs


def test_a_job_without_a_tcp_store_measures_nothing_and_says_so_once(
    pool: Pool, tmp_path: Path
) -> None:
    first, *others = pool.run(measure_in_a_file, f"file://{tmp_path}/store")
    assert first == ([NOT_MEASURED], False)
    assert others == [([], False)] * (RANKS - 1)


def count_work(url: str) -> tuple[int, int, int, bool]:
    """Return the steps, samples and posts of this rank, and whether its thread has ended."""
    counts = {"samples": 0, "posts": 0}
    with pytest.MonkeyPatch().context() as patch:
        for name, method in (("samples", "may_wait"), ("posts", "_text")):
            owner: Any = sampling if name == "samples" else StepSampler
            original = getattr(owner, method)

            def counted(*args: Any, name: str = name, original: Any = original) -> Any:
                counts[name] += 1
                return original(*args)

            patch.setattr(owner, method, counted)
        with job(url), meshkit.build_mesh(dp=4, tp=2) as mesh:
            for step in range(1, STEPS + 1):
                take_step(mesh, step, None)
            worker = sampler_of(mesh).worker
        assert worker is not None
        worker.join(10)
        return STEPS, counts["samples"], counts["posts"], not worker.is_alive()


def test_a_step_costs_few_samples_and_a_post_in_six_steps(pool: Pool) -> None:
    """A sample takes 25 microseconds, and a post 150; closing the mesh ends the thread."""
    for steps, samples, posts, has_ended in pool.run(count_work, f"tcp://127.0.0.1:{free_port()}"):
        assert samples <= 8 * steps  # a step that lasts longer than the last one has a few more
        assert posts <= steps // sampling.BATCH
        assert has_ended


class Alone:
    """A job and a store of one process, for a sampler without a job."""

    is_file = False
    world = SimpleNamespace(rank=0)

    def __init__(self, text: bytes = b"[]") -> None:
        self.pid, self.text = os.getpid(), text

    def try_run(self, work: Callable[[], Any]) -> Any:
        return work()

    def get_all(self, keys: list[str]) -> list[bytes]:
        return [self.text] * len(keys)


def alone(text: bytes = b"[]") -> StepSampler:
    job: Any = Alone(text)
    return StepSampler(meshkit.Layout(dp=2), job, job)


def test_a_process_that_is_forked_in_a_step_leaves_it() -> None:
    """Its thread is not in the child, and may hold the lock at the fork."""
    sampler = alone()
    with ExitStack() as stack:
        stack.enter_context(sampler.measure())
        sampler.lock.acquire()
        child = os.fork()
        if not child:
            signal.alarm(10)
            stack.close()
            os._exit(0)
        sampler.lock.release()
    sampler.stop()
    assert os.waitpid(child, 0)[1] == 0


def test_a_foreign_value_ends_the_measurement_with_one_line() -> None:
    sampler, worker = alone(b"theirs"), None
    with log() as lines:
        for _ in range(200):
            with sampler.measure():
                worker = worker or sampler.worker
                time.sleep(0.002)
    assert worker is not None
    worker.join(10)
    assert not worker.is_alive()
    assert sampler.store is None
    (line,) = lines
    assert line.startswith("the steps of ranks are measured no more: the key 'own/1' of")


@given(st.integers(2, 200_000), st.floats(0.001, 100), st.floats(0.001, 100))
def test_all_ranks_post_the_same_steps(ranks: int, seconds: float, others: float) -> None:
    """Ranks measure other seconds, and begin to post at other times: their last 16 steps meet."""
    interval, theirs = (sampling.steps_between_posts(ranks, each) for each in (seconds, others))
    assert max(interval, theirs) % min(interval, theirs) == 0
    assert interval * max(seconds, sampling.MIN_PAUSE) >= ranks / sampling.POSTS_PER_SECOND
