"""What the ranks of the tests of claims and seeds run. No pytest here: every child imports this."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import device_claim as claims_of_devices
from meshkit.launch import join


def refused(arguments: dict[str, Any]) -> Any:
    """What init raises, in how long, and what is left."""
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=30, **arguments)
    except meshkit.MeshkitError as error:
        requests = getattr(error, "requests", None)
        told = type(error).__name__, str(error), requests, time.monotonic() - began
        return (*told, dist.is_initialized())
    return "joined"


def seeds(by_rank: list[int | str | None]) -> Any:
    return refused({"seed": by_rank[meshkit.detect().rank]})


def one_clashes_before_another_comes(seconds: float) -> Any:
    """Rank 2 comes when the others have refused already."""
    rank = meshkit.detect().rank
    time.sleep(seconds if rank == 2 else 0)
    return seeds([1, 2, 1])


def draws() -> Any:
    """The first numbers of every generator, after seed='shared', twice in one job."""
    found = []
    for _ in range(2):
        meshkit.init(seed="shared")
        numbers = random.random(), float(np.random.rand()), float(torch.rand(()))
        found.append((*numbers, torch.initial_seed()))
    return found


def later_seeds_differ() -> Any:
    """A second init with another seed on one rank; that rank, or the other, is told."""
    meshkit.init(seed=1)
    dist.barrier()
    try:
        meshkit.init(seed=5 + meshkit.detect().rank)
        told = "accepted"
    except meshkit.DisagreementError as error:
        told = str(error)
    dist.barrier()
    return told


def share_a_device(uuids: list[str | None], backend: str) -> Any:
    """As if the ranks computed on devices with these UUIDs, through a backend of that name."""
    uuid = uuids[meshkit.detect().rank]
    claim = claims_of_devices.device_claim

    def played(call: Any, rank: int, device: torch.device, _: str) -> Any:
        return claim(call, rank, torch.device("cuda", 0), backend)

    claims_of_devices.device_uuid = lambda device: uuid
    join.device_claim = played
    return refused({})
