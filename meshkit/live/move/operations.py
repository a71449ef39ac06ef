"""The operations of a plan in torch, each a call on a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

from ...core.errors import SpecError
from ...core.redistribute.steps import ops
from ...core.text import article

# torch 2.13 names the first two, and warns at every call of the older ones
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


def check_tensor(x: object) -> None:
    """Check that an argument is a tensor."""
    if not isinstance(x, Tensor):
        fix = "torch.as_tensor(x), or another tensor."
        raise SpecError(f"x is {article(type(x).__name__)}, not a tensor.", fix=fix)
    if torch.compiler.is_compiling() and forward_ad.unpack_dual(x).primal is not x:  # type: ignore[no-untyped-call]
        line = "compiled code drops tangents, and a dual level of torch is active."
        raise SpecError(line, fix="call it without torch.compile, or take a gradient instead.")


Size = int | SymbolicSize
Sizes = Mapping[str, Any] | None  # under torch.compile, the global sizes on which shapes depend


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

    @cached_property
    def strided(self) -> tuple[list[int], list[int]]:
        """The shape and the strides of the view of a contiguous tensor."""
        shape: Any = self.shape
        strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        order = self.order or range(len(shape))
        return [shape[dim] for dim in order], [strides[dim] for dim in order]

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the arranged tensor: a view where torch can give one."""
        if self.shape is not None:
            if sizes is None and x.is_contiguous():
                return x.as_strided(*self.strided)  # one view, in a third of the time of two
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
    """Put whole sequences into the order of a plan, with zeros as padding, or back."""

    dim: int
    parts: int  # the parts of a zigzag plan; 1 for a contiguous one, whose tokens stay in order
    length: int  # the tokens without padding
    padding: int  # the tokens of padding
    back: bool  # whether the result has the own order of the tokens

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the reordered copy."""
        if self.padding and not self.back:
            shape = (*x.shape[: self.dim], self.padding, *x.shape[self.dim + 1 :])
            x = torch.cat([x, x.new_zeros(shape)], self.dim)
        if self.parts > 1:
            x = self._reorder_chunks(x)
        return x.narrow(self.dim, 0, self.length) if self.padding and self.back else x

    def _reorder_chunks(self, x: Tensor) -> Tensor:
        """Return the tokens in zigzag order, or back: half of the chunks in reverse."""
        first, second = (self.parts, 2) if self.back else (2, self.parts)
        shape = (*x.shape[: self.dim], first, second, -1, *x.shape[self.dim + 1 :])
        chunks = x.reshape(shape)
        early, late = chunks.unbind(self.dim + 1 if self.back else self.dim)
        halves = [early, late.flip(self.dim)]
        stacked = torch.stack(halves, self.dim if self.back else self.dim + 1)
        return stacked.flatten(self.dim, self.dim + 2)


# ------------------------------------------------------------------ communication


class Communication:
    """An operation with other ranks: its ``start`` returns its work and what will be the result."""

    axes: tuple[str, ...]


@dataclass(frozen=True)
class InPlaceCollective(Communication):
    """A collective that changes a copy of the tensor: all_reduce, broadcast or reduce."""

    kind: ops.Kind
    axes: tuple[str, ...]
    root: int
    op: str

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Tensor]:  # noqa: ANN401
        """Start the collective."""
        if torch.compiler.is_compiling() and self.kind != "all_reduce":
            return None, self._run_traced(x, group)
        copy = x.clone(memory_format=torch.contiguous_format)
        if self.kind == "all_reduce":
            return dist.all_reduce(copy, REDUCE_OPS[self.op], group, is_async), copy
        options = {"group": group, "async_op": is_async}
        if self.kind == "broadcast":
            return dist.broadcast(copy, group_src=self.root, **options), copy
        op = REDUCE_OPS[self.op]
        return dist.reduce(copy, op=op, group_dst=self.root, **options), copy

    def _run_traced(self, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the result by collectives that torch.compile can trace.

        A reduction gives all ranks the result: the plan keeps it on one of them.
        """
        copy, size, ranks = x.clone(memory_format=torch.contiguous_format), x.numel(), group.size()
        if self.kind == "reduce":
            dist.all_reduce(copy, REDUCE_OPS[self.op], group)
            return copy
        sent = [size * (group.rank() == self.root)] * ranks
        received = [size * (rank == self.root) for rank in range(ranks)]
        source = copy.view(-1).repeat(ranks) if group.rank() == self.root else x.new_empty(0)
        dist.all_to_all_single(copy.view(-1), source, received, sent, group)
        return copy


@dataclass(frozen=True)
class FlatCollective(Communication):
    """A collective of blocks that lie one after the other in memory. Its result has one dim."""

    axes: tuple[str, ...]  # the axes of the group
    shape: tuple[Size, ...]  # the shape of the result, before it was flattened

    def empty(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return memory for the result."""
        return x.new_empty(self.elements if sizes is None else prod(evaluate(self.shape, sizes)))

    @cached_property
    def elements(self) -> int:
        """The elements of the result."""
        return prod(evaluate(self.shape, None))


@dataclass(frozen=True)
class AllGather(FlatCollective):
    """One all_gather."""

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Tensor]:  # noqa: ANN401
        """Start the collective."""
        result = self.empty(x, sizes)
        return ALL_GATHER(result, x.contiguous().view(-1), group, is_async), result


@dataclass(frozen=True)
class ReduceScatter(FlatCollective):
    """One reduce_scatter."""

    op: str

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Tensor]:  # noqa: ANN401
        """Start the collective."""
        result, op = self.empty(x, sizes), REDUCE_OPS[self.op]
        return REDUCE_SCATTER(result, x.contiguous().view(-1), op, group, is_async), result


@dataclass(frozen=True)
class AllToAll(FlatCollective):
    """One all_to_all."""

    sends: ops.Shape | None
    receives: ops.Shape | None

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Tensor]:  # noqa: ANN401
        """Start the exchange."""
        result = self.empty(x, sizes)
        counts = _counts(self.receives, result), _counts(self.sends, result)
        source = x.contiguous().view(-1)
        return dist.all_to_all_single(result, source, *counts, group, is_async), result


def _counts(shares: ops.Shape | None, result: Tensor) -> list[int] | None:
    """Return the elements for each rank; a block is all elements over the number of blocks."""
    if shares is None:
        return None
    block = result.numel() // sum(shares)
    return [share * block for share in shares]


@dataclass(frozen=True)
class Route(Communication):
    """One all_to_all of regions."""

    axes: tuple[str, ...]
    sends: tuple[ops.Index | None, ...]
    receives: tuple[ops.Index | None, ...]

    def start(self, x: Tensor, sizes: Sizes, group: Any, is_async: bool) -> tuple[Any, Tensor]:  # noqa: ANN401
        """Start the exchange; its result has the regions one after the other."""
        packed = [x[index].reshape(-1) for index in self.sends if index is not None]
        source = torch.cat(packed) if packed else x.new_empty(0)
        sent, received = map(_region_sizes, (self.sends, self.receives))
        result = x.new_empty(sum(received))
        return dist.all_to_all_single(result, source, received, sent, group, is_async), result


@dataclass(frozen=True)
class Unpack:
    """Put the regions of a route into a tensor, summed where several ranks sent one."""

    receives: tuple[ops.Index | None, ...]
    shape: ops.Shape
    op: str

    def __call__(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Return the tensor, with zeros outside the regions."""
        result = x.new_zeros(self.shape)
        covered: list[ops.Index] = []
        parts = torch.split(x, _region_sizes(self.receives))
        for index, part in zip(self.receives, parts, strict=True):
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
