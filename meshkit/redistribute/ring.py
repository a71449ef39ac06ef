"""Moves along one axis without a pattern: a ring shift, and an exchange of rows; with gradients.

A shift passes tensors of one shape some steps along the axis. An exchange sends rows of any number
to each rank of the axis, as a mixture of experts does.

The gradient of a shift goes the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..call import check_integer, parse_integer, quotes_call
from ..errors import MeshkitError, SpecError
from ..groups.live_mesh import LiveMesh
from ..groups.registry import MeshGroups
from ..groups.status import Message, in_collective
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import plain
from ..layout.axes import parse_axis
from ..text import count_noun
from .equal_calls import (
    compare_calls,
    compare_refusal,
    device_of,
    differing_calls,
    drop_idle_gradient,
    refused_call,
    shorten_call,
)
from .operations import all_to_all, check_tensor

Counts = list[int]
REFUSED = -1  # in place of each count, from a rank that refuses its call


@dataclass(frozen=True, eq=False)
class Ring(OfOneProcess):
    """The ranks along one axis, as seen by this rank."""

    group: dist.ProcessGroup
    index: int  # the coordinate of this rank
    size: int
    name: str  # the call, for reports of hangs

    def pass_on(self, x: Tensor, steps: int) -> Tensor:
        """Send a tensor some steps along the axis; return the one that arrives. Collective."""
        if steps % self.size == 0:
            return x
        target, origin = (self.index + steps) % self.size, (self.index - steps) % self.size
        source = plain(x).contiguous()
        result = torch.empty_like(source)
        if x.is_meta:
            return result
        if torch.compiler.is_compiling():
            return self._pass_all_to_all(source, target, origin)
        operations = [
            dist.P2POp(dist.isend, source, group=self.group, group_peer=target),
            dist.P2POp(dist.irecv, result, group=self.group, group_peer=origin),
        ]
        messages = list[Message]()
        with in_collective(self.name, self.group, messages):
            works = dist.batch_isend_irecv(operations)
            messages += zip(operations, works, strict=False)  # one work for all on nccl
            for work in works:
                work.wait()
        return result

    def _pass_all_to_all(self, source: Tensor, target: int, origin: int) -> Tensor:
        """Return the tensor that arrives, by the collective that torch.compile can trace."""
        result, ranks = torch.empty_like(source).view(-1), range(self.size)
        received = [source.numel() * (rank == origin) for rank in ranks]
        sent = [source.numel() * (rank == target) for rank in ranks]
        all_to_all(result, source.view(-1), received, sent, self.group)
        return result.view(source.shape)


class Shift(torch.autograd.Function):
    """A shift, whose gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ring: Ring, steps: int) -> Tensor:  # noqa: ANN401
        """Pass the tensor on."""
        ctx.ring, ctx.steps = ring, steps
        y = ring.pass_on(x, steps)
        return y.view_as(y) if y is x else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """Pass the gradient back."""
        return apply_shift(grad, ctx.ring, -ctx.steps), None, None


apply_shift: Callable[..., Tensor] = Shift.apply


def make_ring(mesh: MeshGroups, axis: str) -> Ring:
    """Return the ring of this rank along an axis. Local."""
    layout = mesh.plan.layout
    name = parse_axis(axis, layout.axes)
    index = layout.coordinate(mesh.rank).get(name, 0)  # an absent axis has size 1
    return Ring(mesh.get((name,)), index, layout.size(name), f"shift over {name}")


def shift_tensor(mesh: MeshGroups, ring: Ring, x: Tensor, steps: int) -> Tensor:
    """Pass a tensor along an axis. See :meth:`meshkit.Mesh.shift`."""
    try:
        check_tensor(x)
        number = check_integer("steps", steps)
    except MeshkitError as error:
        compare_refusal(mesh, ring.group, x, ring.name, error)
        raise
    if not torch.compiler.is_compiling():
        with in_collective(ring.name, ring.group):
            facts = f"{ring.name} by {number}; shape={[*x.shape]}"
            compare_calls(mesh, ring.group, drop_idle_gradient(x), facts)
    return apply_shift(x, ring, number)


# ------------------------------------------------------------------ rows


class ExchangeRows(torch.autograd.Function):
    """An exchange of rows, whose gradient sends each row back."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        group: dist.ProcessGroup,
        sent: Counts,
        received: Counts,
    ) -> Tensor:
        """Send blocks of rows, and return the rows received."""
        ctx.group, ctx.sent, ctx.received = group, sent, received
        result = x.new_empty((sum(received), *x.shape[1:]))
        all_to_all(result, plain(x).contiguous(), received, sent, group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        """Send the gradient of each row back."""
        return apply_exchange(grad, ctx.group, ctx.received, ctx.sent), None, None, None


apply_exchange: Callable[..., Tensor] = ExchangeRows.apply


@quotes_call("mesh.exchange", by_name=("x",))
def exchange(  # noqa: D417  # self
    self: LiveMesh, x: torch.Tensor, axis: str, counts: Sequence[int] | torch.Tensor
) -> tuple[torch.Tensor, list[int]]:
    """Send rows to the ranks of an axis, and return the rows that arrive. Differentiable.

    Collective over the axis. The rows for the first rank come first, and so on.

    Args:
        x: the rows in its dim 0. All other dims, the dtype and ``requires_grad`` are equal on all
            ranks, also on one without rows. They compare them as in :meth:`redistribute`.
        axis: the axis of the mesh.
        counts: the number of rows for each rank of the axis, in their order; their sum is all
            rows.

    Returns:
        The rows received, in the order of the ranks, and how many came from each: the counts of
        a second call that sends results back.

    Raises:
        SpecError: if the counts do not fit the rows. The other ranks of the axis raise a
            DisagreementError that repeats it.

    Cost: two all_to_alls, the first one of the counts, which are read on the host.

    Example:
        >>> rows = torch.full((3, 1), mesh.rank)
        >>> received, counts = mesh.exchange(rows, "sp", [1, 2])
        >>> received.flatten().tolist(), counts
        ([4, 4, 5, 5], [2, 2])
    """
    mesh = self._groups
    group, call = mesh.get((axis,)), f"exchange over {axis}"
    size, refusal, device = mesh.plan.layout.size(axis), None, device_of(x)
    sent = [REFUSED] * size
    try:
        check_tensor(x)
        if x.is_meta:
            line = "x is a meta tensor; the rows that arrive are data."
            raise SpecError(line, fix="a real tensor.")
        values = counts.tolist() if isinstance(counts, Tensor) else counts
        sent = _check_counts(values, x, axis, size)
        facts = f"{call}; row={[*x.shape[1:]]}"
    except MeshkitError as error:
        refusal, facts = error, refused_call(call, error)
    with in_collective(call, group):
        if refusal is None:
            compare_calls(mesh, group, drop_idle_gradient(x), facts)
        elif compare_refusal(mesh, group, x, call, refusal) or device.type == "meta":
            raise refusal
        numbers = torch.tensor(sent, device=device)
        arriving = torch.empty_like(numbers)
        dist.all_to_all_single(arriving, numbers, group=group)
        received = arriving.tolist()
        if REFUSED in received:  # all ranks have got it
            differing = differing_calls(group, shorten_call(facts), device)
            raise refusal or differing
        return apply_exchange(x, group, sent, received), received


def _check_counts(counts: object, x: Tensor, axis: str, size: int) -> Counts:
    """Return the counts as ints: one for each rank of the axis, and all rows together."""
    if not x.dim():
        raise SpecError("the tensor has no dim of rows.", fix="x[None], which has one row.")
    values = [*counts] if isinstance(counts, Iterable) else []
    numbers = [parse_integer(value) for value in values]
    sent = [number for number in numbers if number is not None and number >= 0]
    rows = x.shape[0]
    if len(sent) == len(values) == size and sum(sent) == rows:
        return sent
    raise SpecError(
        f"counts is {values if values else repr(counts)}, and the tensor has "
        f"{count_noun(rows, 'row')}.",
        f"{axis} has {count_noun(size, 'rank')}. Each gets a number of rows, in their order.",
        fix=f"{count_noun(size, 'whole number')} of 0 or more, with the sum {rows}.",
    )
