"""Which tokens of a sequence this rank holds: cut a tensor to them, and put the whole together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.call import Call, Word
from ..core.errors import MeshkitError, SpecError, told
from ..core.integers import integer
from ..core.layout import Layout
from ..core.named import named
from ..core.sequence import Order, SequencePlan, changed, sequence_plan
from ..core.words import count_noun

SP = ("sp",)


@dataclass(frozen=True, eq=False)
class SequenceShard:
    """This rank's tokens of a sequence. Made by ``mesh.sequence``.

    Only ``gather`` communicates. Shift labels by one token before they are cut: the token after a
    rank's last one lies on another rank.

    Attributes:
        plan: how the sequence is cut, for all ranks.
        part: which part this rank holds: its place in the group over the axes.
        device: the mesh's, where ``positions`` and ``is_token`` lie.
        group_of: gives the group over the axes, when ``gather`` needs it.

    Example:
        ``shard = mesh.sequence(4096, order="zigzag"); mine = shard.take(tokens)``
    """

    plan: SequencePlan
    part: int
    device: torch.device
    group_of: Callable[[], dist.ProcessGroup] = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process, a DataLoader's worker: all but the group goes along."""
        return SequenceShard, (self.plan, self.part, self.device, _left_behind)

    @cached_property
    def positions(self) -> Tensor:
        """The position ids of this rank's tokens: int64 (tokens,), ascending. Local.

        Those of padding run on from ``length``: a table of positions needs ``plan.padded`` rows.
        """
        return torch.from_numpy(self.plan.positions(self.part)).to(self.device)

    @cached_property
    def is_token(self) -> Tensor:
        """False where this rank holds padding: bool (tokens,). Local."""
        return torch.from_numpy(self.plan.is_token(self.part)).to(self.device)

    @property
    def num_tokens(self) -> int:
        """How many of this rank's places hold a token, which may be none. Local, O(1)."""
        return self.plan.num_tokens(self.part)

    def take(self, tensor: Tensor, dim: int = 1, fill: float = 0) -> Tensor:
        """This rank's slice of a tensor that holds the whole sequence. Local; gradients pass.

        Args:
            tensor: whose ``dim`` has ``plan.length`` tokens, on any device, of any dtype.
            dim: the dim of the sequence; negative ones count from the end.
            fill: what padding holds; -100 for labels that cross entropy leaves out.

        Returns:
            The same with ``plan.tokens`` in ``dim``: a view where this rank holds one run without
            padding, else a copy.

        Raises:
            SpecError: where the tensor has no such dim, or ``dim`` another number of tokens.
        """
        call, length = Call("shard.take", (Word("tensor"),), {"dim": dim}), self.plan.length
        fix = "a tensor of whole sequences, or mesh.sequence with their length."
        _check(call, tensor, dim, length, f"The sequence has {length}.", fix)
        held = []
        for run in self.plan.ranges(self.part):
            first, last = min(run.start, length), min(run.stop, length)
            held.append(tensor.narrow(dim, first, last - first))
        if missing := self.plan.tokens - self.num_tokens:
            shape = list(tensor.shape)
            shape[dim] = missing
            held.append(tensor.new_full(shape, fill))
        return torch.cat(held, dim) if len(held) > 1 else held[0]

    def restore(self, parts: Tensor | Sequence[Tensor], dim: int = 1) -> Tensor:
        """The whole sequence from the slices of all parts, padding cut off. Local; gradients pass.

        Args:
            parts: the slices in the order of the parts, or their concatenation along ``dim``.
            dim: the dim of the sequence; negative ones count from the end.

        Returns:
            The tensor with ``plan.length`` tokens in ``dim``; a view of a concatenation where the
            order is contiguous, else a copy.

        Raises:
            SpecError: where a tensor has no such dim, or ``dim`` another number of tokens; for
                another number of slices than there are parts.
        """
        call, plan = Call("shard.restore", (Word("parts"),), {"dim": dim}), self.plan
        fix = "all parts, in their order; shard.gather(tensor) gets them."
        if not isinstance(parts, Tensor):
            _check_parts(call, parts, dim, plan, fix)
        whole = parts if isinstance(parts, Tensor) else torch.cat(list(parts), dim)
        _check(call, whole, dim, plan.padded, f"All parts together have {plan.padded}.", fix)
        return _in_order(whole, dim, plan).narrow(dim, 0, plan.length)

    def gather(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """The whole sequence from every rank's slice. Collective over the group of the axes.

        One all-gather; every rank has the whole sequence then. No gradient passes: compute the loss
        from the slice, and gather what is to be looked at. The inverse of ``take``.

        Args:
            tensor: this rank's slice, whose ``dim`` has ``plan.tokens``; of the same shape on every
                rank, and on the device of the group's backend.
            dim: the dim of the sequence; negative ones count from the end.

        Returns:
            A new tensor with ``plan.length`` tokens in ``dim``; dtype and device are kept.

        Raises:
            SpecError: where the tensor has no such dim, or ``dim`` another number of tokens; for
                axes whose group was not asked for, with the argument that builds it.
            MeshkitError: after ``close``, or after ``shutdown``; on a copy in another process.
        """
        call = Call("shard.gather", (Word("tensor"),), {"dim": dim})
        fix = "what shard.take(tensor) gives."
        _check(call, tensor, dim, self.plan.tokens, f"Each part has {self.plan.tokens}.", fix)
        parts = [tensor.detach()]
        if self.plan.parts > 1:
            sent = parts[0].contiguous()
            parts = [torch.empty_like(sent) for _ in range(self.plan.parts)]
            dist.all_gather(parts, sent, group=self.group_of())
        return self.restore(parts, dim)


def _left_behind() -> dist.ProcessGroup:
    """In place of the group of a shard that was pickled."""
    line = "shard.gather(tensor): this shard is a copy, and its group stayed behind."
    raise MeshkitError(told(line, fix="mesh.sequence(...) in this process."))


def sequence_call(length: int, axes: object, order: Order, pad: bool) -> Call:
    """``mesh.sequence`` as it was written, without what was left at its default."""
    more = {} if axes in (SP, SP[0]) else {"axes": axes}
    return Call("mesh.sequence", (length,), {**more, **changed({"order": order, "pad": pad})})


def sequence_shard(
    call: Call,
    layout: Layout,
    place: Callable[..., int],
    group_of: Callable[..., dist.ProcessGroup],
    device: torch.device,
    length: int,
    axes: object,
    order: Order,
    pad: bool,
) -> SequenceShard:
    """What a rank of the layout holds of a sequence cut over some axes. Local.

    Args:
        call: the call to quote.
        layout: the grid.
        place: axes to this rank's place in the group over them.
        group_of: axes to that group; asked only when it is needed.
        device: where position ids go.
        length: tokens in the sequence.
        axes: those that divide it, as ``"cp sp"`` or ``("cp", "sp")``.
        order: as in :class:`meshkit.SequencePlan`.
        pad: as there.

    Raises:
        SpecError: as ``mesh.sequence``.
        UnknownAxisError: for an axis the layout does not have.
    """
    names, sizes = named(call, "axes", axes, layout.axes), layout.sizes
    cut = " x ".join(f"{name} {sizes[name]}" for name in names)
    parts = math.prod(sizes[name] for name in names)
    plan = sequence_plan(call, length, parts, order, pad, cut)
    part = place(*names) if names else 0
    return SequenceShard(plan, part, device, lambda: group_of(*names))


def _in_order(whole: Tensor, dim: int, plan: SequencePlan) -> Tensor:
    """The concatenation of all parts with its tokens in the order of the sequence."""
    if plan.order == "contiguous":
        return whole
    starts = {}
    first = 0
    for run in (run for part in range(plan.parts) for run in plan.ranges(part)):
        starts[run.start] = whole.narrow(dim, first, len(run))
        first += len(run)
    return torch.cat([starts[start] for start in sorted(starts)], dim)


def _check_parts(
    call: Call, parts: Sequence[Tensor], dim: object, plan: SequencePlan, fix: str
) -> None:
    if len(parts) != plan.parts:
        line = f"{call}: {count_noun(len(parts), 'slice')} for {count_noun(plan.parts, 'part')}."
        raise SpecError(told(line, fix=fix))
    for part in parts:
        _check(call, part, dim, plan.tokens, f"Each part has {plan.tokens}.", fix)


def _check(call: Call, tensor: Tensor, dim: object, wanted: int, evidence: str, fix: str) -> None:
    """Refuse a dim that is not there, or that holds another number of tokens."""
    shape, place = tuple(tensor.shape), integer(dim)
    if place is None or not -len(shape) <= place < len(shape):
        line = f"{call}: a tensor of shape {shape} has no dim {dim!r}."
    elif shape[place] == wanted:
        return
    else:
        line = f"{call}: dim {place} of a tensor of shape {shape} has {shape[place]} tokens."
    fits = [f"dim={number}" for number, size in enumerate(shape) if size == wanted]
    raise SpecError(told(line, evidence, fix=f"{', or '.join(fits)}." if fits else fix))
