"""What the ranks of test_taken run. No pytest here: every child imports this."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import meet, taken
from meshkit.testing.faults import Strike


def joins(
    strike: Strike,
    ranks: list[int],
    sizes: list[int],
    after: dict[int, str],
    method: str,
    limit: float,
) -> Any:
    """This process is the rank that the list says, of a job of that size.

    All come at once but those in ``after``, each when a process has left that mark: ``"0.sits"``
    (it is about to check in), ``"1.tells"`` (it was refused, and those who wait are being told),
    ``"0.joined"``. A job that has joined runs until all of those have come to an end.
    """
    me = strike.rank
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(ranks[me]), WORLD_SIZE=str(sizes[me]))
    meet._object = then(lambda: leave(strike, "sits"), meet._object)
    if "1.tells" in after.values():  # so long the last one has to come while all are there
        taken.PATIENCE = 4.0
    leave(strike, "up")
    see(strike, *(f"{process}.up" for process in range(len(ranks))))
    see(strike, *([after[me]] if me in after else []))
    strike.note()
    with telling(strike):
        world = meshkit.init(init_method=method, arrival_timeout=limit)
    total = torch.ones(1)
    dist.all_reduce(total)
    leave(strike, "joined")
    see(strike, *(f"{process}.json" for process in after if process != me))
    dist.all_reduce(total)
    return os.getpid(), world.rank, int(total)


def leave(strike: Strike, mark: str) -> None:
    Path(strike.folder, f"{strike.rank}.{mark}").touch()


def see(strike: Strike, *marks: str) -> None:
    """Wait for marks, as long as the job may last."""
    while not all(Path(strike.folder, mark).exists() for mark in marks):
        time.sleep(0.01)


def then(after: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        made = call(*args, **options)
        after()
        return made

    return changed


@contextlib.contextmanager
def telling(strike: Strike) -> Iterator[None]:
    """Leave a mark when this process, refused, waits for the others of the job to be told."""
    sleep = then(lambda: leave(strike, "tells"), time.sleep)
    taken.time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    try:
        yield
    finally:
        taken.time = time


def starts_twice(strike: Strike, method: str, seconds: list[float]) -> Any:
    """The first start is killed in init while a rank is still to come; these are of the second."""
    time.sleep(seconds[strike.rank])
    meshkit.init(init_method=method, arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)


def killed_in_init(strike: Strike, method: str, absent: int) -> Any:
    if strike.rank == absent:
        return "never came"
    Thread(target=kill_when_two_wait, args=(strike, method), daemon=True).start()
    meshkit.init(init_method=method, arrival_timeout=30)


def kill_when_two_wait(strike: Strike, method: str) -> None:
    """None of them writes to the store then: a file that was cut short would be refused."""
    store = dist.FileStore(method.removeprefix("file://"), -1)
    while not store.check([f"meshkit/1/meeting/1/here/{rank}" for rank in (0, 1)]):
        time.sleep(0.05)
    strike.kill()


def one_stays_in_its_first_job(strike: Strike, method: str) -> Any:
    """Ranks 0 and 2 leave and join again; rank 1 is still in the first job."""
    meshkit.init(init_method=method, arrival_timeout=20)
    if strike.rank == 1:
        time.sleep(6)
        return "stayed"
    dist.barrier(dist.new_group([0, 2], use_local_synchronization=True))
    meshkit.shutdown()
    strike.note()
    meshkit.init(init_method=method, arrival_timeout=2)


def steps(strike: Strike, method: str, names: list[str]) -> None:
    """This process is a task of that Slurm step."""
    job, step = names[strike.rank].split(".")
    for name in ("MESHKIT_SPAWN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    task = {"PROCID": str(strike.rank), "NTASKS": "2", "LOCALID": "0", "NNODES": "2"}
    named = {**task, "JOB_ID": job, "STEP_ID": step, "NODEID": str(strike.rank)}
    os.environ.update({f"SLURM_{name}": value for name, value in named.items()})
    os.environ["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
    meshkit.init(init_method=method, arrival_timeout=20)
