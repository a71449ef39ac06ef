"""Program: the operations of this rank for one plan, run on tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.redistribute.plan import Plan
from ...core.redistribute.steps import ops
from ..status import in_collective, is_tracked
from . import operations
from .operations import Arrange, Communication, FlatCollective, Size, Sizes, SymbolicSize

Axes = tuple[str, ...]
GroupOf = Callable[[Axes], dist.ProcessGroup]


@dataclass(frozen=True)
class Unknowns:
    """Dims of unknown size, each with the size ``scale`` times a prime of its own in the plan."""

    primes: Mapping[int, str] = field(default_factory=dict)  # prime to the name of its dim
    scale: int = 1  # the other factor of these sizes

    def shape(self, shape: ops.Shape) -> tuple[Size, ...]:
        """Return a shape of the plan in terms of the sizes of these dims."""
        return tuple(map(self._size, shape)) if self.primes else shape

    def _size(self, size: int) -> Size:
        names, divisor = [], 1
        for prime, name in self.primes.items():
            if size % prime == 0:
                size //= prime
                names.append(name)
                divisor *= self.scale
        common = math.gcd(size, divisor)
        return SymbolicSize(size // common, divisor // common, tuple(names)) if names else size


@dataclass(frozen=True, eq=False)
class Program:
    """The operations of this rank."""

    name: str  # the call with its pattern, for reports of hangs
    operations: tuple[Any, ...]  # the operations in their order
    group_of: GroupOf  # returns the group over some axes
    divisor: int = 1  # the number by which the result is divided, for an average
    # the groups by their axes, for torch.compile, which cannot trace ``group_of``.
    groups: Mapping[Axes, dist.ProcessGroup] = field(default_factory=dict)

    def with_groups(self) -> Program:
        """Return the program with its groups looked up. Local."""
        steps = (o for o in self.operations if isinstance(o, Communication))
        return replace(self, groups={o.axes: self.group_of(o.axes) for o in steps})

    def run(self, x: Tensor, sizes: Sizes = None) -> Tensor:
        """Return the result. Collective over the groups of the plan."""
        for operation in self.operations:
            if isinstance(operation, Communication):
                x = self._communicate(operation, x, sizes)
            else:
                x = operation(x, sizes)
        return x if self.divisor == 1 else x / self.divisor

    def _communicate(self, operation: Any, x: Tensor, sizes: Sizes) -> Tensor:  # noqa: ANN401
        """Run one operation with other ranks, and announce it to a guard."""
        if torch.compiler.is_compiling():
            group = self.groups[operation.axes]
        else:
            group = self.group_of(operation.axes)
            if is_tracked():
                with in_collective(self.name, group):
                    guarded: Tensor = operation.start(x, sizes, group, False)[1]
                return guarded
        result: Tensor = operation.start(x, sizes, group, False)[1]
        return result

    def begin(self, x: Tensor) -> Callable[[], Tensor]:
        """Start the program, and return what waits for its last communication and ends it."""
        numbers = [i for i, o in enumerate(self.operations) if isinstance(o, Communication)]
        if not numbers:
            return lambda: self.run(x)
        last = numbers[-1]
        head = Program(self.name, self.operations[:last], self.group_of)
        tail = Program(self.name, self.operations[last + 1 :], self.group_of, self.divisor)
        operation = self.operations[last]
        group = self.group_of(operation.axes)
        work, result = operation.start(head.run(x), None, group, True)

        def finish() -> Tensor:
            with in_collective(self.name, group):
                work.wait()
            return tail.run(result)

        return finish


def make_program(
    plan: Plan,
    coordinate: Mapping[str, int],
    group_of: GroupOf,
    op: str,
    name: str,
    unknowns: Unknowns,
) -> Program:
    """Return the program of the rank at a coordinate. Local; O(group) for regions."""
    made = (o for step in plan.steps for o in _operations(step.op(coordinate), op, unknowns))
    sizes, divisor = dict(plan.move.axes), 1
    for axis in plan.move.axes_of("+", "/*=?@") if op == "avg" else ():
        divisor *= sizes[axis]
    return Program(name, tuple(_merge(made)), group_of, divisor)


def _merge(sequence: Iterable[object]) -> list[object]:
    """Return the operations without changes of shape that the next operation makes needless."""
    result: list[object] = []
    for operation in sequence:
        last = result[-1] if result else None
        if isinstance(last, Arrange) and last.order is None:
            if isinstance(operation, Arrange):
                shape = last.shape if operation.shape is None else operation.shape
                operation = Arrange(shape, operation.order)
                result.pop()
            elif isinstance(operation, FlatCollective):
                result.pop()
        result.append(operation)
    return result


def _operations(op: ops.Op, reduction: str, unknowns: Unknowns) -> Iterator[object]:
    """Yield the operations in torch: one, and after some collectives what shapes the result."""
    operation = _operation(op, reduction, unknowns)
    yield operation
    if isinstance(op, ops.Route):
        yield operations.Unpack(op.receives, op.shape, reduction)
    elif isinstance(operation, FlatCollective):
        yield Arrange(operation.shape, None)


def _operation(op: ops.Op, reduction: str, unknowns: Unknowns) -> object:
    """Return the operation in torch."""
    local = _local_operation(op, unknowns)
    if local is not None:
        return local
    if isinstance(op, ops.Collective):
        if op.kind == "all_gather":
            return operations.AllGather(op.axes, unknowns.shape(op.shape))
        if op.kind == "reduce_scatter":
            return operations.ReduceScatter(op.axes, unknowns.shape(op.shape), reduction)
        return operations.InPlaceCollective(op.kind, op.axes, op.root, reduction)
    if isinstance(op, ops.AllToAll):
        shares = _shares(op.sends), _shares(op.receives)
        return operations.AllToAll(op.axes, unknowns.shape(op.shape), *shares)
    route: Any = op
    return operations.Route(route.axes, route.sends, route.receives)


def _local_operation(op: ops.Op, unknowns: Unknowns) -> object | None:
    """Return an operation without communication, or None for others."""
    if isinstance(op, ops.Arrange):
        shape = None if op.shape is None else unknowns.shape(op.shape)
        return operations.Arrange(shape, op.order)
    if isinstance(op, ops.Take):
        return operations.Take(op.index)
    if isinstance(op, ops.Fill):
        return operations.Fill(unknowns.shape(op.shape), op.index)
    if isinstance(op, ops.Keep):
        return operations.Keep(op.is_kept)
    if isinstance(op, ops.Reorder):
        plan, parts = op.plan, op.plan.parts if op.plan.order == "zigzag" else 1
        return operations.Reorder(op.dim, parts, plan.length, plan.padded - plan.length, op.back)
    return None


def _shares(counts: ops.Shape | None) -> ops.Shape | None:
    """Return 1 for each rank with a block and 0 for each without; all blocks have one size."""
    return None if counts is None else tuple(int(count > 0) for count in counts)
