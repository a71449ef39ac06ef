"""The autograd function around two programs, and what the two need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .checked import Check
from .operations import Arrange, Sizes
from .program import Program


@dataclass(frozen=True, eq=False)
class ProgramPair:
    """A forward and its backward."""

    forward: Program  # the program of the forward
    backward: Program | None  # the program of the gradient; None if a side has no mark for an axis
    grad_dtype: torch.dtype | None  # the dtype in which gradients are summed; None is their own
    backward_reduces: bool  # whether the backward sums gradients of several ranks
    # the check of values and gradients; None outside ``mesh.checked()``.
    check: Check | None = None
    # whether result and gradient are unchanged for its shape, as over axes of size 1
    is_identity: bool = False

    def keeps(self, shape: tuple[int, ...]) -> bool:
        """Return whether neither program changes a tensor of that shape."""
        same = Arrange(shape, None)
        return self.backward is not None and all(
            program.divisor == 1 and all(operation == same for operation in program.operations)
            for program in (self.forward, self.backward)
        )

    def run_forward(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Run the forward program. Collective."""
        if self.check is not None:
            self.check.check_values(x)
        return self.forward.run(x, sizes)

    def begin_forward(self, x: Tensor) -> Callable[[], Tensor]:
        """Begin the forward program, see :meth:`Program.begin`. Collective."""
        if self.check is not None:
            self.check.check_values(x)
        return self.forward.begin(x)

    def run_backward(self, grad: Tensor, sizes: Sizes) -> Tensor:
        """Run the backward program, in the dtype of the caller's choice. Collective."""
        if self.check is not None:
            self.check.check_gradients(grad)
        program: Any = self.backward
        if self.grad_dtype is None or self.grad_dtype == grad.dtype:
            return program.run(grad, sizes)  # type: ignore[no-any-return]
        return program.run(grad.to(self.grad_dtype), sizes).to(grad.dtype)  # type: ignore[no-any-return]

    def with_groups(self) -> ProgramPair:
        """Return the pair with the groups looked up, for torch.compile. Local."""
        backward = self.backward and self.backward.with_groups()
        return replace(self, forward=self.forward.with_groups(), backward=backward)

    def reverse(self) -> ProgramPair:
        """Return the pair for the gradient of the gradient."""
        program: Any = self.backward
        return replace(self, forward=program, backward=self.forward, check=None)


class Redistribute(torch.autograd.Function):
    """A program with the program of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pair: ProgramPair, sizes: Sizes) -> Tensor:  # noqa: ANN401
        """Run the forward; a result that is the input itself becomes a view of it."""
        ctx.pair, ctx.sizes = pair, sizes
        y = pair.run_forward(x, sizes)
        return y.view_as(y) if y is x else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """Run the backward, itself with a gradient if one is wanted."""
        if torch.is_grad_enabled() and grad.requires_grad:
            return apply_pair(grad, ctx.pair.reverse(), ctx.sizes), None, None
        return ctx.pair.run_backward(grad, ctx.sizes), None, None


apply_pair: Callable[..., Tensor] = Redistribute.apply
