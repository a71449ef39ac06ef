"""Check the marks of a pattern at run time: copies must be equal, and work must count once.

At ``=``, the values forwards and the gradients backwards must be equal over the axis. At ``*`` the
values must be equal. Gradients there that are equal on all ranks, and not zero, come from ranks
that did the same work, and would count once for each of them.

A rank raises once all axes are checked, since the ranks along the next axis wait for it. All ranks
along the checked axes then raise, those with equal tensors as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DisagreementError, MeshkitError, SpecError
from ..groups.groups import all_gather, gather_bytes
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import plain
from ..layout.axes import gradient_axes
from ..text import format_sizes
from .pattern import Pattern, Side

MAX_TEXT = 512  # bytes of an error that ranks show each other


@dataclass(frozen=True, eq=False)
class Check(OfOneProcess):
    """The checks of one pattern."""

    pattern: Pattern  # the pattern as written, for reports
    named: Pattern  # the pattern over the axes of the groups
    groups: Mapping[str, dist.ProcessGroup]  # the group of each axis longer than 1 that has one
    sizes: Mapping[str, int]  # the global sizes of the dims, as this rank knows them

    def check_values(self, x: Tensor) -> None:
        """Raise if ranks differ in sizes, or copies in values. Collective over the axes."""
        self.share(None, x.device)  # a rank that refuses its tensor shares its error here
        named, error = self.named, None
        facts = f"{format_sizes(self.sizes)}, {x.dtype}, requires_grad={x.requires_grad}"
        for axis in self.groups:
            digests = self._gather(hashlib.sha256(facts.encode()).digest(), x.device, axis)
            if len({*digests}) > 1 and error is None:
                error = SpecError(
                    f'ranks call "{self.pattern}" with tensors that do not belong together.',
                    f"This rank has {facts}. Rank {_first_other(digests)} of the group over {axis} "
                    "and rank 0 differ.",
                    fix="equal global sizes, dtypes and requires_grad on all ranks; for parts of "
                    "different sizes, global sizes by keyword.",
                    axis=axis,
                )
        for axis in self._axes(named.left, "*="):
            digests = self._gather(digest_of(x), x.device, axis)
            if len({*digests}) > 1 and error is None:
                mark = named.left.types[axis].symbol
                error = SpecError(
                    f'"{self.pattern}" has {mark}{axis} on the left, and the tensors differ.',
                    f"Over {axis}, rank {_first_other(digests)} of the group differs from rank 0.",
                    fix=f"+{axis} if they are parts of a sum, or a cut such as dim/{axis}.",
                    axis=axis,
                )
        self.share(error, x.device)

    def check_gradients(self, grad: Tensor) -> None:
        """Raise if gradients differ at ``=``, or are equal at ``*``. Collective over the axes."""
        named, error = self.named, None
        for axis in self._axes(named.right, "=*"):
            digests = self._gather(digest_of(grad), grad.device, axis)
            if error is not None:
                continue
            is_equal = len({*digests}) == 1
            shared = named.right.types[axis].symbol == "="
            if shared and not is_equal:
                error = SpecError(
                    f'"{self.pattern}" has ={axis} on the right, and the gradients differ.',
                    f"The ranks of {axis} do different work, so only *{axis} counts all of it.",
                    fix=f"*{axis} on the right.",
                    axis=axis,
                )
            if not shared and is_equal and bool(grad.any()):
                averaged = (
                    f"; if DDP or FSDP averages gradients over {axis}, the loss times "
                    f"mesh.size({axis!r}) too"
                )
                error = SpecError(
                    f'"{self.pattern}" has *{axis} on the right, and all gradients are equal.',
                    f"The ranks of {axis} do the same work, so *{axis} counts it once a rank.",
                    fix=f"={axis} on the right{averaged * bool(gradient_axes({axis: 2}))}.",
                    axis=axis,
                )
        self.share(error, grad.device)

    def share(self, error: MeshkitError | None, device: torch.device) -> None:
        """Raise the error of this rank, or one that repeats that of another. Collective."""
        share_error(error, self.groups.values(), device, f'"{self.pattern}"')

    def _axes(self, side: Side, symbols: str) -> list[str]:
        types = side.types
        return [a for a in types if types[a].symbol in symbols and a in self.groups]

    def _gather(self, digest: bytes, device: torch.device, axis: str) -> list[bytes]:
        """Return the digest of each rank along an axis."""
        own = torch.tensor([*digest], dtype=torch.uint8, device=device)
        parts = all_gather(own, self.groups[axis])
        return [bytes(part.tolist()) for part in parts]


def share_error(
    error: MeshkitError | None, groups: Iterable[dist.ProcessGroup], device: torch.device, call: str
) -> None:
    """Raise the error of this rank, or one that repeats that of another. Collective.

    A rank passes on over the next group what it has learned over the one before.
    """
    text = b""
    if error is not None:
        own = f"{dist.get_rank()} has raised {type(error).__name__}: {error.summary}"
        text = own.encode()[:MAX_TEXT]
    for group in groups:
        texts = gather_bytes(text, MAX_TEXT, group, device)
        text = text or next(filter(None, (each.rstrip(b"\0") for each in texts)), b"")
    if error is not None:
        raise error
    if text:
        line = f"Rank {text.decode(errors='ignore')}"
        summary = f"another rank raises in {call}."
        raise DisagreementError(summary, line, fix="look at the error of that rank first.")


def digest_of(x: Tensor) -> bytes:
    """Return the sha256 of shape, dtype and values."""
    flat = plain(x.detach().cpu()).contiguous()
    digest = hashlib.sha256(f"{tuple(x.shape)} {x.dtype}".encode())
    digest.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _first_other(digests: list[bytes]) -> int:
    return next(rank for rank, digest in enumerate(digests) if digest != digests[0])
