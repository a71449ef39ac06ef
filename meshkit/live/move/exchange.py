"""Exchange rows of any number with the ranks of an axis, as a mixture of experts does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.errors import SpecError
from ...core.text import count_noun
from ...core.validate import parse_integer
from ..group_registry import MeshGroups
from ..status import in_collective
from .operations import check_tensor

Counts = list[int]


class Exchange(torch.autograd.Function):
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
        dist.all_to_all_single(result, x.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        """Send the gradient of each row back."""
        return apply_exchange(grad, ctx.group, ctx.received, ctx.sent), None, None, None


apply_exchange: Callable[..., Tensor] = Exchange.apply


def exchange_rows(
    mesh: MeshGroups, x: Tensor, axis: str, counts: Sequence[int] | Tensor
) -> tuple[Tensor, Counts]:
    """Exchange rows over an axis. See :meth:`meshkit.Mesh.exchange`."""
    check_tensor(x)
    group = mesh.get((axis,))
    values = counts.tolist() if isinstance(counts, Tensor) else counts
    sent = _check_counts(values, x, axis, mesh.plan.layout.size(axis))
    with in_collective(f"exchange over {axis}", group):
        numbers = torch.tensor(sent, device=x.device)
        arriving = torch.empty_like(numbers)
        dist.all_to_all_single(arriving, numbers, group=group)
        received = arriving.tolist()
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
        fix=f"{count_noun(size, 'number')} of 0 or more, with the sum {rows}.",
    )
