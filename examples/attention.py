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
much. The softmax over blocks is the online softmax of FlashAttention (arXiv:2205.14135), whose
backward computes the weights again.

Both take ``qkv``, (3, batch, tokens / sp, heads, d), and return (batch, tokens / sp, heads, d).
``plan`` holds the positions of the tokens, as ``mesh.sequence(...).plan``. None means contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable

import meshkit

Communication = Callable[[Tensor, dist.ProcessGroup], Tensor]
Order = Literal["contiguous", "zigzag"]
Plan = meshkit.SequencePlan | None


def positions(plan: meshkit.SequencePlan, part: int, device: torch.device) -> Tensor:
    """Return the positions of the sequence that a part holds: int64 (tokens,)."""
    return torch.from_numpy(plan.positions(part)).to(device)


# ---------------------------------------------------------------- communication with gradients


def all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of a group's tensors. Collectives need contiguous memory."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def all_to_all(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send block i of dim 0 to rank i; the block received from rank i becomes block i."""
    source = x.contiguous()
    received = torch.empty_like(source)
    dist.all_to_all_single(received, source, group=group)
    return received


def identity(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensor unchanged."""
    return x.view_as(x)


class Communicate(torch.autograd.Function):
    """Communication with a gradient: one function for forward, and one for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        forward_move: Communication,
        backward_move: Communication,
        group: dist.ProcessGroup,
    ) -> Tensor:
        """Communicate the tensor."""
        ctx.backward_move, ctx.group = backward_move, group
        return forward_move(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Communicate the gradient."""
        return ctx.backward_move(grad, ctx.group), None, None, None


def communicate(
    x: Tensor, forward_move: Communication, backward_move: Communication, group: dist.ProcessGroup
) -> Tensor:
    """Apply one function to a tensor, and the other to its gradient; not in a group of one."""
    move: Callable[..., Tensor] = Communicate.apply
    return x if group.size() == 1 else move(x, forward_move, backward_move, group)


# ---------------------------------------------------------------------------------- Ulysses


def ulysses(qkv: Tensor, mesh: meshkit.Mesh, plan: Plan = None) -> Tensor:
    """Compute all tokens of some heads. sp must divide the heads. Collective over sp.

    Any order of tokens takes the same time. A contiguous order needs no mask (tokens, tokens).
    """
    group, sp = mesh.group("sp"), mesh.size("sp")
    qkv = rearrange(qkv, "three b s (n h) d -> n three b s h d", n=sp)
    qkv = communicate(qkv, all_to_all, all_to_all, group)
    q, k, v = rearrange(qkv, "n three b s h d -> three b h (n s) d")
    if plan is None or plan.order == "contiguous":
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        token_positions = torch.cat([positions(plan, part, q.device) for part in range(sp)])
        mask = token_positions[:, None] >= token_positions
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    mixed = rearrange(mixed, "b h (n s) d -> n b s h d", n=sp)
    return rearrange(communicate(mixed, all_to_all, all_to_all, group), "n b s h d -> b s (n h) d")


# ------------------------------------------------------------------------------------- ring


@dataclass(frozen=True)
class VisibleKeys:
    """The keys of one part that queries of another part attend to; positions ascend in both.

    Attributes:
        queries: the queries that attend to a key: all from an index on.
        keys: the keys that a query attends to: all up to an index.
        future: bool (queries, keys), True for pairs to mask; None if there are none.
    """

    queries: slice
    keys: slice
    future: Tensor | None

    @classmethod
    def of(
        cls, plan: meshkit.SequencePlan, part: int, owner: int, device: torch.device
    ) -> VisibleKeys | None:
        """Return the visible keys of an owner for a part; None if all are in the future."""
        mine, theirs = plan.positions(part), plan.positions(owner)
        first, end = np.searchsorted(mine, theirs[0]), np.searchsorted(theirs, mine[-1], "right")
        if first == len(mine):
            return None
        queries, keys, future = slice(int(first), None), slice(int(end)), None
        if theirs[end - 1] > mine[first]:
            later, earlier = (positions(plan, index, device) for index in (owner, part))
            future = later[keys] > earlier[queries, None]
        return cls(queries, keys, future)


@dataclass(frozen=True)
class Ring:
    """The ring of the ranks along an axis, from the view of one of them.

    Attributes:
        group: the group of the ranks.
        size: the number of ranks.
        index: the index of this rank along the axis.
        following: the global rank that this rank sends to.
        previous: the global rank that it receives from.
    """

    group: dist.ProcessGroup
    size: int
    index: int
    following: int | None
    previous: int | None

    @classmethod
    def of(cls, mesh: meshkit.Mesh, axis: str) -> Ring:
        """Return the ring of this rank along an axis. Local."""
        neighbors = mesh.neighbor(axis, 1), mesh.neighbor(axis, -1)
        return cls(mesh.group(axis), mesh.size(axis), mesh.coordinate[axis], *neighbors)

    def pass_on(self, x: Tensor) -> Callable[[], Tensor]:
        """Start to send a tensor to the next rank; the result waits for that of the previous rank.

        Every rank sends and receives in one batch, so no rank blocks another. A ring of one rank
        sends nothing.
        """
        if self.size == 1:
            return lambda: x
        send = dist.P2POp(dist.isend, x.contiguous(), self.following, self.group)
        receive = dist.P2POp(dist.irecv, torch.empty_like(send.tensor), self.previous, self.group)
        moves = [send, receive]
        works = dist.batch_isend_irecv(moves)

        def wait() -> Tensor:
            for work in works:
                work.wait()
            return moves[1].tensor  # moves keeps the sent tensor alive until here

        return wait

    def blocks(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each block with its owner, first this rank's; the next one is sent meanwhile."""
        for step in range(self.size):
            wait = self.pass_on(x) if step < self.size - 1 else None
            yield (self.index - step) % self.size, x
            x = wait() if wait else x


def scores(q: Tensor, k: Tensor, future: Tensor | None) -> Tensor:
    """Return the scores, (batch, heads, queries, keys), with -inf for keys in the future."""
    products = q @ k.mT / math.sqrt(q.shape[-1])
    return products if future is None else products.masked_fill(future, -math.inf)


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


def gradients(
    q: Tensor, kv: Tensor, weights: Tensor, grad: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the part of one block in the gradients of the queries, and of its keys and values.

    Args:
        q: (batch, heads, queries, d).
        kv: (2, batch, heads, keys, d).
        weights: (batch, heads, queries, keys), the softmax over all blocks.
        grad: (batch, heads, queries, d), the gradient of the output.
        shift: (batch, heads, queries, 1), grad * output summed over d.
    """
    k, v = kv
    change = weights * (grad @ v.mT - shift) / math.sqrt(q.shape[-1])
    return change @ k, torch.stack((change.mT @ q, weights.mT @ grad))


class RingAttention(torch.autograd.Function):
    """Attention of local queries to the keys and values of the whole ring."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, kv: Tensor, ring_of_ranks: Ring, plan: meshkit.SequencePlan
    ) -> Tensor:
        """Return the output for q (batch, heads, tokens / sp, d) and kv (2, ...)."""
        wide = q.to(torch.promote_types(q.dtype, torch.float32))  # precision of the sums
        mixed, lse = torch.zeros_like(wide), torch.full_like(wide[..., :1], -math.inf)
        for owner, block in ring_of_ranks.blocks(kv):
            visible = VisibleKeys.of(plan, ring_of_ranks.index, owner, q.device)
            if visible is None:
                continue  # all keys are in the future
            rows, (k, v) = visible.queries, block[..., visible.keys, :].to(wide.dtype)
            block_scores = scores(wide[..., rows, :], k, visible.future)
            more = merge(mixed[..., rows, :], lse[..., rows, :], block_scores, v)
            mixed[..., rows, :], lse[..., rows, :] = more
        ctx.ring_of_ranks, ctx.plan = ring_of_ranks, plan
        ctx.save_for_backward(q, kv, mixed, lse)
        return mixed.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Pass the blocks around again, and the gradient of each block one step behind it."""
        (q, kv, mixed, lse), ring_of_ranks = ctx.saved_tensors, ctx.ring_of_ranks
        wide, grad = q.to(mixed.dtype), grad.to(mixed.dtype)
        shift = (grad * mixed).sum(-1, keepdim=True)
        dq, none_yet = torch.zeros_like(wide), torch.zeros_like(kv, dtype=wide.dtype)
        wait: Callable[[], Tensor] = lambda: none_yet  # noqa: E731
        for owner, block in ring_of_ranks.blocks(kv):
            visible = VisibleKeys.of(ctx.plan, ring_of_ranks.index, owner, q.device)
            if visible is None:  # all keys are in the future: no gradient
                wait = ring_of_ranks.pass_on(wait())
                continue
            x, g, s, total = (t[..., visible.queries, :] for t in (wide, grad, shift, lse))
            part = block[..., visible.keys, :].to(wide)
            weights = (scores(x, part[0], visible.future) - total).exp()
            dq_part, dkv_part = gradients(x, part, weights, g, s)
            dq[..., visible.queries, :] += dq_part
            dkv = wait()  # the gradient from earlier ranks
            dkv[..., visible.keys, :] += dkv_part
            wait = ring_of_ranks.pass_on(dkv)
        return dq.to(q.dtype), wait().to(kv.dtype), None, None


def ring(qkv: Tensor, mesh: meshkit.Mesh, plan: Plan = None) -> Tensor:
    """Compute all heads of some tokens. sp must divide the tokens. Collective over sp."""
    q, *kv = rearrange(qkv, "three b s h d -> three b h s d")
    sp = mesh.size("sp")
    plan = plan or meshkit.SequencePlan(q.shape[-2] * sp, sp)
    mixed = RingAttention.apply(q, torch.stack(kv), Ring.of(mesh, "sp"), plan)
    return rearrange(mixed, "b h s d -> b s h d")


KINDS: dict[str, Callable[..., Tensor]] = {"ulysses": ulysses, "ring": ring}
ORDERS: dict[str, Order] = {"ulysses": "contiguous", "ring": "zigzag"}  # the fastest ones
