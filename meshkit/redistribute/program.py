"""The steps of a plan on tensors: what one rank runs for a move, and for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..call import quotes_call
from ..errors import CollectiveError, SpecError
from ..groups.status import in_collective, is_tracked
from ..launch.of_one_process import OfOneProcess
from ..launch.torch_program import has_dual_level
from . import steps as ops
from .checked import Check
from .mover import Transmit
from .operations import Sizes, UnknownSizes, finish_step, run_local, start
from .plan import Plan
from .reductions import divide_after, divide_before

Axes = tuple[str, ...]
GroupOf = Callable[[Axes], dist.ProcessGroup]


class Handle(OfOneProcess):
    """A redistribution in progress: ``handle = mesh.begin(...); ...; y = handle.wait()``."""

    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish: Callable[[], object] | None = finish
        self._result: Any = None  # None also on a rank outside the target

    @quotes_call("handle.wait")
    def wait(self) -> Any:  # noqa: ANN401
        """Wait for the communication and return the result; later calls return it again.

        After an error the result is undefined, and later calls raise a CollectiveError.

        It is a tensor, or a state of a transfer; None on a rank outside the mesh ``to``.
        """
        if self._finish is not None:
            finish, self._finish = self._finish, _refuse_to_wait
            self._result = finish()
            self._finish = None
        return self._result


def _refuse_to_wait() -> None:
    raise CollectiveError("the move failed in an earlier wait.", fix="begin it again.")


# ------------------------------------------------------------------ all steps


@dataclass(frozen=True, eq=False)
class Program(OfOneProcess):
    """The bound steps of one plan: local ones, steps over a group, and one to another mesh.

    A rank without a part of a tensor before or after the last one has an empty tensor instead.
    """

    name: str  # the call with its pattern, for reports of hangs
    steps: tuple[ops.Step | Transmit, ...]
    group_of: GroupOf  # returns the group over some axes
    op: str  # the reduction: sum, avg, max or min
    divisor: int = 1  # the number by which the sum is divided, for an average
    # the groups by their axes, for torch.compile, which cannot trace ``group_of``
    groups: Mapping[Axes, dist.ProcessGroup] = field(default_factory=dict)
    # compares the calls of ranks over a group; None for a gradient, whose sizes follow its tensor
    compare: Callable[[dist.ProcessGroup, Tensor], object] | None = None
    # replaces the parts of a sum by the sum, before a move to another mesh
    sum_parts: Callable[[Tensor], Tensor] | None = None

    def with_groups(self) -> Program:
        """Return the program with its groups looked up. Local."""
        groups = {step.axes: self.group_of(step.axes) for step in self.group_steps}
        return replace(self, groups=groups)

    @property
    def group_steps(self) -> list[ops.GroupStep]:
        """The steps that communicate over a group."""
        return [step for step in self.steps if isinstance(step, ops.GroupStep)]

    def run(self, x: Tensor, sizes: Sizes = None) -> Tensor:
        """Return the result. Collective over the groups of the plan."""
        if self.sum_parts is not None:
            x = self.sum_parts(x)
        given = x
        if self.divisor > 1:
            x = divide_before(x, self.divisor)
        for step in self.steps:
            if isinstance(step, ops.GroupStep):
                x = self._communicate(step, x, sizes, given)
            elif isinstance(step, Transmit):
                work, x = step.start(x)
                work.wait()
            else:
                x = run_local(step, x, sizes)
        return x if self.divisor == 1 else divide_after(x, self.divisor, given.dtype)

    def _communicate(self, step: ops.GroupStep, x: Tensor, sizes: Sizes, given: Tensor) -> Tensor:
        """Run one step with other ranks, and announce it to a guard. Calls have ``given``."""
        if torch.compiler.is_compiling():
            result = start(step, x, self.op, sizes, self.groups[step.axes])[1]
        else:
            group = self.group_of(step.axes)
            with in_collective(self.name, group) if is_tracked() else nullcontext():
                self._compare(group, given)
                result = start(step, x, self.op, sizes, group)[1]
        return finish_step(step, result, self.op, x.dtype)

    def _compare(self, group: dist.ProcessGroup, x: Tensor) -> None:
        if self.compare is not None:
            self.compare(group, x)

    def begin(self, x: Tensor) -> Callable[[], Tensor]:
        """Start the program, and return what waits for its last communication and ends it."""
        kinds = ops.GroupStep, Transmit
        numbers = [i for i, step in enumerate(self.steps) if isinstance(step, kinds)]
        if not numbers:
            return lambda: self.run(x)
        last: Any = self.steps[numbers[-1]]
        head = replace(self, steps=self.steps[: numbers[-1]], divisor=1)
        tail = replace(self, steps=self.steps[numbers[-1] + 1 :], divisor=1, sum_parts=None)
        if isinstance(last, Transmit):
            moving, part = last.start(head.run(x))

            def wait_for_moving() -> Tensor:
                moving.wait()
                return tail.run(part)

            return wait_for_moving
        group = self.group_of(last.axes)
        with in_collective(self.name, group):
            self._compare(group, x)
        part = x if self.divisor == 1 else divide_before(x, self.divisor)
        work, result = start(last, head.run(part), self.op, None, group, True)

        def wait() -> Tensor:
            with in_collective(self.name, group):
                work.wait()
            y = tail.run(finish_step(last, result, self.op, part.dtype))
            return y if self.divisor == 1 else divide_after(y, self.divisor, x.dtype)

        return wait


def make_program(
    plan: Plan,
    coordinate: Mapping[str, int],
    group_of: GroupOf,
    op: str,
    name: str,
    unknowns: UnknownSizes,
) -> Program:
    """Return the program of the rank at a coordinate. Local; O(group) for regions."""
    steps = (unknowns.replace_shape(step.bind(coordinate)) for step in plan.steps)
    divisor = plan.move.count_ranks(plan.move.axes_of("+", "/*=?@")) if op == "avg" else 1
    return Program(name, tuple(steps), group_of, op, divisor)


# ------------------------------------------------------------------ forward and backward


@dataclass(frozen=True, eq=False)
class ProgramPair(OfOneProcess):
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
    # for torch.compile: name, local dim, known part of the local size, and number of parts of each
    # dim whose size a tensor gives; the shapes of the programs then depend on these sizes
    dims: tuple[tuple[str, int, int, int], ...] = ()
    checked_dtypes: set[torch.dtype] = field(default_factory=set)  # that have a gradient

    def sizes(self, x: Tensor) -> Sizes:
        """Return the global sizes of a local tensor, of the dims whose size it gives."""
        return {name: x.size(dim) // known * parts for name, dim, known, parts in self.dims}

    def run_forward(self, x: Tensor, sizes: Sizes) -> Tensor:
        """Run the forward program. Collective."""
        if self.check is not None:
            self.check.check_values(x)
        return self.forward.run(x, sizes)

    def run_backward(self, grad: Tensor, sizes: Sizes) -> Tensor:
        """Run the backward program, in the dtype of the caller's choice. Collective."""
        if self.check is not None:
            self.check.check_gradients(grad)
        program: Any = self.backward
        y = grad.to(self.grad_dtype or grad.dtype)
        if _function_of(y) is None:  # the usual case needs no second pair
            y = program.run(y, sizes)
        else:
            reverse = replace(self, forward=program, backward=self.forward, check=None)
            y = apply_pair(y, reverse, sizes)
        result: Tensor = y.to(grad.dtype)
        return result

    def with_groups(self) -> ProgramPair:
        """Return the pair with the groups looked up, for torch.compile. Local."""
        backward = self.backward and self.backward.with_groups()
        return replace(self, forward=self.forward.with_groups(), backward=backward)


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
        """Run the backward, itself with a gradient and a tangent."""
        return ctx.pair.run_backward(grad, ctx.sizes), None, None


class RedistributeWithTangent(torch.autograd.Function):
    """The same in forward mode, which costs more; torch.compile cannot trace a ``jvp``."""

    @staticmethod
    def forward(x: Tensor, pair: ProgramPair, sizes: Sizes) -> Tensor:
        """Run the forward."""
        y = pair.run_forward(x, sizes)
        return y.view_as(y) if y is x else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        """Keep the programs, which alone determine gradient and tangent."""
        _, ctx.pair, ctx.sizes = inputs

    backward = Redistribute.backward

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Any:  # noqa: ANN401
        """Move the tangent as the tensor: all but a maximum and a minimum are linear."""
        if not ctx.pair.is_linear:
            raise SpecError("a maximum or minimum has no tangent.", fix="x.detach().")
        return apply_pair(tangent, replace(ctx.pair, check=None), ctx.sizes)


def apply_pair(x: Tensor, pair: ProgramPair, sizes: Sizes) -> Any:  # noqa: ANN401  # a Tensor
    """Run the forward of a pair, with its gradient and its tangent. Collective."""
    function = _function_of(x)
    return pair.run_forward(x, sizes) if function is None else function.apply(x, pair, sizes)


def _function_of(x: Tensor) -> Any:  # noqa: ANN401
    """Return the autograd function that a tensor needs, or None."""
    if has_dual_level() and not torch.compiler.is_compiling():
        return RedistributeWithTangent
    return Redistribute if x.requires_grad and torch.is_grad_enabled() else None
