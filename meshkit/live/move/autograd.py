"""The autograd function around two programs, and what the two need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...core.errors import SpecError
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
    is_linear: bool = True  # whether the forward is no maximum and no minimum
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
        y = apply_pair(grad.to(self.grad_dtype or grad.dtype), self.reverse(), sizes)
        return y.to(grad.dtype)

    def with_groups(self) -> ProgramPair:
        """Return the pair with the groups looked up, for torch.compile. Local."""
        backward = self.backward and self.backward.with_groups()
        return replace(self, forward=self.forward.with_groups(), backward=backward)

    def reverse(self) -> ProgramPair:
        """Return the pair for the gradient of the gradient."""
        program: Any = self.backward
        return replace(self, forward=program, backward=self.forward, check=None)


class TracedRedistribute(torch.autograd.Function):
    """A program with the program of its gradient. torch.compile traces no class with a ``jvp``."""

    @staticmethod
    def forward(x: Tensor, pair: ProgramPair, sizes: Sizes) -> Tensor:
        """Run the forward; a result that is the input itself becomes a view of it."""
        y = pair.run_forward(x, sizes)
        return y.view_as(y) if y is x else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        """Keep the programs, which alone determine the gradient."""
        _, ctx.pair, ctx.sizes = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """Run the backward, itself with a gradient and a tangent."""
        return ctx.pair.run_backward(grad, ctx.sizes), None, None


class Redistribute(TracedRedistribute):
    """The same, for torch's forward mode also."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # noqa: ANN401
        """Move the tangent as the tensor: all but a maximum and a minimum are linear."""
        if not ctx.pair.is_linear:
            raise SpecError("a maximum or minimum has no tangent.", fix="x.detach().")
        return apply_pair(tangent, replace(ctx.pair, check=None), ctx.sizes)


def apply_pair(x: Tensor, pair: ProgramPair, sizes: Sizes) -> Tensor:
    """Run the forward of a pair, with its gradient and its tangent. Collective."""
    if not torch.compiler.is_compiling():
        y: Tensor = Redistribute.apply(x, pair, sizes)  # type: ignore[no-untyped-call]
        return y
    if x.requires_grad and torch.is_grad_enabled():
        y = TracedRedistribute.apply(x, pair, sizes)  # type: ignore[no-untyped-call]
        return y
    return pair.run_forward(x, sizes)
