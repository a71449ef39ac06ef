"""Train a model whose layers are divided over pp, with torch's schedule.

Start it with ``torchrun --nproc-per-node 4 pipeline.py``.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import meshkit

DIM = 8


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of one micro batch."""
    return (y - target).square().mean()


def main(dp: int = 2, pp: int = 2) -> list[float]:
    """Train for some steps; print and return the loss over the global batch."""
    losses = []
    device = meshkit.init(seed=0).device or torch.device("cpu")
    data = torch.randn(64, DIM).to(device)
    layers = [nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(4)]  # equal by the seed
    with meshkit.build_mesh(dp=dp, pp=pp) as mesh:
        stage, own = mesh.coordinate["pp"], len(layers) // pp
        model = nn.Sequential(*layers[stage * own : (stage + 1) * own]).to(device)
        plan = mesh.batch(global_batch=64, micro_batch=4)
        part = PipelineStage(model, stage, pp, device, group=mesh.group("pp"))
        schedule = Schedule1F1B(part, plan.accumulation_steps, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        last = stage == pp - 1
        for step in range(4):
            x = data[plan.samples(step).flatten() % len(data)]  # all micro batches of the step
            parts: list[Tensor] = []
            inputs = [x] if stage == 0 else []
            options: dict[str, Any] = {"target": x, "losses": parts} if last else {}
            schedule.step(*inputs, **options)
            for weight in model.parameters():
                if weight.grad is not None:
                    dist.all_reduce(weight.grad, group=mesh.gradient_group())
                    weight.grad.div_(mesh.size("dp"))
            optimizer.step()
            optimizer.zero_grad()
            mean = torch.stack(parts).mean().detach() if last else torch.zeros((), device=device)
            mean = mesh.redistribute(mean, f"+dp @pp:{pp - 1} -> =dp =pp", op="avg")
            losses.append(mean.item())
            if mesh.rank == 0:
                print(f"step {step}  loss {losses[-1]:.4f}")
    meshkit.shutdown()
    return losses


if __name__ == "__main__":
    main()
