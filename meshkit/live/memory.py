"""The numbers of a tensor in memory: negative and conjugate views, and elements that share it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import SpecError


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
