"""Read gradients, and add them up: the elements of this rank, the parts of a sum, all ranks."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.checks import Named
from ..errors import NonfiniteError
from ..launch.tensors import check_writable, is_dtensor
from ..launch.torch_program import foreach_norms
from .copies import by_kind
from .shares import main_grad_error, sparse_error

MOST = 2.0**16 - 1  # of 16 bits
NO_LIMIT = -1.0  # for a call without max_norm


def read_gradient(name: str, parameter: Any, *, is_clipped: bool) -> Any:  # noqa: ANN401
    """Return the gradient of a parameter; raise if its norm cannot be taken, or it be scaled."""
    gradient = parameter.grad
    if gradient is None:
        if getattr(parameter, "main_grad", None) is not None:
            raise main_grad_error(name)
        return None
    local = local_part(gradient)
    if local.layout is not torch.strided:
        raise sparse_error(name, str(local.layout).removeprefix("torch."))
    if is_clipped:
        fix = "p.grad = p.grad.clone() for this parameter p."
        check_writable(local, f"the gradient of {name}", fix)
    return gradient


def local_part(gradient: Any) -> Tensor:  # noqa: ANN401
    """Return the local tensor of a gradient, which is no copy."""
    local: Tensor = gradient.to_local() if is_dtensor(gradient) else gradient
    return local


def summed_placements(placements: Sequence[Any]) -> tuple[Any, ...]:
    """Return the placements of a partial DTensor after its sum."""
    from torch.distributed.tensor import Replicate  # there is a DTensor, so it is imported

    return tuple(Replicate() if kind.is_partial() else kind for kind in placements)


def sum_parts(gradient: Any, placements: tuple[Any, ...]) -> Tensor:  # noqa: ANN401
    """Return the local part of a partial DTensor after its sum, in 64 bits a number. Collective."""
    from torch.distributed.tensor import DTensor

    wide = DTensor.from_local(
        gradient.to_local().to(wide_dtype(gradient)),
        gradient.device_mesh,
        gradient.placements,
        run_check=False,
        shape=gradient.shape,
        stride=gradient.stride(),
    )
    whole: Tensor = wide.redistribute(placements=placements).to_local()
    return whole


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which parts of a gradient are added up."""
    return torch.complex128 if tensor.is_complex() else torch.float64


def distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors, each memory once: two parameters may share a gradient."""
    places = {(t.data_ptr(), t.shape, t.stride()) if t.numel() else id(t): t for t in tensors}
    return [*places.values()]


def total_of(counted: Sequence[Tensor], order: float, device: torch.device) -> Tensor:
    """Return the sum of the powers of all elements, or the largest element: float64 ()."""
    kinds = by_kind([tensor for tensor in counted if tensor.numel()])
    norms = [torch.stack(foreach_norms(k, order, joined=True)).to(device) for k in kinds]
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    every = torch.cat(norms)
    return every.max() if order == math.inf else every.pow(order).sum()


class Total(NamedTuple):
    """The norm of all ranks, to the power of its order, and what a rank reads beside it."""

    value: Tensor  # float64 ()
    is_nan: bool  # whether one of them has NaN
    is_alike: bool  # whether all ranks have the same limit


def reduce_total(own: Tensor, order: float, group: dist.ProcessGroup, limit: float | None) -> Total:
    """Return the sum, or the largest, of all ranks; NaN if one of them has NaN. Collective.

    The limit of each rank travels beside it, as four numbers below 2^16. All numbers of ``n`` ranks
    are equal if ``n * sum(x * x) == sum(x) ** 2``. The sums are exact, and up to 2^20 ranks no
    difference is so small that the products hide it by rounding.
    With the largest, they are equal if ``max(x)`` is the least one, ``MOST - max(MOST - x)``.
    """
    bits = struct.unpack("<4H", struct.pack("<d", NO_LIMIT if limit is None else limit + 0.0))
    is_sum = order != math.inf
    checks = [x * x if is_sum else MOST - x for x in bits]
    beside = torch.tensor([*bits, *checks], dtype=torch.float64, device=own.device)
    numbers = torch.cat([own.abs().reshape(1), beside])  # a NaN without a sign
    if is_sum:
        dist.all_reduce(numbers, group=group)
    else:  # the bits of numbers of 0 or more have their order, and NaN is the largest
        dist.all_reduce(numbers.view(torch.int64), dist.ReduceOp.MAX, group=group)
    total, *read = numbers.tolist()
    pairs = zip(read[:4], read[4:], strict=True)
    ranks = group.size()
    is_alike = all(ranks * y == x * x if is_sum else x + y == MOST for x, y in pairs)
    return Total(numbers[0].clone(), math.isnan(total), is_alike)


def tie_names(named: Named) -> list[tuple[list[str], Any]]:
    """Return each parameter with all its names."""
    ties: dict[int, tuple[list[str], Any]] = {}
    for name, parameter in named:
        ties.setdefault(id(parameter), ([], parameter))[0].append(name)
    return [*ties.values()]


def nonfinite_error(norm: Tensor, named: Named) -> NonfiniteError:
    """Return the error of a norm that is infinite or not a number."""
    gradients = ((names[0], p.grad) for names, p in tie_names(named) if p.grad is not None)
    names = [name for name, gradient in gradients if not local_part(gradient).isfinite().all()]
    more = f", nor are {len(names) - 1} others" * (len(names) > 1)
    where = f"{names[0]} is not finite on this rank{more}." if names else ""
    return NonfiniteError(
        f"the norm of the gradients is {norm.item()}.",
        where or "On this rank all gradients are finite.",
        fix="skip this step; all ranks raise this.",
    )
