"""The law of values for norms: gradients of every kind give the norm of one process, or an error.

After an error no gradient has changed, also if the fault is found in the last of several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import pytest
import torch
from torch import Tensor, nn

import meshkit
from meshkit.errors import NonfiniteError, SpecError
from tests.pool import Pool
from tests.redistribute.values import KINDS, equal

RANKS = 2
LAYOUTS: dict[str, dict[str, str]] = {
    "copies": {},
    "parts": {"w": "a/tp b"},
    "a sum": {"w": "a b +tp"},
}
NAMES = [
    name
    for name, make in KINDS.items()
    if make(0).is_floating_point() or make(0).is_complex()
    if make(0).element_size() > 1
]
# gradients that cannot be changed in place: elements that are one in memory, or no inference mode
REFUSED = ("expanded", "expanded from one number", "overlapping", "inference")


def parameter_of(gradient: Tensor) -> nn.Parameter:
    """Return a parameter with a gradient."""
    parameter = nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
    parameter.grad = gradient
    return parameter


def combine(how: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return the gradient of one process."""
    wide = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in tensors]
    if how == "a sum":
        return reduce(torch.add, wide)
    if how == "parts":
        return torch.cat(wide)
    odd = [x for x in wide if not x.isfinite().all()]
    return odd[0] if odd else wide[0]


def measure(how: str, order: float) -> list[str]:
    """Return the kinds whose norm is wrong, or whose gradients are wrong after it."""
    wrong = []
    with meshkit.build_mesh(tp=RANKS) as mesh:
        for name in NAMES:
            tensors = [KINDS[name](rank) for rank in range(RANKS)]
            if how == "copies":
                tensors = [x if "on rank" in name else KINDS[name](0) for x in tensors]
            whole = combine(how, tensors)
            wanted = torch.linalg.vector_norm(whole, order).item() if whole.numel() else 0.0
            first, own = torch.ones(3), tensors[mesh.rank]
            named = {"a": parameter_of(first), "w": parameter_of(own)}
            before, layout = own.clone(), {"a": "n =tp", **LAYOUTS[how]}
            wanted = float(torch.linalg.vector_norm(torch.tensor([wanted] + [1.0] * 3), order))
            norm = mesh.grad_norm(named, order, layout=layout).item()
            if not math.isclose(norm, wanted, rel_tol=1e-5) and repr(norm) != repr(wanted):
                wrong.append(f"{name}: norm {norm}, not {wanted}")
            try:
                mesh.clip_grad_norm(named, 1.0, order, layout=layout)
            except SpecError as error:
                unchanged = equal(own, before) and first.equal(torch.ones(3))
                if name not in REFUSED or not unchanged:
                    wrong.append(f"{name}: {error}, and unchanged is {unchanged}")
                continue
            factor = (1 / (torch.tensor(wanted) + 1e-6)).clamp(max=1).item()  # NaN stays
            wide = before.to(torch.complex128 if own.is_complex() else torch.float64)
            scaled = wide * factor
            if name in REFUSED or not near(own, scaled):
                wrong.append(f"{name}: {own}, not {scaled}")
    return wrong


def near(x: Tensor, y: Tensor) -> bool:
    """Return whether tensors are equal up to rounding; NaN equals NaN."""
    return torch.allclose(x.to(y.dtype), y, rtol=1e-2, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("order", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("how", LAYOUTS)
def test_the_norm_of_gradients_of_every_kind_is_that_of_one_process(
    how: str, order: float, pool: Pool
) -> None:
    assert pool.run(measure, how, order) == [[]] * RANKS


def raise_for_a_copy() -> list[str]:
    """Return the errors of a gradient that is not finite on one rank alone."""
    errors = []
    with meshkit.build_mesh(tp=RANKS) as mesh:
        for holder in range(RANKS):
            for value in (math.nan, math.inf):
                for asks in (True, False):  # the ranks compare copies once, and later not
                    gradient = torch.ones(4)
                    named = {"w": parameter_of(gradient)}
                    if not asks:
                        mesh.grad_norm(named)
                    if mesh.rank == holder:
                        gradient[2] = value
                    before = gradient.clone()
                    try:
                        mesh.clip_grad_norm(named, 1.0, error_if_nonfinite=True)
                    except NonfiniteError as error:
                        errors.append(f"{holder} {value}: {error.summary}")
                    assert equal(gradient, before)
                    norm = mesh.grad_norm(named).item()
                    assert repr(norm) == repr(value), (holder, norm)
    return errors


def test_a_copy_that_is_not_finite_on_one_rank_raises_on_all(pool: Pool) -> None:
    results = pool.run(raise_for_a_copy)
    assert results[0] == results[1]
    assert len(results[0]) == 8, results[0]


def clip_shared_gradients() -> None:
    with meshkit.build_mesh(tp=RANKS) as mesh:
        shared = torch.full((4,), 3.0)
        first, second = parameter_of(shared), parameter_of(shared)
        norm = mesh.clip_grad_norm({"a": first, "b": second, "again": first}, 1.0)
        assert norm.item() == pytest.approx(math.sqrt(72))
        assert shared.tolist() == pytest.approx([3 / math.sqrt(72)] * 4)  # scaled once


def test_a_gradient_of_two_parameters_is_scaled_once(pool: Pool) -> None:
    pool.run(clip_shared_gradients)
