"""Facts of one tensor: whether it is a DTensor, and how its numbers lie in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from ..errors import SpecError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return whether a value is a DTensor, without the import of 600 modules.

    No value is one before someone else has imported the package.
    """
    package = sys.modules.get("torch.distributed.tensor")
    return package is not None and isinstance(value, package.DTensor)


def plain(x: Tensor) -> Tensor:
    """Return a tensor whose memory holds its numbers: no conjugate, and no negative, view."""
    return x.resolve_conj().resolve_neg()


def check_writable(x: Tensor, name: str, fix: str) -> None:
    """Raise if a tensor cannot be changed in place, before it or another one is."""
    if x.is_inference() and not torch.is_inference_mode_enabled():
        line = f"{name} is an inference tensor, and this is no inference mode."
        raise SpecError(line, fix="call this inside torch.inference_mode().")
    if overlaps(x):
        line = f"{name} is expanded: several of its elements are one in memory."
        raise SpecError(line, fix=fix)


def overlaps(x: Tensor) -> bool:
    """Return whether several elements of a tensor may be one in memory, as after ``expand``."""
    if x.is_contiguous() or not x.numel():
        return False
    end = 0  # the offset of the last element of the dims so far
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= end:
                return True
            end += stride * (size - 1)
    return False


def find_tied(tensors: Sequence[Tensor | None]) -> dict[int, int]:
    """Return the number of each tensor whose memory an earlier one has, with that one's number.

    Tensors that share a part of their memory are not tied.
    """
    first: dict[object, int] = {}
    tied: dict[int, int] = {}
    for number, x in enumerate(tensors):
        if x is not None and x.numel():
            earlier = first.setdefault(_memory_of(x), number)
            if earlier != number:
                tied[number] = earlier
    return tied


def check_equal_memory(
    wanted: Sequence[Tensor | None], arrived: Sequence[Tensor | None], names: Sequence[str]
) -> None:
    """Raise if tied tensors are to be filled with different numbers, bit by bit. Local."""
    for number, first in find_tied(wanted).items():
        memories = []
        for each in (first, number):
            held, x = wanted[each], arrived[each]
            if held is not None and x is not None:
                order = sorted(range(x.dim()), key=held.stride, reverse=True)
                memories.append(plain(x).permute(order).flatten().view(torch.uint8))
        if not torch.equal(*memories):
            line = f"{names[number]} and {names[first]} are one tensor on the target."
            raise SpecError(
                line,
                "The source has two tensors that differ, and one can hold only one of them.",
                fix=f"tie {names[number]} to {names[first]} on the source too, or "
                f"{names[number]}.clone() on the target.",
            )


def _memory_of(x: Tensor) -> object:
    """Return a value that is equal for tensors with the same elements in memory, in any order."""
    dims = sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    is_dense = sum(stride * (size - 1) for stride, size in dims) + 1 == x.numel()
    place = x.data_ptr(), x.element_size(), x.is_conj(), x.is_neg()
    return (*place, x.numel()) if is_dense else (*place, *dims)
