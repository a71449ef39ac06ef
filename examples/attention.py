"""Causal attention over a sequence whose slices lie on the ranks of sp, in two ways.

``ulysses`` (DeepSpeed-Ulysses, arXiv:2309.14509) trades slices of tokens for slices of heads by an
all-to-all, so that every rank sees all tokens of some heads. ``ring`` (Ring Attention,
arXiv:2310.01889) leaves queries where they are and passes blocks of keys and values around the
ranks. With sp=4, whose block is on which rank, and how much of it is computed there::

            contiguous slices             zigzag slices
            sp=0  sp=1  sp=2  sp=3        sp=0  sp=1  sp=2  sp=3
    step 0  [0]   [1]   [2]   [3]         [0]   [1]   [2]   [3]
    step 1   3    [0]   [1]   [2]         3/2   0/2   1/2   2/2     [j] all, j/2 half,
    step 2   2     3    [0]   [1]         2/2   3/2   0/2   1/2     j only passed on: the future
    step 3   1     2     3    [0]         1/2   2/2   3/2   0/2

The positions of a ``SequencePlan`` decide which queries see which keys. With contiguous slices the
last rank has the most to compute, and all wait for it. Zigzag slices give each rank equal work.
The softmax over blocks is the online one of FlashAttention (arXiv:2205.14135), whose backward
computes the weights again.

Both take ``qkv``, (3, batch, tokens / sp, heads, d), and return (batch, tokens / sp, heads, d).
``plan`` says which tokens they are, as in ``mesh.sequence(...).plan``; None means runs.
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

Move = Callable[[Tensor, dist.ProcessGroup], Tensor]
Order = Literal["contiguous", "zigzag"]
Plan = meshkit.SequencePlan | None


def positions(plan: meshkit.SequencePlan, part: int, device: torch.device) -> Tensor:
    """Which positions of the sequence a part holds: int64 (tokens,)."""
    return torch.from_numpy(plan.positions(part)).to(device)


# ---------------------------------------------------------------- communication with gradients


def add_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of a group's tensors. Collectives need contiguous memory."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def trade(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Block i of dim 0 goes to rank i, and what comes from rank i becomes block i."""
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


def keep(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensor unchanged."""
    return x.view_as(x)


class Communicate(torch.autograd.Function):
    """``there(x, group)`` on the way forward, ``back(gradient, group)`` on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Move, back: Move, group: dist.ProcessGroup) -> Tensor:
        """Move the tensor."""
        ctx.back, ctx.group = back, group
        return there(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Move the gradient the other way."""
        return ctx.back(grad, ctx.group), None, None, None


def communicate(x: Tensor, there: Move, back: Move, group: dist.ProcessGroup) -> Tensor:
    """Move the tensor there and its gradient back. A group of one moves nothing."""
    move: Callable[..., Tensor] = Communicate.apply
    return x if group.size() == 1 else move(x, there, back, group)


# ---------------------------------------------------------------------------------- Ulysses


def ulysses(qkv: Tensor, mesh: meshkit.Mesh, plan: Plan = None) -> Tensor:
    """All tokens of some heads: the heads here must divide by sp. Collective over sp.

    The work is equal in any order of tokens; only runs spare the mask, (tokens, tokens).
    """
    group, sp = mesh.group("sp"), mesh.size("sp")
    qkv = rearrange(qkv, "three b s (n h) d -> n three b s h d", n=sp)
    qkv = communicate(qkv, trade, trade, group)
    q, k, v = rearrange(qkv, "n three b s h d -> three b h (n s) d")
    if plan is None or plan.order == "contiguous":
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        places = torch.cat([positions(plan, part, q.device) for part in range(sp)])
        seen = places[:, None] >= places
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    mixed = rearrange(mixed, "b h (n s) d -> n b s h d", n=sp)
    return rearrange(communicate(mixed, trade, trade, group), "n b s h d -> b s (n h) d")


# ------------------------------------------------------------------------------------- ring


@dataclass(frozen=True)
class Sight:
    """The part of another part's keys that the queries of one part see; positions ascend in both.

    Attributes:
        queries: those that see a key: all from some place on.
        keys: those that a query sees: all up to some place.
        future: bool (queries, keys), which of these pairs count for nothing; None where all count.
    """

    queries: slice
    keys: slice
    future: Tensor | None

    @classmethod
    def of(
        cls, plan: meshkit.SequencePlan, here: int, owner: int, device: torch.device
    ) -> Sight | None:
        """Return the visible part of an owner's keys, or None if all lie in the future."""
        own, theirs = plan.positions(here), plan.positions(owner)
        first, end = np.searchsorted(own, theirs[0]), np.searchsorted(theirs, own[-1], "right")
        if first == len(own):
            return None
        queries, keys, future = slice(int(first), None), slice(int(end)), None
        if theirs[end - 1] > own[first]:
            later, earlier = (positions(plan, part, device) for part in (owner, here))
            future = later[keys] > earlier[queries, None]
        return cls(queries, keys, future)


@dataclass(frozen=True)
class Circle:
    """The ranks of an axis in a circle, seen from one of them.

    Attributes:
        group: theirs.
        size: how many they are.
        here: this rank's coordinate along the axis.
        following: the global rank to which this one sends.
        previous: the one from which it receives.
    """

    group: dist.ProcessGroup
    size: int
    here: int
    following: int | None
    previous: int | None

    @classmethod
    def of(cls, mesh: meshkit.Mesh, axis: str) -> Circle:
        """Return the circle of this rank along an axis. Local."""
        there = mesh.neighbor(axis, 1), mesh.neighbor(axis, -1)
        return cls(mesh.group(axis), mesh.size(axis), mesh.coordinate[axis], *there)

    def pass_on(self, x: Tensor) -> Callable[[], Tensor]:
        """Begin to send a tensor to the next rank; the result waits for the previous one's.

        Every rank sends and receives in one batch, so none waits for another to turn round. A
        circle of one rank sends nothing.
        """
        if self.size == 1:
            return lambda: x
        send = dist.P2POp(dist.isend, x.contiguous(), self.following, self.group)
        receive = dist.P2POp(dist.irecv, torch.empty_like(send.tensor), self.previous, self.group)
        moves = [send, receive]
        works = dist.batch_isend_irecv(moves)

        def arrived() -> Tensor:
            for work in works:
                work.wait()
            return moves[1].tensor  # until here, moves keeps what is sent alive

        return arrived

    def blocks(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each rank's block with its owner, this rank's first; the next travels meanwhile."""
        for step in range(self.size):
            arrived = self.pass_on(x) if step < self.size - 1 else None
            yield (self.here - step) % self.size, x
            x = arrived() if arrived else x


def scores(q: Tensor, k: Tensor, future: Tensor | None) -> Tensor:
    """(batch, heads, queries, keys); keys in the future of a query count for nothing."""
    found = q @ k.mT / math.sqrt(q.shape[-1])
    return found if future is None else found.masked_fill(future, -math.inf)


def merge(mixed: Tensor, lse: Tensor, found: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Merge one more block into the mean of values, and into the log of its weights.

    Args:
        mixed: (batch, heads, queries, d), the mean so far.
        lse: (batch, heads, queries, 1), the log of the sum of exp(scores) so far; -inf at first.
        found: (batch, heads, queries, keys), the scores of the block.
        v: (batch, heads, keys, d), its values.
    """
    total = torch.logaddexp(lse, found.logsumexp(-1, keepdim=True))
    return mixed * (lse - total).exp() + (found - total).exp() @ v, total


def gradients(
    q: Tensor, kv: Tensor, weights: Tensor, grad: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the part of one block in the gradients of the queries, keys and values.

    Args:
        q: (batch, heads, queries, d).
        kv: (2, batch, heads, keys, d).
        weights: (batch, heads, queries, keys), of the softmax over all blocks.
        grad: (batch, heads, queries, d), that of the output.
        shift: (batch, heads, queries, 1), grad * output summed over d: what softmax takes away.
    """
    k, v = kv
    change = weights * (grad @ v.mT - shift) / math.sqrt(q.shape[-1])
    return change @ k, torch.stack((change.mT @ q, weights.mT @ grad))


class RingAttention(torch.autograd.Function):
    """Attention of the queries here to the keys and values of the whole circle."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, kv: Tensor, circle: Circle, plan: meshkit.SequencePlan
    ) -> Tensor:
        """(batch, heads, tokens / sp, d), and keys and values as (2, ...), to the first's shape."""
        wide = q.to(torch.promote_types(q.dtype, torch.float32))  # sums over all tokens are kept so
        mixed, lse = torch.zeros_like(wide), torch.full_like(wide[..., :1], -math.inf)
        for owner, block in circle.blocks(kv):
            sight = Sight.of(plan, circle.here, owner, q.device)
            if sight is None:
                continue  # all of it lies in the future
            rows, (k, v) = sight.queries, block[..., sight.keys, :].to(wide.dtype)
            found = scores(wide[..., rows, :], k, sight.future)
            more = merge(mixed[..., rows, :], lse[..., rows, :], found, v)
            mixed[..., rows, :], lse[..., rows, :] = more
        ctx.circle, ctx.plan = circle, plan
        ctx.save_for_backward(q, kv, mixed, lse)
        return mixed.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Pass the blocks around again, each followed by its gradient one step behind."""
        (q, kv, mixed, lse), circle = ctx.saved_tensors, ctx.circle
        wide, grad = q.to(mixed.dtype), grad.to(mixed.dtype)
        shift = (grad * mixed).sum(-1, keepdim=True)
        dq, none_yet = torch.zeros_like(wide), torch.zeros_like(kv, dtype=wide.dtype)
        arrived: Callable[[], Tensor] = lambda: none_yet  # noqa: E731
        for owner, block in circle.blocks(kv):
            sight = Sight.of(ctx.plan, circle.here, owner, q.device)
            if sight is None:  # from the future: it has no part in what was seen here
                arrived = circle.pass_on(arrived())
                continue
            x, g, s, total = (t[..., sight.queries, :] for t in (wide, grad, shift, lse))
            part = block[..., sight.keys, :].to(wide)
            weights = (scores(x, part[0], sight.future) - total).exp()
            dq_part, dkv_part = gradients(x, part, weights, g, s)
            dq[..., sight.queries, :] += dq_part
            dkv = arrived()  # only now wait for what earlier users of this block have added
            dkv[..., sight.keys, :] += dkv_part
            arrived = circle.pass_on(dkv)
        return dq.to(q.dtype), arrived().to(kv.dtype), None, None


def ring(qkv: Tensor, mesh: meshkit.Mesh, plan: Plan = None) -> Tensor:
    """All heads of some tokens: sp may be any divisor of the tokens. Every rank of sp calls it."""
    q, *kv = rearrange(qkv, "three b s h d -> three b h s d")
    sp = mesh.size("sp")
    plan = plan or meshkit.SequencePlan(q.shape[-2] * sp, sp)
    mixed = RingAttention.apply(q, torch.stack(kv), Circle.of(mesh, "sp"), plan)
    return rearrange(mixed, "b h s d -> b s h d")


KINDS: dict[str, Callable[..., Tensor]] = {"ulysses": ulysses, "ring": ring}
ORDERS: dict[str, Order] = {"ulysses": "contiguous", "ring": "zigzag"}  # that suit them best
