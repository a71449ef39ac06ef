"""Causal attention over a sequence that is divided over the ranks of sp, in two ways.

``ulysses`` (DeepSpeed-Ulysses, arXiv:2309.14509) exchanges slices of tokens for slices of heads
with an all-to-all, so every rank has all tokens of some heads. ``ring`` (Ring Attention,
arXiv:2310.01889) keeps the queries in place and passes blocks of keys and values around the ranks.
With sp=4, this is the block on each rank, and the computed part of it::

            contiguous slices             zigzag slices
            sp=0  sp=1  sp=2  sp=3        sp=0  sp=1  sp=2  sp=3
    step 0  [0]   [1]   [2]   [3]         [0]   [1]   [2]   [3]
    step 1   3    [0]   [1]   [2]         3/2   0/2   1/2   2/2     [j] all of j, j/2 half of it,
    step 2   2     3    [0]   [1]         2/2   3/2   0/2   1/2     j only passed on: the future
    step 3   1     2     3    [0]         1/2   2/2   3/2   0/2

The positions of a ``SequencePlan`` decide which keys a query attends to. With contiguous slices the
last rank computes most, and all others wait for it. With zigzag slices all ranks compute equally
much. The softmax over blocks is the online softmax of FlashAttention (arXiv:2205.14135).

Both take ``qkv``, (3, batch, tokens / sp, heads, d), and return (batch, tokens / sp, heads, d).
``plan`` holds the positions of the tokens, as ``mesh.sequence(...).plan``.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshkit import Mesh, SequencePlan


def ulysses(qkv: Tensor, mesh: Mesh, plan: SequencePlan) -> Tensor:
    """Compute all tokens of some heads. sp must divide the heads. Collective over sp."""
    q, k, v = mesh.redistribute(qkv, "three b s/sp h d -> three b h/sp s d", s=plan)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mesh.redistribute(mixed, "b h/sp s d -> b s/sp h d", s=plan)


def ring(qkv: Tensor, mesh: Mesh, plan: SequencePlan) -> Tensor:
    """Compute all heads of some tokens. sp must divide the tokens. Collective over sp.

    A block in the future is sliced to no query. So it costs nothing, and its gradient is zero.
    """
    sp, here = mesh.size("sp"), mesh.coordinate["sp"]
    q, kv = qkv[0].transpose(1, 2), qkv[1:].transpose(2, 3)  # ... heads, tokens / sp, d
    wide = q.to(torch.promote_types(q.dtype, torch.float32))  # precision of the sums
    mixed, lse = torch.zeros_like(wide), torch.full_like(wide[..., :1], -torch.inf)
    for step in range(sp):
        kv = mesh.shift(kv, "sp") if step else kv
        first, end, future = visible_keys(plan, here, (here - step) % sp)
        k, v = kv[..., :end, :].to(wide.dtype)
        block_scores = scores(wide[..., first:, :], k, future)
        later = merge(mixed[..., first:, :], lse[..., first:, :], block_scores, v)
        mixed = torch.cat((mixed[..., :first, :], later[0]), -2)
        lse = torch.cat((lse[..., :first, :], later[1]), -2)
    return mixed.to(q.dtype).transpose(1, 2)


def visible_keys(plan: SequencePlan, part: int, owner: int) -> tuple[int, int, Tensor]:
    """Return the keys of an owner that queries of a part attend to. Positions ascend in both.

    Returns:
        The first query that attends to a key, the end of the keys that a query attends to, and
        bool (queries, keys), True for the pairs in the future.
    """
    mine, theirs = plan.positions(part), plan.positions(owner)
    first, end = np.searchsorted(mine, theirs[0]), np.searchsorted(theirs, mine[-1], "right")
    return int(first), int(end), torch.from_numpy(theirs[:end] > mine[first:, None])


def scores(q: Tensor, k: Tensor, future: Tensor) -> Tensor:
    """Return the scores, (batch, heads, queries, keys), with -inf for keys in the future."""
    products = q @ k.mT / q.shape[-1] ** 0.5
    return products.masked_fill(future.to(q.device), -torch.inf) if future.any() else products


def merge(mixed: Tensor, lse: Tensor, block_scores: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of values after one more block, and the log of the sum of its weights.

    Args:
        mixed: (batch, heads, queries, d), the mean so far.
        lse: (batch, heads, queries, 1), the log of the sum of exp(scores) so far; -inf at first.
        block_scores: (batch, heads, queries, keys), the scores of the block.
        v: (batch, heads, keys, d), the values of the block.
    """
    total = torch.logaddexp(lse, block_scores.logsumexp(-1, keepdim=True))
    return mixed * (lse - total).exp() + (block_scores - total).exp() @ v, total


KINDS = {"ulysses": ulysses, "ring": ring}
