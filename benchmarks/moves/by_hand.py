"""Autograd functions written by hand for one move each, as trainers have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshkit.redistribute.operations import ALL_GATHER, REDUCE_SCATTER

Group = dist.ProcessGroup


def cut_heads(x: Tensor, group: Group) -> Tensor:
    """Return all tokens of some heads, from some tokens of all heads (batch, tokens, heads, d)."""
    batch, tokens, heads, d = x.shape
    ranks = group.size()
    packed = x.reshape(batch, tokens, ranks, heads // ranks, d).permute(2, 0, 1, 3, 4).contiguous()
    result = torch.empty_like(packed)
    dist.all_to_all_single(result, packed, group=group)
    return result.permute(1, 0, 2, 3, 4).reshape(batch, ranks * tokens, heads // ranks, d)


def cut_tokens(x: Tensor, group: Group) -> Tensor:
    """Return some tokens of all heads, from all tokens of some heads."""
    batch, tokens, heads, d = x.shape
    ranks = group.size()
    packed = x.reshape(batch, ranks, tokens // ranks, heads, d).permute(1, 0, 2, 3, 4).contiguous()
    result = torch.empty_like(packed)
    dist.all_to_all_single(result, packed, group=group)
    return result.permute(1, 2, 0, 3, 4).reshape(batch, tokens // ranks, ranks * heads, d)


def gather(x: Tensor, group: Group) -> Tensor:
    """Return all tokens, from some (batch, tokens, d)."""
    batch, tokens, d = x.shape
    result = x.new_empty(group.size() * batch, tokens, d)
    ALL_GATHER(result, x.contiguous(), group=group)
    parts = result.view(group.size(), batch, tokens, d)
    return parts.permute(1, 0, 2, 3).reshape(batch, group.size() * tokens, d)


def scatter(x: Tensor, group: Group) -> Tensor:
    """Return some tokens of a sum, from the parts of the sum."""
    batch, tokens, d = x.shape
    ranks = group.size()
    packed = x.reshape(batch, ranks, tokens // ranks, d).permute(1, 0, 2, 3).contiguous()
    result = x.new_empty(batch, tokens // ranks, d)
    REDUCE_SCATTER(result, packed.view(ranks * batch, tokens // ranks, d), group=group)
    return result


def add(x: Tensor, group: Group) -> Tensor:
    """Return the sum of the parts."""
    result = x.clone()
    dist.all_reduce(result, group=group)
    return result


def make_function(
    there: Callable[[Tensor, Group], Tensor], back: Callable[[Tensor, Group], Tensor]
) -> Callable[[Tensor, Group], Tensor]:
    """Return the autograd function of a move and of its gradient."""

    class Move(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: ANN401
            ctx.group = group
            return there(x, group)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
            return back(grad, ctx.group), None

    apply: Callable[[Tensor, Group], Tensor] = Move.apply
    return apply


BY_HAND = {  # pattern over one axis -> the function
    "b s/x h d -> b s h/x d": make_function(cut_heads, cut_tokens),
    "b s/x d -> b s d *x": make_function(gather, scatter),
    "b s d +x -> b s/x d": make_function(scatter, gather),
    "b s d +x -> b s d =x": make_function(add, lambda x, group: x),
}
