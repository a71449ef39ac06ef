"""Train a model whose layers are divided over tp, and whose weights are sharded over dp.

Start it with ``torchrun --nproc-per-node 4 fsdp_tp.py``.
"""

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import Linear, ReLU, Sequential, Tanh

import meshkit

LAYERS = {"0": ColwiseParallel(), "2": RowwiseParallel()}  # by the names of the modules


def main(dp: int = 2, tp: int = 2) -> list[float]:
    """Train for some steps; print and return the loss over the global batch."""
    device, losses = meshkit.init(seed=0).device, []
    data = torch.randn(64, 8).to(device)
    with meshkit.build_mesh(dp=dp, tp=tp) as mesh:
        model = Sequential(Linear(8, 32), ReLU(), Linear(32, 8), Tanh()).to(device)
        parallelize_module(model, mesh.device_mesh("tp"), LAYERS)
        fully_shard(model, mesh=mesh.device_mesh("dp"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)
        plan = mesh.batch(global_batch=64, micro_batch=8)
        for _ in range(4):
            total = torch.zeros((), device=device)
            for micro in plan.micro_batches(0):
                x = data[micro.samples]
                with plan.sync_on_last(model, micro):
                    loss = (model(x) - x.tanh()).square().mean() * micro.weight
                    loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mesh.redistribute(total, "+dp =tp -> =dp =tp", op="avg").item())
            if mesh.rank == 0:
                print(f"step {len(losses)}  loss {losses[-1]:.4f}")
        mesh.check_parameters(model)
    meshkit.shutdown()
    return losses


if __name__ == "__main__":
    main()
