"""What the ranks of test_attempt run. No pytest here: every child imports this."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Strike


def begins(strike: Strike, port: int, counts: list[int], waits: list[float]) -> Any:
    """An attempt of a job: each rank is the only worker of an agent, which has so many restarts.

    Agents are numbered from the end, so that a new one is rank 0.
    """
    me, size = strike.rank, len(counts)
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(me), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update(TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT=str(counts[me]))
    os.environ["TORCHELASTIC_ERROR_FILE"] = f"/tmp/x_{size - me}/attempt_{counts[me]}/0/error.json"
    time.sleep(waits[me])
    strike.note()
    world = meshkit.init(arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return world.launcher, int(total)
