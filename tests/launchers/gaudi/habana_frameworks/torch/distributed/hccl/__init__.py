"""The backend hccl, played by gloo through torch's public registration."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("hccl", create, devices=["hpu", "cpu"])
