"""Cut a tensor to this rank's tokens of a sequence, and restore the whole from all parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..call import parse_integer, quotes_call
from ..errors import MeshkitError, SpecError
from ..groups.groups import all_gather
from ..groups.live_mesh import LiveMesh
from ..launch.of_one_process import OfOneProcess
from ..layout.axes import resolve_axes
from ..layout.position import group_rank
from ..layout.sequence import Order, SequencePlan, plan_sequence, sequence_axes
from ..text import count_noun


@dataclass(frozen=True, eq=False)
class SequenceShard(OfOneProcess):
    """This rank's tokens of a sequence. Created by ``mesh.sequence``.

    Only ``gather`` communicates. Shift labels by one token before they are cut, since the token
    after a rank's last token is on another rank.

    A tensor whose ``dim`` is missing or has another number of tokens raises SpecError.

    Example:
        ``shard = mesh.sequence(4096, order="zigzag"); tokens = shard.take(tokens)``
    """

    plan: SequencePlan  # of all ranks
    part: int  # of this rank: its group rank in the group over the axes
    device: torch.device  # of the mesh, for ``positions`` and ``is_token``
    group_of: Callable[[], dist.ProcessGroup] = field(repr=False)  # the group, for ``gather``

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a copy without the group, for example for a DataLoader's worker."""
        return SequenceShard, (self.plan, self.part, self.device, _no_group)

    @cached_property
    def positions(self) -> Tensor:
        """The position ids of this rank's tokens, and from ``length`` on those of padding. Local.

        int64 (tokens,), ascending; a table of positions needs ``plan.padded`` rows.
        """
        return torch.from_numpy(self.plan.positions(self.part)).to(self.device)

    @cached_property
    def is_token(self) -> Tensor:
        """False where this rank holds padding: bool (tokens,). Local."""
        return torch.from_numpy(self.plan.is_token(self.part)).to(self.device)

    @property
    def num_tokens(self) -> int:
        """The number of this rank's tokens without padding, from 0. Local, O(1)."""
        return self.plan.num_tokens(self.part)

    @quotes_call("shard.take", by_name=("tensor",))
    def take(self, tensor: Tensor, dim: int = 1, fill: float = 0) -> Tensor:
        """Return this rank's slice of a whole sequence. Local, differentiable.

        Args:
            tensor: its ``dim`` has ``plan.length`` tokens; any device and dtype.
            dim: the dim of the sequence; negative ones count from the end.
            fill: the value of padding; -100 for labels that cross entropy ignores.

        Returns:
            A tensor with ``plan.tokens`` in ``dim``: a view if this rank holds one run without
            padding, else a copy.
        """
        length = self.plan.length
        fix = "a tensor of whole sequences, or mesh.sequence with their length."
        _check_dim(tensor, dim, length, f"The sequence has {length}.", fix)
        pieces = []
        for run in self.plan.ranges(self.part):
            first, last = min(run.start, length), min(run.stop, length)
            pieces.append(tensor.narrow(dim, first, last - first))
        if missing := self.plan.tokens - self.num_tokens:
            shape = list(tensor.shape)
            shape[dim] = missing
            pieces.append(tensor.new_full(shape, fill))
        return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0]

    @quotes_call("shard.restore", by_name=("parts",))
    def restore(self, parts: Tensor | Sequence[Tensor], dim: int = 1) -> Tensor:
        """Return the whole sequence from the slices of all parts, without padding.

        Local, differentiable.

        Args:
            parts: the slices in the order of the parts, or their concatenation along ``dim``.
            dim: the dim of the sequence; negative ones count from the end.

        Returns:
            The tensor with ``plan.length`` tokens in ``dim``; a view of a concatenation if the
            order is contiguous, else a copy.

        Raises:
            SpecError: also if the number of slices is not the number of parts.
        """
        plan = self.plan
        fix = "the slices of all parts, in their order; shard.gather(tensor) collects them."
        if not isinstance(parts, Tensor):
            if len(parts) != plan.parts:
                line = f"{count_noun(len(parts), 'slice')} for {count_noun(plan.parts, 'part')}."
                raise SpecError(line, fix=fix)
            for part in parts:
                _check_dim(part, dim, plan.tokens, f"Each part has {plan.tokens}.", fix)
            parts = torch.cat([*parts], dim)
        _check_dim(parts, dim, plan.padded, f"All parts together have {plan.padded}.", fix)
        return _reorder(parts, dim, plan).narrow(dim, 0, plan.length)

    @quotes_call("shard.gather", by_name=("tensor",))
    def gather(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """Return the whole sequence from every rank's slice. Collective over the group of the axes.

        The inverse of ``take``, on every rank. Not differentiable: compute the loss from the slice,
        and gather only for inspection. Cost: one all-gather.

        Args:
            tensor: this rank's slice, with ``plan.tokens`` in ``dim`` and a shape that is equal on
                every rank. Its device must be one that the group's backend supports.
            dim: the dim of the sequence; negative ones count from the end.

        Raises:
            SpecError: also if the group was not requested, with the argument that creates it.
            MeshkitError: after ``close``, or after ``shutdown``; on a copy in another process.
        """
        fix = "the result of shard.take(tensor)."
        _check_dim(tensor, dim, self.plan.tokens, f"Each part has {self.plan.tokens}.", fix)
        parts = [tensor.detach()]
        if self.plan.parts > 1:
            parts = all_gather(parts[0], self.group_of())
        return self.restore(parts, dim)


def _no_group() -> dist.ProcessGroup:
    """Raise in place of the group of a shard that was pickled."""
    line = "this shard is a copy from another process, without its group."
    raise MeshkitError(line, fix="mesh.sequence(...) in this process.")


def _reorder(whole: Tensor, dim: int, plan: SequencePlan) -> Tensor:
    """Return the concatenation of all parts with its tokens in sequence order."""
    if plan.order == "contiguous":
        return whole
    starts = {}
    first = 0
    for run in (run for part in range(plan.parts) for run in plan.ranges(part)):
        starts[run.start] = whole.narrow(dim, first, len(run))
        first += len(run)
    return torch.cat([starts[start] for start in sorted(starts)], dim)


def _check_dim(tensor: Tensor, dim: object, wanted: int, evidence: str, fix: str) -> None:
    """Raise if the tensor has no such dim, or if it holds another number of tokens."""
    shape, number = tuple(tensor.shape), parse_integer(dim)
    if number is None or not -len(shape) <= number < len(shape):
        line = f"a tensor of shape {shape} has no dim {dim!r}."
    elif shape[number] == wanted:
        return
    else:
        line = f"dim {number} of a tensor of shape {shape} has {shape[number]} tokens."
    fitting = [f"dim={d}" for d, size in enumerate(shape) if size == wanted]
    raise SpecError(line, evidence, fix=f"{', or '.join(fitting)}." if fitting else fix)


@quotes_call("mesh.sequence")
def sequence(  # noqa: D417  # self
    self: LiveMesh,
    length: int,
    *,
    axes: str | tuple[str, ...] | None = None,
    order: Order = "contiguous",
    pad: bool = False,
) -> SequenceShard:
    """Return this rank's tokens of a sequence, the same number on every rank. Local.

    The part of this rank is ``mesh.group_rank(*axes)``; along axes of size 1 it is the whole
    sequence. A length that does not divide raises a SpecError with the nearest lengths, except
    with ``pad``.

    Args:
        length: tokens in the sequence.
        axes: the axes that divide it, ``"cp sp"`` or ``("cp", "sp")``. None is those of cp and
            sp that the mesh has. Empty means that all ranks hold all of it.
        order: ``"contiguous"``, one run of tokens per rank; or ``"zigzag"``, an early and a
            late chunk per rank, equal work for all in causal ring attention. See
            :class:`meshkit.SequencePlan`.
        pad: whether a length that does not divide is filled with padding at its end.

    Example:
        >>> shard = mesh.sequence(8, order="zigzag")
        >>> shard.take(torch.arange(100, 108)[None])
        tensor([[102, 103, 104, 105]])
    """
    mesh, layout = self._groups, self._groups.plan.layout
    mesh.check_usable()
    names = sequence_axes(layout) if axes is None else resolve_axes("axes", axes, layout.axes)
    plan = plan_sequence(layout, names, length, order=order, pad=pad)
    part = group_rank(layout, mesh.rank, names) if names else 0
    return SequenceShard(plan, part, self.device, lambda: mesh.collective_group(names))
