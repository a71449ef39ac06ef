"""DeviceMesh and DTensor in torch's private API."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from meshkit.launch.torch_meshes import clear_dtensor_cache


@pytest.fixture
def default_group() -> Iterator[None]:
    """Create a default group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("default_group")
def test_the_cache_of_dtensor_is_cleared_without_a_slow_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stats = torch._C._get_DTensor_sharding_propagator_cache_stats
    tensor = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Replicate()])
    for _ in range(2):
        tensor + tensor
    assert stats()[0] > 0
    monkeypatch.delattr(torch.distributed.tensor, "debug", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.debug", None)  # cannot be imported
    clear_dtensor_cache()
    assert stats() == (0, 0)
