"""A Megatron block in the patterns of a mesh: each move of a tensor is one line.

    torchrun --nproc-per-node 2 examples/megatron_block.py

Between the layers every rank of tp holds some tokens (sequence parallelism, arXiv:2205.05198). In
front of columns the ranks gather all tokens and go on with columns of their own, so the mark is
``*tp``. Behind rows each rank holds a part of every sum, and gets the sums of its tokens. The loss
is that of a vocabulary divided over tp (Megatron-LM, arXiv:1909.08053): no rank holds all logits of
a token. The values and gradients are those of one process.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import meshkit

CUTS = {  # the part of this rank in each weight
    "norms": "n d -> n d",
    "qkv": "three h e d -> three h/tp e d",
    "out": "d h e -> d h/tp e",
    "up": "f d -> f/tp d",
    "down": "d f -> d f/tp",
    "head": "v d -> v/tp d",
}
Weights = dict[str, Tensor]


def draw(dim: int, heads: int, vocabulary: int) -> Weights:
    """Return whole weights, equal on ranks with equal seeds."""
    d, e = dim, dim // heads
    shapes = {"norms": (3, d), "qkv": (3, heads, e, d), "out": (d, heads, e), "up": (4 * d, d)}
    shapes |= {"down": (d, 4 * d), "head": (vocabulary, d)}
    return {n: torch.randn(s, dtype=torch.float64) / d**0.5 for n, s in shapes.items()}


class MegatronBlock:
    """Attention and two linear layers over tp, and the loss over a divided vocabulary."""

    def __init__(self, mesh: meshkit.Mesh, whole: Weights) -> None:
        self.mesh = mesh
        parts = {name: mesh.redistribute(whole[name], cut) for name, cut in CUTS.items()}
        self.weights = {name: part.clone().requires_grad_() for name, part in parts.items()}
        self.share = mesh.redistribution("n d =tp -> n d *tp")
        self.gather = mesh.redistribution("b s/tp d -> b s d *tp")
        self.scatter = mesh.redistribution("b s d +tp -> b s/tp d")

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of all tokens, from x (batch, tokens / tp, d) and all targets."""
        w, norms = self.weights, self.share(self.weights["norms"])
        full = self.gather(F.layer_norm(x, x.shape[-1:], norms[0]))
        q, k, v = torch.einsum("bsd,thed->tbhse", full, w["qkv"])
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.scatter(torch.einsum("bhse,dhe->bsd", heads, w["out"]))
        full = self.gather(F.layer_norm(x, x.shape[-1:], norms[1]))
        x = x + self.scatter(F.linear(F.gelu(F.linear(full, w["up"])), w["down"]))
        full = self.gather(F.layer_norm(x, x.shape[-1:], norms[2]))
        return cross_entropy(self.mesh, F.linear(full, w["head"]), targets).mean()


def cross_entropy(mesh: meshkit.Mesh, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each token, (b, s), from logits (b, s, v / tp)."""
    top = mesh.redistribute(logits.detach().amax(-1), "b s +tp -> b s =tp", op="max")
    logits = logits - top[..., None]
    local = targets - mesh.coordinate["tp"] * logits.shape[-1]
    is_here = (local >= 0) & (local < logits.shape[-1])
    target = logits.gather(-1, (local * is_here)[..., None])[..., 0] * is_here
    sums = torch.stack((logits.exp().sum(-1), target))
    total, target = mesh.redistribute(sums, "two b s +tp -> two b s =tp")
    return total.log() - target


def main() -> float:
    """Run one forward and backward on the ranks of tp; return the loss."""
    meshkit.init(seed=0)
    with meshkit.build_mesh(dp=1, tp=-1) as mesh, mesh.checked():
        block = MegatronBlock(mesh, draw(32, 4, 64))
        x = torch.randn(2, 16, 32, dtype=torch.float64)
        x = mesh.redistribute(x, "b s d -> b s/tp d").requires_grad_()
        loss = block.loss(x, torch.randint(64, (2, 16)))
        loss.backward()
        if mesh.rank == 0:
            print(f"loss {float(loss):.15f} on tp={mesh.size('tp')}")
    meshkit.shutdown()
    return float(loss.detach())


if __name__ == "__main__":
    main()
