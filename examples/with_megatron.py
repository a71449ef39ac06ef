"""Use parallel layers of Megatron-core on a mesh: dp=2, and each layer split over tp=2.

    torchrun --nproc-per-node 4 examples/with_megatron.py

``process_groups`` returns the groups of a mesh as the ``ProcessGroupCollection`` of Megatron's
modules. ``megatron.core.parallel_state`` is not initialized, and no group is created twice.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig

import meshkit
from meshkit.interop import megatron


def main() -> int:
    """Train for some steps; return 0 if the loss fell."""
    world = meshkit.init()
    dense, _ = megatron.layouts(world.world_size, tp=2)
    with meshkit.build_mesh(dense.sizes, order=dense.axes, groups=megatron.groups(dense)) as mesh:
        groups = megatron.process_groups(mesh)
        if mesh.rank == 0:
            sys.stdout.write(f"{groups}\n")
        config = TransformerConfig(
            num_layers=1,
            hidden_size=16,
            num_attention_heads=2,
            tensor_model_parallel_size=mesh.size("tp"),
            use_cpu_initialization=True,  # the same weights, however they are split
            gradient_accumulation_fusion=False,
        )
        options = {"config": config, "init_method": torch.nn.init.xavier_normal_, "bias": False}
        options |= {"tp_group": groups.tp, "skip_bias_add": False}
        up = ColumnParallelLinear(16, 64, gather_output=False, **options).to(world.device)
        down = RowParallelLinear(64, 16, input_is_parallel=True, **options).to(world.device)
        weights = [*up.parameters(), *down.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=1e-2)
        torch.manual_seed(mesh.coordinate["dp"])  # ranks of one dp read the same samples
        x = torch.randn(64, 16, device=world.device)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = (down(torch.relu(up(x)[0]))[0] - x.roll(1, -1)).square().mean()
            (loss / mesh.size("dp", "cp")).backward()
            for weight in weights:
                dist.all_reduce(weight.grad, group=groups.dp_cp)
            optimizer.step()
            losses.append(float(loss.detach()))
        if mesh.rank == 0:
            sys.stdout.write(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}\n")
        return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        meshkit.shutdown()
