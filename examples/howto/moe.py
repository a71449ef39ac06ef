"""Train experts that are divided over ep, on a view of the ranks of dp.

Start it with ``torchrun --nproc-per-node 4 moe.py``.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

import meshkit

EXPERTS, DIM = 4, 8


class Experts(nn.Module):
    """The experts of this rank. Each token goes to one expert, on whichever rank it is."""

    def __init__(self, mesh: meshkit.Mesh) -> None:
        super().__init__()
        self.mesh, own = mesh, EXPERTS // mesh.size("ep")
        self.first = mesh.coordinate["ep"] * own
        self.router = nn.Linear(DIM, EXPERTS)
        every = [nn.Linear(DIM, DIM) for _ in range(EXPERTS)]  # equal on all ranks, by the seed
        self.experts = nn.ModuleList(every[self.first : self.first + own])
        for weight in self.experts.parameters():
            # the mark of Megatron for weights that differ along ep
            weight.allreduce = False  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (tokens, DIM) to the same shape."""
        scores, chosen = self.router(tokens).softmax(-1).max(-1)
        order = chosen.argsort()  # the tokens of the first expert first
        counts = chosen.bincount(minlength=EXPERTS).unflatten(0, (-1, len(self.experts))).sum(1)
        rows, back = self.mesh.exchange(tokens[order], "ep", counts)
        expert_of, _ = self.mesh.exchange(chosen[order], "ep", counts)
        done = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts, self.first):
            done = done + expert(rows) * (expert_of == number)[:, None]
        home, _ = self.mesh.exchange(done, "ep", back)
        return torch.empty_like(tokens).index_copy(0, order, home) * scores[:, None]


def main(dp: int = 2, ep: int = 2) -> list[float]:
    """Train for some steps; print and return the loss over the global batch."""
    device, losses = meshkit.init(seed=0).device, []
    data = torch.randn(64, DIM).to(device)
    with meshkit.build_mesh(dp=-1) as mesh, mesh.view(dp=dp, ep=ep) as view:
        model = Experts(view).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        plan = mesh.batch(global_batch=64, micro_batch=8)
        for step in range(4):
            total = torch.zeros((), device=device)
            for micro in plan.micro_batches(step):
                x = data[micro.samples % len(data)]
                loss = (model(x) - x).square().mean() * micro.weight
                loss.backward()
                total += loss.detach()
            for weight in model.parameters():
                # the gradient of an expert has the tokens of all ranks along ep already
                experts = not getattr(weight, "allreduce", True)
                if weight.grad is not None:
                    dist.all_reduce(weight.grad, group=view.gradient_group(experts=experts))
                    weight.grad.div_(mesh.size())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mesh.redistribute(total, "+dp -> =dp", op="avg").item())
            if mesh.rank == 0:
                print(f"step {step}  loss {losses[-1]:.4f}")
        view.check_parameters(model)  # raises if the replicas differ
    meshkit.shutdown()
    return losses


if __name__ == "__main__":
    main()
