"""What the ranks of the launch tests run. No pytest here: every child imports this."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import record


def who() -> Any:
    world = meshkit.init()
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
    values = [getattr(world, field) for field in fields]
    return values, world.launcher, str(world.device), world.backend, torch.get_num_threads()


def rank_plus(number: int) -> int:
    return meshkit.detect().rank + number


def one_raises() -> None:
    if meshkit.detect().rank == 1:
        raise ValueError("boo")
    meshkit.init()
    dist.barrier()


def one_is_killed() -> None:
    meshkit.init(timeout=60)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def one_exits() -> None:
    if meshkit.detect().rank == 0:
        sys.exit(3)


def one_hangs() -> int:
    if meshkit.detect().rank == 1:
        time.sleep(600)
    return 0


class Odd(Exception):
    """An exception that pickle cannot rebuild."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def raises_odd() -> None:
    raise Odd(1, 2)


def returns_unpicklable() -> Any:
    return lambda: None


def returns_tensor() -> torch.Tensor:
    return torch.arange(3) + meshkit.detect().rank


def environment_of_child(name: str) -> str | None:
    return os.environ.get(name)


def seeded(seed: int | None) -> Any:
    meshkit.init(seed=seed)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def idempotent() -> Any:
    first = meshkit.init(timeout=50, seed=1)
    group = dist.group.WORLD
    again = meshkit.init()
    same = meshkit.init(timeout=50, backend="gloo", device="cpu", rank=first.rank)
    told = []
    for arguments in ({"backend": "nccl"}, {"rank": 5}, {"timeout": 9}, {"arrival_timeout": 9}):
        try:
            meshkit.init(**arguments)  # type: ignore[arg-type]
            told.append("accepted")
        except meshkit.LaunchError as error:
            told.append(str(error))
    return again is first, same == first, dist.group.WORLD is group, told


def at(method: str | None) -> dict[str, Any]:
    """Arguments of init for a meeting place; None leaves it to spawn's file."""
    return {} if method is None else {"init_method": method}


def again_and_again(times: int, method: str | None = None) -> Any:
    """init, one all-reduce, shutdown; on one store."""
    sums, generations = [], []
    for _ in range(times):
        meshkit.init(arrival_timeout=20, **at(method))
        total = torch.ones(1)
        dist.all_reduce(total)
        found = record.joined()
        sums.append(int(total))
        generations.append(found.generation if found else None)
        meshkit.shutdown()
        meshkit.shutdown()
        sums.append(dist.is_initialized())
    return sums, generations, len(record._RECORDS)


def one_never_joins(seconds: float, absent: int, method: str | None = None) -> Any:
    if meshkit.detect().rank == absent:
        time.sleep(seconds + 4)
        return None
    began = time.monotonic()
    try:
        meshkit.init(timeout=600, arrival_timeout=seconds, **at(method))
    except meshkit.RankTimeoutError as error:
        return str(error), error.missing_ranks, time.monotonic() - began, dist.is_initialized()
    return "joined"


def one_joins_late(seconds: float, folder: str) -> Any:
    """Rank 1 comes when the others have given up; then all try again."""
    gave_up = Path(folder) / "gave_up"
    while meshkit.detect().rank == 1 and not gave_up.exists():
        time.sleep(0.01)
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=seconds)
        first = "joined"
    except meshkit.RankTimeoutError as error:
        first = str(error)
        gave_up.touch()
    waited = time.monotonic() - began
    world = meshkit.init(arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return first, waited, int(total), world.rank


def worker_of_a_loader() -> list[int]:
    """A rank may have children of its own."""
    loader = torch.utils.data.DataLoader(list(range(4)), num_workers=1, batch_size=2)
    return [int(x) for batch in loader for x in batch]


def raw_errors() -> list[str]:
    """What used to come out as someone else's exception."""
    told = []
    for arguments in (
        {"init_method": "tcp://h:abc", "rank": 0, "world_size": 2},
        {"local_rank": "1"},
    ):
        try:
            meshkit.init(**arguments)
            told.append("accepted")
        except meshkit.LaunchError as error:
            told.append(str(error).splitlines()[0])
    world = meshkit.init(seed=np.int64(3))  # type: ignore[arg-type]
    try:
        meshkit.init(device="toaster")
        told.append("accepted")
    except meshkit.LaunchError as error:
        told.append(str(error).splitlines()[0])
    sources = {name for name in world.__dataclass_fields__ if getattr(world, name) is not None}
    told.append(str(sorted(sources - world.sources.keys() - {"launcher", "sources"})))
    return told


def times(**arguments: Any) -> Any:
    meshkit.init(**arguments)
    found = record.joined()
    return found and (found.timeout, found.arrival_timeout)


def times_of(arguments: dict[str, float]) -> Any:
    return times(**arguments)


def explicit(path: str) -> Any:
    """The arguments say another rank than the launcher does."""
    said = meshkit.detect()
    world = meshkit.init(
        init_method=f"file://{path}", rank=1 - said.rank, world_size=2, local_rank=0
    )
    return said.rank, world.rank, dist.get_rank(), world.local_rank, dict(world.sources)


def refused_arguments() -> list[str]:
    told = []
    bad: list[dict[str, Any]] = [
        {"seed": -1},
        {"seed": True},
        {"timeout": 0},
        {"arrival_timeout": float("nan")},
        {"device": "toaster"},
        {"backend": "smoke"},
        {"rank": -1},
        {"world_size": 0},
        {"rank": 9, "world_size": 8},
        {"init_method": "carrier://pigeon", "rank": 0, "world_size": 2},
    ]
    for arguments in bad:
        try:
            meshkit.init(**arguments)
            told.append("accepted")
        except meshkit.MeshkitError as error:
            told.append(f"{type(error).__name__}: {error}")
    told.append(str(dist.is_initialized()))
    return told


def read_by_joining() -> list[str]:
    """The modules of meshkit that init and build_mesh still had to read in this process."""
    before = set(sys.modules)
    meshkit.build_mesh(dp=-1, tp=2).close()
    return sorted(name for name in set(sys.modules) - before if name.startswith("meshkit"))
