"""What the ranks of test_taken run. No pytest here: every child imports this."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Strike


def joins(
    strike: Strike,
    ranks: list[int],
    sizes: list[int],
    seconds: list[float],
    method: str,
    limit: float,
) -> Any:
    """This process is the rank that the list says, of a job of that size, and comes then.

    The seconds count from when those before it have come: a fork may be late.
    """
    me = strike.rank
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(ranks[me]), WORLD_SIZE=str(sizes[me]))
    before = [other for other, at in enumerate(seconds) if at < seconds[me]]
    while not all(Path(strike.folder, f"{other}.fired").exists() for other in before):
        time.sleep(0.01)
    time.sleep(seconds[me] - max((seconds[other] for other in before), default=0.0))
    strike.note()
    world = meshkit.init(init_method=method, arrival_timeout=limit)
    total = torch.ones(1)
    dist.all_reduce(total)
    time.sleep(max(seconds) + 2 - seconds[me])  # the job runs while others come
    dist.all_reduce(total)
    return os.getpid(), world.rank, int(total)


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
    strike.later(1.5, strike.kill)
    meshkit.init(init_method=method, arrival_timeout=30)


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
