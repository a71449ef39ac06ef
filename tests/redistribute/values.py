"""Every kind of tensor that a caller may hold: what moves, combines and compares is tried on each.

Each kind is a function of a rank, so that one process can make the tensors of all ranks. The shape
is (6, 4) but for the kinds whose point is the shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SHAPE = (6, 4)
Kind = Callable[[int], Tensor]


def ramp(rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return small whole numbers of both signs: their sums are exact in every dtype."""
    numbers = (torch.arange(24).reshape(SHAPE) * (rank + 2)) % 11 - 5
    return numbers.to(dtype)


def complex_ramp(rank: int) -> Tensor:
    """Return complex numbers with another imaginary part on each rank."""
    return torch.complex(ramp(rank, torch.float32), ramp(rank + 3, torch.float32))


def with_value(value: float, holder: int, dtype: torch.dtype = torch.float64) -> Kind:
    """Return a kind with one special element on one rank."""

    def make(rank: int) -> Tensor:
        x = ramp(rank, dtype)
        if rank == holder:
            x[3, 1] = value
        return x

    return make


def only_nan(rank: int) -> Tensor:
    """Return NaN on all ranks, with the sign bit on the odd ones."""
    return torch.full(SHAPE, float("nan"), dtype=torch.float32).copysign(
        torch.tensor(-1.0 if rank % 2 else 1.0)
    )


KINDS: dict[str, Kind] = {
    "float64": ramp,
    **{
        f"{name} on rank {rank}": with_value(float(name), rank)
        for name in ("nan", "inf", "-inf")
        for rank in range(2)
    },
    **{
        f"nan in {dtype} on rank {rank}".replace("torch.", ""): with_value(
            float("nan"), rank, dtype
        )
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for rank in range(2)
    },
    "nan of both signs": only_nan,
    "zeros of both signs": lambda rank: torch.zeros(SHAPE).copysign(
        torch.tensor(-1.0 if rank % 2 else 1.0)
    ),
    "complex": complex_ramp,
    "complex with nan": lambda rank: complex_ramp(rank) * (float("nan") if rank == 1 else 1),
    "bool": lambda rank: ramp(rank) > 0,
    "bool, all true": lambda rank: torch.ones(SHAPE, dtype=torch.bool),
    **{
        str(dtype).removeprefix("torch."): lambda rank, dtype=dtype: ramp(rank).abs().to(dtype)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16)
    },
    "float16": lambda rank: ramp(rank, torch.float16),
    "bfloat16": lambda rank: ramp(rank, torch.bfloat16),
    "float8": lambda rank: ramp(rank, torch.float8_e4m3fn),
    "empty": lambda rank: torch.empty(0, 4),
    "transposed": lambda rank: ramp(rank).t().contiguous().t(),
    "a slice": lambda rank: torch.cat([ramp(rank), ramp(rank + 1)], 1)[:, 2:6],
    "expanded": lambda rank: ramp(rank)[:1].expand(SHAPE),
    "expanded from one number": lambda rank: torch.tensor(rank + 1.0).expand(SHAPE),
    "conjugate": lambda rank: complex_ramp(rank).conj(),
    "conjugate and a slice": lambda rank: complex_ramp(rank).repeat(1, 2).conj()[:, 2:6],
    "negative": lambda rank: torch._neg_view(ramp(rank)),
    "negative, of a conjugate": lambda rank: complex_ramp(rank).conj().imag,
    "negative and a conjugate": lambda rank: torch._neg_view(complex_ramp(rank)).conj(),
    "aliased": lambda rank: torch.arange(27.0).add(rank).as_strided(SHAPE, (4, 1), 3),
    "overlapping": lambda rank: torch.arange(9.0).add(rank).as_strided(SHAPE, (1, 1)),
    "a parameter": lambda rank: torch.nn.Parameter(ramp(rank)).detach(),
    "inference": lambda rank: _inference(rank),
}


def _inference(rank: int) -> Tensor:
    with torch.inference_mode():
        return ramp(rank) + 0


def equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors have equal shape, dtype and numbers; NaN equals NaN.

    Bools are compared as bytes, since a byte of 2 is also true.
    """
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    x, y = (each.detach().resolve_conj().resolve_neg().contiguous() for each in (x, y))
    if x.element_size() == 1:
        return torch.equal(x.view(torch.uint8), y.view(torch.uint8))
    return bool(((x == y) | ((x != x) & (y != y))).all())
