"""Reductions with the results of one process, whatever a backend does with NaN and with bools.

gloo and NCCL lose a NaN in a maximum, depending on the rank that has it, and gloo adds bools as
bytes. The ranks therefore reduce whole numbers in the order of the values::

    -inf   -1.5   -0.0   0.0   1.5   inf   NaN        for a maximum; for a minimum NaN is first

An average is divided before it is summed, as DDP and the average of NCCL do, so no sum overflows.
The division is by a power of two, which rounds nothing; the rest of it follows the sum. Small
numbers of float16 would lose bits, so float16 travels as float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import SpecError

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # of tensors that are divided first: gloo has no average
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
# the dtypes that gloo takes; the bytes of others move as a dtype of the same size
MOVED = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8}
MOVED |= {torch.int8, torch.int32, torch.int64, torch.complex64, torch.complex128}
CARRIERS = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


def carried(x: Tensor) -> Tensor:
    """Return a contiguous tensor, or its bytes as a dtype that every backend takes."""
    return x if x.dtype in MOVED else x.view(CARRIERS[x.element_size()])


def check_reduced(x: Tensor) -> None:
    """Check that a backend can reduce the dtype of a tensor."""
    if x.dtype not in MOVED:
        line = f"the backend cannot reduce tensors of {str(x.dtype).removeprefix('torch.')}."
        wider = "x.float()" if x.is_floating_point() else "x.long()"
        wider = "x.to(torch.complex64)" if x.is_complex() else wider
        fits = x.dtype != torch.uint64  # no dtype that a backend reduces holds all its values
        raise SpecError(line, fix=f"{wider}, and convert the result." if fits else "")


def reduce_op(dtype: torch.dtype, op: str) -> dist.ReduceOp.RedOpType:
    """Return the operation of the backend: the sum of bools is whether one of them is true."""
    return REDUCE_OPS["max" if dtype == torch.bool and op == "sum" else op]


def encode(x: Tensor, op: str) -> Tensor:
    """Return the contiguous tensor that the backend reduces in place of ``x``."""
    if x.dtype == torch.bool:
        return x.view(torch.uint8)
    if op not in ("max", "min") or not x.is_floating_point():
        return x
    wide = x if x.element_size() == 8 else x.float()  # no backend has an int of two bytes
    ints = torch.int64 if wide.element_size() == 8 else torch.int32
    extreme = torch.iinfo(ints).max if op == "max" else torch.iinfo(ints).min
    return _flip(wide.view(ints)).masked_fill(wide != wide, extreme)


def decode(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the result of a reduction in the dtype of the caller."""
    if dtype == torch.bool:
        return y.view(torch.bool)
    if y.dtype == dtype:
        return y
    floats = torch.float64 if y.element_size() == 8 else torch.float32
    return _flip(y).view(floats).to(dtype)  # the extremes are bits of NaN


def divide_before(x: Tensor, divisor: int) -> Tensor:
    """Return the part of an average of as many tensors, before they are summed."""
    x = x.float() if x.dtype == torch.float16 else x
    return x / _power_of_two(divisor)


def divide_after(y: Tensor, divisor: int, dtype: torch.dtype) -> Tensor:
    """Return the average from the sum of what :func:`divide_before` returned."""
    rest = divisor / _power_of_two(divisor)  # above a half, and 1 at most
    return (y if rest == 1 else y / rest).to(dtype)


def _power_of_two(divisor: int) -> int:
    """Return the least power of two that is not below a number of ranks."""
    return int(2 ** (divisor - 1).bit_length())


def _flip(bits: Tensor) -> Tensor:
    """Return integers in the order of the floats with these bits, or these bits again."""
    info = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> info.bits - 1) & info.max)
