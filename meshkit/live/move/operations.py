"""The operations of a plan in torch, each a call on a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.redistribute import ops

# torch 2.13 names the first two; older versions have the others
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)
REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # the result is divided: gloo has no average
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


@dataclass(frozen=True)
class SymbolicSize:
    """A size that depends on global sizes: their product, times a factor, over a divisor."""

    factor: int
    divisor: int
    names: tuple[str, ...]


Size = int | SymbolicSize
Sizes = Mapping[str, Any] | None  # the global sizes, if the shapes of a program depend on them
Finish = Callable[[], Tensor]


def evaluate(shape: Sequence[Size], sizes: Sizes) -> Any:  # noqa: ANN401  # ints, or torch.SymInt
    """Return a shape with its global sizes filled in."""
    if sizes is None:
        return shape
    return [size if isinstance(size, int) else _evaluate_size(size, sizes) for size in shape]


def _evaluate_size(size: SymbolicSize, sizes: Mapping[str, Any]) -> Any:  # noqa: ANN401
    value = size.factor
    for name in size.names:
        value = value * sizes[name]
    return value // size.divisor


@dataclass(frozen=True)
class Arrange:
    """Reshape, then permute."""

    shape: tuple[Size, ...] | None
    order: tuple[int, ...] | None

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the arranged tensor: a view where torch can give one."""
        if self.shape is not None:
            x = x.reshape(evaluate(self.shape, sizes))
        return x if self.order is None else x.permute(self.order)


@dataclass(frozen=True)
class Take:
    """Take a part."""

    index: ops.Index

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the part, a view."""
        return x[self.index]


@dataclass(frozen=True)
class Fill:
    """Put the tensor into zeros."""

    shape: tuple[Size, ...]
    index: ops.Index

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the zeros with the tensor in them."""
        filled = x.new_zeros(evaluate(self.shape, sizes))
        filled[self.index] = x
        return filled


@dataclass(frozen=True)
class Keep:
    """Keep the tensor, or replace it by zeros."""

    is_kept: bool

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the tensor or zeros."""
        return x if self.is_kept else torch.zeros_like(x)


@dataclass(frozen=True)
class Reorder:
    """Put whole sequences into zigzag order, or back: half of the chunks in reverse."""

    dim: int
    parts: int
    back: bool

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the reordered copy."""
        first, second = (self.parts, 2) if self.back else (2, self.parts)
        shape = (*x.shape[: self.dim], first, second, -1, *x.shape[self.dim + 1 :])
        chunks = x.reshape(shape)
        early, late = chunks.unbind(self.dim + 1 if self.back else self.dim)
        halves = [early, late.flip(self.dim)]
        stacked = torch.stack(halves, self.dim if self.back else self.dim + 1)
        return stacked.flatten(self.dim, self.dim + 2)


# ------------------------------------------------------------------ communication


class Communication:
    """An operation with other ranks: its ``start`` returns its work and what gives the result."""

    axes: tuple[str, ...]


@dataclass(frozen=True)
class Collective(Communication):
    """One collective of the whole tensor."""

    kind: ops.Kind
    axes: tuple[str, ...]
    shape: tuple[Size, ...]
    root: int
    op: str

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Finish]:  # noqa: ANN401
        """Start the collective."""
        options = {"group": group, "async_op": is_async}
        if self.kind in ("all_gather", "reduce_scatter"):
            shape = evaluate(self.shape, sizes)
            result = x.new_empty(prod(shape))
            source = x.contiguous().view(-1)
            if self.kind == "all_gather":
                work = ALL_GATHER(result, source, **options)
            else:
                work = REDUCE_SCATTER(result, source, op=REDUCE_OPS[self.op], **options)
            return work, lambda: result.view(shape)
        copy = x.clone(memory_format=torch.contiguous_format)
        if self.kind == "all_reduce":
            work = dist.all_reduce(copy, REDUCE_OPS[self.op], **options)
        elif self.kind == "broadcast":
            work = dist.broadcast(copy, group_src=self.root, **options)
        else:
            work = dist.reduce(copy, op=REDUCE_OPS[self.op], group_dst=self.root, **options)
        return work, lambda: copy


@dataclass(frozen=True)
class AllToAll(Communication):
    """One all_to_all of blocks."""

    axes: tuple[str, ...]
    sends: ops.Shape | None
    receives: ops.Shape | None
    shape: tuple[Size, ...]

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Finish]:  # noqa: ANN401
        """Start the exchange."""
        shape = evaluate(self.shape, sizes)
        result = x.new_empty(prod(shape))
        counts = self._counts(self.receives, result), self._counts(self.sends, result)
        source = x.contiguous().view(-1)
        work = dist.all_to_all_single(result, source, *counts, group=group, async_op=is_async)
        return work, lambda: result.view(shape)

    def _counts(self, shares: ops.Shape | None, result: Tensor) -> list[int] | None:
        """Return the elements for each rank; a block is all elements over the number of blocks."""
        if shares is None:
            return None
        block = result.numel() // sum(shares)
        return [share * block for share in shares]


@dataclass(frozen=True)
class Route(Communication):
    """One all_to_all of regions, summed where several ranks send one region."""

    axes: tuple[str, ...]
    sends: tuple[ops.Index | None, ...]
    receives: tuple[ops.Index | None, ...]
    shape: ops.Shape
    op: str

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Finish]:  # noqa: ANN401
        """Start the exchange."""
        packed = [x[index].reshape(-1) for index in self.sends if index is not None]
        source = torch.cat(packed) if packed else x.new_empty(0)
        sent, received = map(_region_sizes, (self.sends, self.receives))
        result = x.new_empty(sum(received))
        options = {"group": group, "async_op": is_async}
        work = dist.all_to_all_single(result, source, received, sent, **options)
        return work, lambda: self._unpack(result, received)

    def _unpack(self, received: Tensor, counts: list[int]) -> Tensor:
        result = received.new_zeros(self.shape)
        covered: list[ops.Index] = []
        for index, part in zip(self.receives, torch.split(received, counts), strict=True):
            if index is None:
                continue
            region = result[index]
            part = part.view(region.shape)
            region.copy_(COMBINE[self.op](region, part) if index in covered else part)
            covered.append(index)
        return result


def _region_sizes(regions: Sequence[ops.Index | None]) -> list[int]:
    return [
        0 if index is None else prod([s.stop - s.start for s in index if isinstance(s, slice)])
        for index in regions
    ]
