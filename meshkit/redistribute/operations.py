"""One step of a plan on a tensor: local, or over a group; and what a tensor must be for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import SpecError
from ..launch.tensors import plain
from ..launch.torch_program import has_dual_level
from ..text import article
from . import steps as ops
from .move import check_gradient
from .pattern import Pattern
from .reductions import COMBINE, carried, check_reduced, decode, encode, reduce_op

# torch 2.13 names the first two, and warns at every call of the older ones
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)
HALF_DTYPES = (torch.float16, torch.bfloat16)


def check_tensor(x: object) -> None:
    """Check that an argument is a dense tensor."""
    if not isinstance(x, Tensor):
        fix = "torch.as_tensor(x), or another tensor."
        raise SpecError(f"x is {article(type(x).__name__)}, not a tensor.", fix=fix)
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        kind = "mkldnn" if x.is_mkldnn else "sparse"
        kind = "nested" if x.is_nested else "quantized" if x.is_quantized else kind
        fix = "x.dequantize()." if x.is_quantized else "a dense tensor, for example x.to_dense()."
        raise SpecError(f"x is a {kind} tensor.", fix=fix)
    if torch.compiler.is_compiling() and has_dual_level():
        line = "compiled code drops tangents, and a dual level of torch is active."
        raise SpecError(line, fix="call it without torch.compile, or take a gradient instead.")


def check_dtype(op: str, dtype: torch.dtype) -> None:
    """Raise if a reduction of tensors of a dtype is not determined."""
    if op == "avg" and not (dtype.is_floating_point or dtype.is_complex):
        other = "" if dtype == torch.bool else 'op="sum", or '
        fix = f"{other}x.float(), since an average of {dtype} is a fraction."
        raise SpecError(f"op='avg' of a tensor of {dtype}.", fix=fix)
    if op in ("max", "min") and dtype.is_complex:
        raise SpecError(f"op={op!r} of a tensor of {dtype}.", "Complex numbers have no order.")


def check_differentiable(
    pattern: Pattern,
    unmarked: Sequence[tuple[int, str]],
    op: str,
    grad_dtype: torch.dtype | None,
    *,
    sums: bool,
    dtype: torch.dtype,
) -> None:
    """Raise if there is no gradient, or if it needs another dtype.

    ``unmarked`` are the axes without a mark on one side, each after that side, and ``sums`` is
    whether the backward sums gradients of several ranks.
    """
    check_gradient(pattern, unmarked)
    if op in ("max", "min"):
        raise SpecError(
            f"op={op!r} has no gradient, and the tensor requires one.",
            fix="x.detach(), for example of the maximum that makes a softmax stable.",
        )
    if grad_dtype is not None and dtype.is_complex and not grad_dtype.is_complex:
        line = f"grad_dtype is {grad_dtype}, which drops the imaginary part of gradients."
        fix = "grad_dtype=torch.complex128, or leave it out."
        raise SpecError(line, f"The tensor is in {dtype}.", fix=fix)
    if sums and dtype in HALF_DTYPES and grad_dtype is None:
        raise SpecError(
            f"the backward sums gradients of several ranks in {dtype}.",
            fix=f"grad_dtype=torch.float32, or grad_dtype={dtype}, which loses bits.",
        )


# ------------------------------------------------------------------ sizes under torch.compile


@dataclass(frozen=True)
class SymbolicSize:
    """A size that depends on global sizes: their product, times a factor, over a divisor."""

    factor: int
    divisor: int
    names: tuple[str, ...]

    def evaluate(self, sizes: Mapping[str, Any]) -> Any:  # noqa: ANN401  # int, or torch.SymInt
        """Return the size for given global sizes."""
        value = self.factor
        for name in self.names:
            value = value * sizes[name]
        return value // self.divisor


Size = int | SymbolicSize
Sizes = Mapping[str, Any] | None  # under torch.compile, the global sizes on which shapes depend


def evaluate(shape: Sequence[Size], sizes: Sizes) -> Any:  # noqa: ANN401  # ints, or torch.SymInt
    """Return a shape with its global sizes filled in."""
    if sizes is None:
        return shape
    return [size if isinstance(size, int) else size.evaluate(sizes) for size in shape]


@dataclass(frozen=True)
class UnknownSizes:
    """Dims whose size torch.compile leaves open, each planned with a size that can be recognised.

    A dim gets the size ``scale`` times a prime of its own. A shape of the plan that this prime
    divides then depends on that dim. With scale 4 and the prime 101, s is planned as 404, and a
    local size of 202 is read as s / 2.
    """

    primes: Mapping[int, str] = field(default_factory=dict)  # prime to the name of its dim
    scale: int = 1  # the product of the axes of the pattern, so that each axis divides each size

    def replace_shape(self, step: ops.Step) -> ops.Step:
        """Return a bound step with its shape in terms of the sizes of these dims."""
        shape: ops.Shape | None = getattr(step, "shape", None)
        if not self.primes or shape is None:
            return step
        return replace(step, shape=tuple(map(self._size, shape)))  # type: ignore[type-var]

    def _size(self, size: int) -> Size:
        names, divisor = [], 1
        for prime, name in self.primes.items():
            if size % prime == 0:
                size //= prime
                names.append(name)
                divisor *= self.scale
        common = math.gcd(size, divisor)
        return SymbolicSize(size // common, divisor // common, tuple(names)) if names else size


# ------------------------------------------------------------------ local steps


def run_local(step: ops.Step, x: Tensor, sizes: Sizes) -> Tensor:
    """Return the tensor after a step without communication: a view where torch can give one."""
    match step:
        case ops.Arrange(shape=shape, order=order):
            if shape is not None:
                if sizes is None and x.is_contiguous():
                    return x.as_strided(*step.strided)  # one view, in a third of the time of two
                x = x.reshape(evaluate(shape, sizes))
            return x if order is None else x.permute(order)
        case ops.Take(index=index):
            return x[index]
        case ops.Fill(shape=shape, index=index):
            filled = x.new_zeros(evaluate(shape, sizes))
            filled[index] = x
            return filled
        case ops.Keep(is_kept=is_kept):
            return x if is_kept else torch.zeros_like(x)
        case ops.Reorder():
            return _reorder(step, x)
    raise TypeError(f"{step} is no local step")


def _reorder(step: ops.Reorder, x: Tensor) -> Tensor:
    dim, plan = step.dim, step.plan
    padding = plan.padded - plan.length
    if padding and not step.back:
        shape = (*x.shape[:dim], padding, *x.shape[dim + 1 :])
        x = torch.cat([x, x.new_zeros(shape)], dim)
    if plan.order == "zigzag" and plan.parts > 1:
        first, second = (plan.parts, 2) if step.back else (2, plan.parts)
        chunks = x.reshape((*x.shape[:dim], first, second, -1, *x.shape[dim + 1 :]))
        early, late = chunks.unbind(dim + step.back)
        stacked = torch.stack([early, late.flip(dim)], dim + (not step.back))  # half in reverse
        x = stacked.flatten(dim, dim + 2)
    return x.narrow(dim, 0, plan.length) if padding and step.back else x


# ------------------------------------------------------------------ communication


def start(
    step: Any,  # noqa: ANN401  # a GroupStep
    x: Tensor,
    op: str,
    sizes: Sizes,
    group: Any,  # noqa: ANN401
    is_async: bool = False,
) -> tuple[Any, Tensor]:
    """Start a step with other ranks. Return its work, and the tensor that it will fill."""
    if isinstance(step, ops.Route):
        return _start_route(step, x, group, is_async)
    if not step.is_flat:
        return _start_in_place(step, x, op, group, is_async)
    source, numel = plain(x).contiguous().view(-1), prod(evaluate(step.shape, sizes))
    if step.reduces:
        check_reduced(x)
        source = encode(source, op)
        result = source.new_empty(numel)
        return REDUCE_SCATTER(result, source, reduce_op(x.dtype, op), group, is_async), result
    result = x.new_empty(numel)
    if isinstance(step, ops.AllToAll):
        counts = _counts(step.receives, result), _counts(step.sends, result)
        return all_to_all(result, source, *counts, group, is_async), result
    return ALL_GATHER(carried(result), carried(source), group, is_async), result


def all_to_all(result: Tensor, source: Tensor, *more: Any) -> Any:  # noqa: ANN401
    """Start an all_to_all of a contiguous tensor. Return its work."""
    return dist.all_to_all_single(carried(result), carried(source), *more)


def _counts(shares: ops.Shape | None, result: Tensor) -> list[int] | None:
    """Return the elements for each rank; a block is all elements over the number of blocks."""
    if shares is None:
        return None
    block = result.numel() // sum(shares)
    return [share * block for share in shares]


def _start_in_place(
    step: Any,  # noqa: ANN401
    x: Tensor,
    op: str,
    group: Any,  # noqa: ANN401
    is_async: bool,
) -> tuple[Any, Tensor]:
    """Start a collective that changes a copy of the tensor: all_reduce, broadcast or reduce."""
    if torch.compiler.is_compiling() and step.kind != "all_reduce":
        return None, _run_traced(step, x, op, group)
    copy = plain(x).clone(memory_format=torch.contiguous_format)
    options = {"group": group, "async_op": is_async}
    if not step.reduces:
        return dist.broadcast(carried(copy), group_src=step.root_rank, **options), copy
    check_reduced(x)
    copy, backend_op = encode(copy, op), reduce_op(x.dtype, op)
    if step.kind == "all_reduce":
        return dist.all_reduce(copy, backend_op, group, is_async), copy
    return dist.reduce(copy, op=backend_op, group_dst=step.root_rank, **options), copy


def _run_traced(step: ops.CollectiveStep, x: Tensor, op: str, group: dist.ProcessGroup) -> Tensor:
    """Return a broadcast, or a reduction on all ranks, by traceable collectives."""
    copy = plain(x).clone(memory_format=torch.contiguous_format)
    size, ranks = x.numel(), group.size()
    if step.reduces:
        copy = encode(copy, op)
        dist.all_reduce(copy, reduce_op(x.dtype, op), group)
        return copy
    root = step.root_rank
    sent = [size * (group.rank() == root)] * ranks
    received = [size * (rank == root) for rank in range(ranks)]
    source = copy.view(-1).repeat(ranks) if group.rank() == root else x.new_empty(0)
    dist.all_to_all_single(copy.view(-1), source, received, sent, group)
    return copy


def _start_route(step: ops.Route, x: Tensor, group: Any, is_async: bool) -> tuple[Any, Tensor]:  # noqa: ANN401
    """Start an all_to_all of regions; its result has the regions one after the other."""
    if step.summed > 1:
        check_reduced(x)  # else a size that divides decides whether a dtype is refused
    packed = [plain(x)[index].reshape(-1) for index in step.sends if index is not None]
    source = torch.cat(packed) if packed else x.new_empty(0)
    sent, received = _region_sizes(step.sends), _region_sizes(step.receives)
    result = x.new_empty(sum(received))
    return all_to_all(result, source, received, sent, group, is_async), result


def finish_step(step: ops.GroupStep, x: Tensor, op: str, dtype: torch.dtype) -> Tensor:
    """Return the result of a step whose work is done: regions that arrived, or the tensor."""
    if step.reduces:
        return decode(x, dtype)
    if not isinstance(step, ops.Route):
        return x
    result = x.new_zeros(step.shape)
    covered: list[ops.Index] = []
    parts = torch.split(x, _region_sizes(step.receives))
    for index, part in zip(step.receives, parts, strict=True):
        if index is None:
            continue
        region = result[index]
        part = part.view(region.shape)
        region.copy_(COMBINE[op](region, part) if index in covered else part)
        covered.append(index)
    return result


def _region_sizes(regions: ops.Regions) -> list[int]:
    return [
        0 if index is None else prod([s.stop - s.start for s in index if isinstance(s, slice)])
        for index in regions
    ]
