"""Accelerate on a mesh: its data loader, and FSDP2 over the names that it looks for.

    torchrun --nproc-per-node 4 examples/with_accelerate.py

Needs ``pip install 'meshkit[interop]'``. With GPUs the same config goes into ``Accelerator(
parallelism_config=config, fsdp_plugin=...)``; without, Accelerate refuses it, and the model is
handed to torch's ``fully_shard`` over the slice of the DeviceMesh that Accelerate would take.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import meshkit
from meshkit.interop.accelerate import parallelism_config


def main() -> tuple[list[list[int]], float]:
    """Train; returns the samples of this rank and its last loss."""
    seen: list[list[int]] = []
    meshkit.init(device="cpu")
    with meshkit.build_mesh(dp=-1, tp=2) as mesh:
        config, view = parallelism_config(mesh)
        loader = prepare_data_loader(
            DataLoader(TensorDataset(torch.arange(16)), batch_size=2),
            device=Accelerator(cpu=True).device,
            put_on_device=True,
            torch_device_mesh=config.device_mesh,
        )
        torch.manual_seed(0)  # equal weights on every rank
        model = torch.nn.Linear(1, 1)
        fully_shard(model, mesh=config.device_mesh[tuple(config.fsdp_dim_names)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for (batch,) in loader:
            seen.append(batch.tolist())
            loss = (model(batch[:, None].float()) - 2 * batch[:, None]).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        sys.stdout.write(f"{mesh.coordinate} saw {seen}, last loss {loss.item():.3f}\n")
        view.close()
    return seen, loss.item()


if __name__ == "__main__":
    try:
        main()
    finally:
        meshkit.shutdown()
