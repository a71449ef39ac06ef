"""One step of FSDP2 and tensor parallelism on a DeviceMesh, beside the same step of one process."""

from __future__ import annotations

import copy

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def equals_one_process(data: DeviceMesh, tp: DeviceMesh | None) -> list[bool]:
    """Return for each parameter whether its gradient is that of one process.

    The ranks of ``data`` read different samples; if it has two dims, the first one replicates.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    whole = copy.deepcopy(model)
    if tp is not None:
        parallelize_module(model, tp, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=data)
    inputs = torch.arange(64.0).reshape(8, 8).sin()
    index = int((data.mesh == torch.distributed.get_rank()).flatten().nonzero())
    model(inputs.chunk(data.size())[index]).square().mean().backward()
    whole(inputs).square().mean().backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return [torch.allclose(a.grad.full_tensor(), b.grad, atol=1e-6) for a, b in pairs]  # type: ignore[union-attr]
