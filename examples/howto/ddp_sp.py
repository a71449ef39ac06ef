"""Train with DDP on sequences that are divided over sp.

Start it with ``torchrun --nproc-per-node 4 ddp_sp.py``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import meshkit

SEQ, HEADS, DIM = 32, 4, 16


class Model(nn.Module):
    """One layer of causal attention, and the loss of this rank's tokens."""

    def __init__(self, mesh: meshkit.Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.bytes = nn.Embedding(256, DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 256)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss of (batch, tokens / sp) tokens and the tokens that follow them."""
        qkv = self.qkv(self.bytes(tokens)).unflatten(2, (3, HEADS, -1)).movedim(2, 0)
        q, k, v = self.mesh.redistribute(qkv, "three b s/sp h d -> three b h/sp s d")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # all tokens, some heads
        mixed = self.mesh.redistribute(mixed, "b h/sp s d -> b s/sp h d").flatten(2)
        return F.cross_entropy(self.out(mixed).flatten(0, 1), following.flatten())


def main(dp: int = 2, sp: int = 2) -> list[float]:
    """Train for some steps; print and return the loss over the global batch."""
    device, losses = meshkit.init(seed=0).device, []  # every rank draws the same numbers
    data = torch.arange(64 * (SEQ + 1)).reshape(64, SEQ + 1) % 256
    with meshkit.build_mesh(dp=dp, sp=sp) as mesh:
        model = Model(mesh).to(device)
        # gradients are averaged over dp and over sp: not over dp alone
        ddp = DistributedDataParallel(model, process_group=mesh.gradient_group())
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.02)
        plan = mesh.batch(global_batch=16, micro_batch=4)
        shard = mesh.sequence(SEQ)  # the tokens of this rank
        for step in range(4):
            total = torch.zeros((), device=device)
            for micro in plan.micro_batches(step):
                rows = data[micro.samples].to(device)
                tokens, following = shard.take(rows[:, :-1]), shard.take(rows[:, 1:])
                with plan.sync_on_last(ddp, micro):
                    loss = ddp(tokens, following) * micro.weight
                    loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mesh.redistribute(total, "+dp +sp -> =dp =sp", op="avg").item())
            if mesh.rank == 0:
                print(f"step {step}  loss {losses[-1]:.4f}")
        mesh.check_parameters(ddp)  # raises if the replicas differ
    meshkit.shutdown()
    return losses


if __name__ == "__main__":
    main()
