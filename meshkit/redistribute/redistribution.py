"""Redistribution: a pattern on a mesh, with the programs for the shapes that it has seen.

The marks of a pattern, whose names and brackets are those of einops::

    s/sp      cut along s; s/dp/sp by two axes, the outer one first
    +tp       the ranks of tp have the parts of a sum
    *tp       each rank has a copy, and goes on with its own part of the work
    =tp       each rank has a copy, and all do the same work
    @dp:0     the rank at that coordinate has it; others pass any tensor of the shape, and get zeros

``*`` and ``=`` differ in the gradient only: at ``*`` the gradients of the ranks are summed, at
``=`` they are equal. The backward is collective too.

The sum of bools is a bool, as of two in torch: whether one of them is true. A NaN on any rank is
the maximum, and the minimum, as in ``torch.maximum``. An average is divided before it is summed, as
by DDP and NCCL, so no sum overflows; it reads the tensor once more. Ranks send 4 bytes an element
for a maximum or a minimum of float16 or bfloat16, and for an average of float16, whose small
numbers would lose bits.

A view as the target (``to=mesh.view(...)``) has the same ranks: axes that neither side names are
untouched, and the tensor is on every rank. A rank outside both passes None and gets None. With
another mesh of the job, on the same ranks or on others, the call is collective over the ranks of
both, those outside this mesh included. There the tensor is None, and ranks outside the target get
None, or an empty tensor if a gradient flows: ``y.sum().backward()`` on every rank runs the
backward. An axis that its side leaves out has copies on all its ranks. The first call with a
pattern tells all ranks the sizes, the dtype and whether a gradient flows. Later calls keep them, so
sizes that vary are given by keyword, on all ranks.

On gloo and nccl ranks compare the first call over each group, and all calls inside a guard with a
timeout, by an all-reduce of 16 bytes; none is made while a CUDA graph is captured. There on nccl no
rank waits: the next call, ``mesh.commit()`` or the end of the guard raises. A comparison also tells
ranks that one of them refuses its tensor. Elsewhere they wait for that one, gloo may end a process
whose tensor has another size, and nccl returns garbage. To another mesh all ranks know of a refused
tensor in the first call with a pattern, and on gloo in all calls inside a guard with a timeout,
which end with a round at the store.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

from ..call import quotes_call
from ..errors import MeshkitError, SpecError
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess
from ..launch.torch_program import has_dual_level, make_constant, mark_constant
from ..layout.group_plan import missing_group_error
from ..layout.layout import Layout
from ..layout.sequence import SequencePlan
from ..text import format_sizes
from . import move
from .checked import Check
from .digits import CommonAxes
from .equal_calls import compare_calls, compare_refusal
from .mesh_move import find_views, sum_pattern, summed_axes
from .mover import MeshPair
from .operations import (
    Axes,
    ProgramPair,
    UnknownSizes,
    apply_pair,
    check_differentiable,
    check_tensor,
    make_program,
)
from .pattern import DOTS, Pattern, Side, drop_axes, parse_pattern
from .plan import plan_move
from .ring import Ring, make_ring, shift_tensor
from .steps import Arrange
from .to_mesh import Handle, MeshRedistribution, Reduce

MAX_KEPT = 1000  # redistributions of a mesh, and shapes of a redistribution
FIRST_PRIMES = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117)
Given = tuple[tuple[str, int | SequencePlan], ...]
Value = TypeVar("Value")


# ------------------------------------------------------------------ caches


class Cache(Generic[Value]):
    """At most ``MAX_KEPT`` values by key; the least recently used one is dropped first.

    Torch reads a dict only once in a trace. Traced code therefore reads a published attribute.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._names: dict[Hashable, str] = {}
        self._numbers = itertools.count()

    def get(self, key: Hashable) -> Value | None:
        """Return the value of a key, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def last(self) -> Value | None:
        """Return the value that was used last, or None."""
        return next(reversed(self._values.values()), None)

    def add(self, key: Hashable, value: Value) -> Value:
        """Keep a value, and return it."""
        if len(self._values) >= MAX_KEPT:
            oldest, _ = self._values.popitem(last=False)
            if oldest in self._names:
                delattr(self, self._names.pop(oldest))
        self._values[key] = value
        return value

    def publish(self, key: Hashable) -> str:
        """Return the name of the attribute that holds the value of a key."""
        if key not in self._names:
            self._names[key] = f"traced_{next(self._numbers)}"
            setattr(self, self._names[key], self._values[key])
        return self._names[key]


# ------------------------------------------------------------------ this rank on the mesh


@dataclass(frozen=True, eq=False)
class MeshAndView(OfOneProcess):
    """This rank on a mesh, and on a view of it that the right side of a pattern names."""

    mesh: MeshGroups  # the groups of the mesh
    view: MeshGroups | None  # those of the view; None if both sides name axes of the mesh
    moves: MeshMoves  # knows whether ``mesh.checked()`` is active

    @cached_property
    def common(self) -> CommonAxes | None:
        """The common factors of the axes of the mesh and the view; None without a view."""
        if self.view is None:
            return None
        return find_views(self.mesh.plan.layout, self.view.plan.layout)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes by name, the outermost first."""
        return self.mesh.plan.layout.sizes if self.common is None else self.common.sizes

    @cached_property
    def coordinate(self) -> dict[str, int]:
        """The coordinate of this rank along these axes."""
        coordinate = self.mesh.plan.layout.coordinate(self.mesh.rank)
        return coordinate if self.common is None else self.common.coordinate(coordinate)

    def check_pattern(self, pattern: Pattern) -> None:
        """Check that the mesh is open, and that the axes of both sides exist."""
        self.mesh.check_usable()
        if self.view is None:
            move.check_axes(pattern, self.sizes)
            return
        self.view.check_usable()
        move.check_axes(Pattern(pattern.left, pattern.left), self.mesh.plan.layout.sizes)
        move.check_axes(Pattern(pattern.right, pattern.right), self.view.plan.layout.sizes)

    def rewrite(self, pattern: Pattern) -> Pattern:
        """Return the pattern over the axes of ``sizes``."""
        if self.common is None:
            return drop_axes(pattern, self.sizes)
        return self.common.rewrite(pattern)

    def unmarked_axes(self, pattern: Pattern) -> list[tuple[int, str]]:
        """Return the axes without a mark on one side, each after that side."""
        return (
            move.unmarked_axes(pattern)
            if self.common is None
            else self.common.unmarked_axes(pattern)
        )

    def group_of(self, axes: Axes) -> dist.ProcessGroup:
        """Return the group over some axes longer than 1, in the order of the mesh. Local."""
        self.mesh.check_open()
        group = self.find_group(axes)
        return self._raise_missing(axes) if group is None else group

    def find_group(self, axes: Axes) -> dist.ProcessGroup | None:
        """Return the group of the mesh or the view over some axes; None if there is none."""
        if self.common is None or self.view is None:
            return self.mesh.groups.by_key.get(axes)
        self.view.check_open()
        wanted = Layout.of(self.common.sizes).strides(axes)
        for groups in (self.mesh, self.view):
            layout = groups.plan.layout
            for key, group in groups.groups.by_key.items():
                if layout.strides(key) == wanted:
                    return group
        return None

    def _raise_missing(self, axes: Axes) -> NoReturn:
        if self.common is None or self.view is None:
            raise missing_group_error(self.mesh.plan, axes, self.mesh.extended_by)
        for groups, factors in (self.mesh, self.common.left), (self.view, self.common.right):
            names = tuple(a for a, parts in factors.items() if parts and {*parts} <= {*axes})
            if {part for name in names for part in factors[name]} == {*axes}:
                raise missing_group_error(groups.plan, names, groups.extended_by)
        sizes = {axis.replace(".", "_"): size for axis, size in self.common.sizes.items()}
        group_name = " ".join(axes).replace(".", "_")
        raise SpecError(
            f"neither the mesh nor its view has the group over {' '.join(axes)}.",
            f"The common axes are {format_sizes(self.common.sizes)}.",
            fix=f"to=mesh.view({sizes}, groups=[{group_name!r}]), and a right side in its axes.",
        )


# ------------------------------------------------------------------ a pattern on a mesh


class Redistribution(OfOneProcess):
    """A pattern on a mesh: call it with a tensor. Created by ``mesh.redistribution``."""

    def __init__(
        self,
        pattern: Pattern,
        place: MeshAndView,
        op: str,
        grad_dtype: torch.dtype | None,
        sizes: dict[str, int],
        plans: dict[str, SequencePlan],
    ) -> None:
        self.pattern = pattern
        self.place = place
        self._op = op  # the reduction: sum, avg, max or min
        self._grad_dtype = grad_dtype  # the dtype in which gradients are summed; None is their own
        self._sizes = sizes  # the global sizes given by name
        self._plans = plans  # the sequence plans among them
        self._pairs: Cache[ProgramPair] = Cache()  # by shape
        self._traced: Cache[ProgramPair] = Cache()  # by shape, or by number of dims

    def __repr__(self) -> str:
        return f"Redistribution({str(self.pattern)!r})"

    @quotes_call("redistribution", by_name=("x",))
    def __call__(self, x: Tensor) -> Tensor:
        """Return the tensor in the division of the right side, as ``mesh.redistribute``."""
        return self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """Return the same, for callers that quote a call of their own."""
        if torch.compiler.is_compiling():
            check_tensor(x)
            name = self._publish(x.dim()) or self._publish_shape(*map(make_constant, x.shape))
            pair: ProgramPair = getattr(self._traced, name)
            sizes, needs_gradient = pair.sizes(x), x.requires_grad and torch.is_grad_enabled()
            if needs_gradient:
                self._check_differentiable(pair, x.dtype)
        else:
            sizes = None
            try:
                is_strided = isinstance(x, Tensor) and x.layout == torch.strided
                if not is_strided or x.is_nested or x.is_quantized:
                    check_tensor(x)
                pair = self._find_pair(x)
                needs_gradient = x.requires_grad and torch.is_grad_enabled()
                if needs_gradient and x.dtype not in pair.checked_dtypes:
                    self._check_differentiable(pair, x.dtype)
            except MeshkitError as error:
                self._refuse(x, error, first=True)
                raise
        if pair.is_identity:
            return x.view_as(x)
        if not needs_gradient and not has_dual_level():
            return pair.run_forward(x, sizes)
        y: Tensor = apply_pair(x, pair, sizes)
        return y

    def begin(self, x: Tensor) -> Handle:
        """Begin the redistribution of a tensor without a gradient. Collective."""
        try:
            check_tensor(x)
            if x.requires_grad and torch.is_grad_enabled():
                fix = "mesh.redistribute, which has a gradient, or x.detach()."
                raise SpecError("the tensor requires a gradient.", fix=fix)
            if has_dual_level() and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
                fix = "mesh.redistribute, which moves it."
                raise SpecError("the tensor has a tangent.", fix=fix)
            pair = self._find_pair(x)
        except MeshkitError as error:
            self._refuse(x, error, first=False)
            raise
        if pair.check is not None:
            pair.check.check_values(x)
        return Handle(pair.forward.begin(x))

    def _refuse(self, x: object, error: MeshkitError, *, first: bool) -> None:
        """Let the other ranks know that this one refuses their call, where they compare it.

        They do so over the group of the first step, or of the last one in ``begin``. Its axes
        follow from another shape as well. Collective there; else local.
        """
        with suppress(MeshkitError):  # all ranks refuse the pattern, or the group
            num_dims = len(self.pattern.left.entries)
            if isinstance(x, Tensor) and any(dim.name == DOTS for dim in self.pattern.left.dims):
                num_dims = x.dim()
            pair = self._pairs.last() or self._guess_pair(num_dims)
            steps = [] if pair is None else pair.forward.group_steps
            if steps and not self.place.moves.is_checked:
                group = self.place.group_of(steps[0 if first else -1].axes)
                compare_refusal(self.place.mesh, group, x, self._describe_call(), error)

    def _guess_pair(self, num_dims: int) -> ProgramPair | None:
        """Return the programs for the sizes given, or for any; None if they need more sizes."""
        named = move.expand_to(self.place.rewrite(self.pattern), num_dims)
        given = self._given(named)
        if {dim.name for dim in named.left.dims} <= {*given}:
            pair: ProgramPair = self._make_pair(named, given)
            return pair
        return self._make_any_pair(num_dims)

    def _find_pair(self, x: Tensor) -> ProgramPair:
        """Return the programs for a tensor of this shape. Local."""
        if self._op == "avg" and not (x.is_floating_point() or x.is_complex()):
            other = "" if x.dtype == torch.bool else 'op="sum", or '
            fix = f"{other}x.float(), since an average of {x.dtype} is a fraction."
            raise SpecError(f"op='avg' of a tensor of {x.dtype}.", fix=fix)
        if self._op in ("max", "min") and x.is_complex():
            line = "Complex numbers have no order."
            raise SpecError(f"op={self._op!r} of a tensor of {x.dtype}.", line)
        pair = self._pairs.get(x.shape)
        if pair is None:
            pair = self._bind(tuple(x.shape))
        if self.place.moves.is_checked:
            return replace(pair, check=self._make_check(tuple(x.shape)), is_identity=False)
        return pair

    def _make_check(self, shape: tuple[int, ...]) -> Check:
        """Return the check of the marks. A factor of an axis of a view may have no group."""
        place, named = self.place, self.place.rewrite(self.pattern)
        axes = [axis for axis in named.types if place.sizes[axis] > 1 and place.find_group((axis,))]
        groups = {axis: place.group_of((axis,)) for axis in axes}
        return Check(self.pattern, named, groups, self._infer(shape)[1])

    def _check_differentiable(self, pair: ProgramPair, dtype: torch.dtype) -> None:
        self._check_gradient(pair.backward is not None, pair.backward_reduces, dtype)
        if pair.backward is not None and not torch.compiler.is_compiling():
            pair.backward.with_groups()  # a missing group raises here, not in the backward
            pair.checked_dtypes.add(dtype)

    @mark_constant
    def _check_gradient(self, has_backward: bool, sums: bool, dtype: torch.dtype) -> None:
        """Raise if there is no gradient, or if it needs another dtype."""
        unmarked = [] if has_backward else self.place.unmarked_axes(self.pattern)
        check_differentiable(
            self.pattern, unmarked, self._op, self._grad_dtype, sums=sums, dtype=dtype
        )

    def _bind(self, shape: tuple[int, ...]) -> ProgramPair:
        """Make the programs for a shape."""
        self.place.mesh.check_usable()
        named, sizes = self._infer(shape)
        pair = self._make_pair(named, sizes)
        is_identity = pair.backward is not None and all(
            program.divisor == 1 and all(step == Arrange(shape) for step in program.steps)
            for program in (pair.forward, pair.backward)
        )
        return self._pairs.add(torch.Size(shape), replace(pair, is_identity=is_identity))

    def _infer(self, shape: tuple[int, ...]) -> tuple[Pattern, dict[str, int]]:
        """Return the pattern over common axes without ellipsis, and the global sizes."""
        place, pattern = self.place, self.place.rewrite(self.pattern)
        given = self._given(pattern)
        return move.infer_dim_sizes(pattern, place.sizes, place.coordinate, shape, given)

    def _given(self, named: Pattern) -> dict[str, int]:
        """Return the global sizes that the caller gave, as the left side has them."""
        return move.sizes_on_left(named, self.place.sizes, self._sizes, self._plans)

    def _make_pair(
        self, named: Pattern, sizes: dict[str, int], unknowns: UnknownSizes | None = None
    ) -> Any:  # noqa: ANN401  # a ProgramPair, or None
        """Return the programs for global sizes; None if regions depend on unknown ones."""
        place, is_linear = self.place, self._op not in ("max", "min")
        moves = [move.make_move(named, place.sizes, sizes, self._plans)]
        if place.common is not None:
            place.common.check_even(moves[0])
        if not place.unmarked_axes(self.pattern):
            moves.append(move.make_move(named.mirror, place.sizes, sizes, self._plans))
        plans = [plan_move(move) for move in moves]
        if unknowns is not None and any(plan.uses_regions for plan in plans):
            return None
        name, unknowns = f'redistribute("{self.pattern}")', unknowns or UnknownSizes()
        forward, *others = (
            make_program(plan, place.coordinate, place.group_of, op, name, unknowns)
            for plan, op in zip(plans, (self._op, "sum"), strict=False)
        )
        groups, facts = place.mesh, f"{self._describe_call()}; {format_sizes(sizes)}"
        forward = replace(forward, compare=lambda group, x: compare_calls(groups, group, x, facts))
        if not others:
            return ProgramPair(forward, None, None, False, is_linear)
        backward = replace(others[0], divisor=forward.divisor)  # a share of an average
        return ProgramPair(forward, backward, self._grad_dtype, plans[1].reduces, is_linear)

    def _describe_call(self) -> str:
        """Return the call with the options that all ranks must give equally, as text."""
        options: dict[str, object] = {"op": self._op} if self._op != "sum" else {}
        options |= {"grad_dtype": self._grad_dtype} if self._grad_dtype is not None else {}
        words = [f'"{self.pattern}"', *(f"{n}={v}" for n, v in {**options, **self._plans}.items())]
        return f"redistribute({', '.join(words)})"

    # -------------------------------------------------------------- torch.compile

    @mark_constant
    def _publish_shape(self, *shape: int) -> str:
        """Return the attribute of ``_traced`` with the programs for one shape."""
        if self._traced.get(shape) is None:
            self._traced.add(shape, self._bind(shape).with_groups())
        return self._traced.publish(shape)

    @mark_constant
    def _publish(self, num_dims: int) -> str:
        """Return the attribute with the programs for any sizes; empty if regions need sizes."""
        if self._traced.get(num_dims) is not None:
            return self._traced.publish(num_dims)
        pair = self._make_any_pair(num_dims)
        if pair is None:
            return ""
        self._traced.add(num_dims, pair.with_groups())
        return self._traced.publish(num_dims)

    def _make_any_pair(self, num_dims: int) -> ProgramPair | None:
        """Return the programs for any sizes; None if regions need sizes."""
        place = self.place
        named = move.expand_to(place.rewrite(self.pattern), num_dims)
        given = self._given(named)
        scale = math.prod(place.sizes[axis] for axis in named.types)
        unknown = [dim.name for dim in named.left.dims if dim.name not in given]
        lengths = (length for plan in self._plans.values() for length in (plan.length, plan.padded))
        stated = {*given.values(), *lengths}
        usable = [p for p in FIRST_PRIMES if all(size % p for size in stated)]  # else taken for one
        primes = dict(zip(usable, unknown, strict=False))
        sizes = {**given, **{name: scale * prime for prime, name in primes.items()}}
        if len(sizes) < len(named.left.dims):
            return None
        pair: ProgramPair | None = self._make_pair(named, sizes, UnknownSizes(primes, scale))
        if pair is None:
            return None
        dims = []
        for number, entry in enumerate(named.left.entries):
            parts = {d.name: math.prod(place.sizes[axis] for axis in d.axes) for d in entry}
            known = math.prod(given[name] // parts[name] for name in parts if name in given)
            dims += [(name, number, known, parts[name]) for name in parts if name not in given]
        return replace(pair, dims=tuple(dims))


class MeshMoves(OfOneProcess):
    """The redistributions of one mesh."""

    def __init__(self, groups: MeshGroups, device: torch.device) -> None:
        self.groups = groups
        self.device = device
        self.is_checked = False  # whether ``mesh.checked()`` is active
        self.known: Cache[Redistribution | MeshRedistribution] = Cache()
        self.rings: Cache[Ring] = Cache()

    def find(
        self,
        pattern: str,
        op: str,
        grad_dtype: torch.dtype | None,
        view: MeshGroups | None,
        sizes: Given,
    ) -> Any:  # noqa: ANN401  # a Redistribution, or a MeshRedistribution
        """Return the redistribution of a pattern, made once. Local."""
        key = pattern, op, grad_dtype, view, sizes
        try:
            known = self.known.get(key)
        except TypeError:  # a list, for example, has no hash
            move.split_dim_sizes(parse_pattern(pattern), dict(sizes))
            raise
        return self._make(key) if known is None else known

    def publish(self, *key: Any) -> str:  # noqa: ANN401
        """Return the attribute of ``known`` with a redistribution, for torch.compile."""
        self.find(*key)
        return self.known.publish(key)

    def publish_ring(self, axis: str) -> str:
        """Return the attribute of ``rings`` with a ring, for torch.compile."""
        if self.rings.get(axis) is None:
            self.rings.add(axis, make_ring(self.groups, axis))
        return self.rings.publish(axis)

    def shift(self, ring: Ring, x: torch.Tensor, steps: int) -> torch.Tensor:
        """Pass a tensor along an axis. Collective."""
        return shift_tensor(self.groups, ring, x, steps)

    def _make(self, key: Any) -> Redistribution | MeshRedistribution:  # noqa: ANN401
        text, op, grad_dtype, view, given = key
        pattern = parse_pattern(text)
        move.check_op(pattern, op)
        if grad_dtype is not None and not (
            isinstance(grad_dtype, torch.dtype)
            and (grad_dtype.is_floating_point or grad_dtype.is_complex)
        ):
            fix = "grad_dtype=torch.float32, or leave it out."
            raise SpecError(f"grad_dtype is {grad_dtype!r}, no dtype of gradients.", fix=fix)
        sizes, plans = move.split_dim_sizes(pattern, dict(given))
        made: Redistribution | MeshRedistribution
        layout, is_other = self.groups.plan.layout, False
        if view is not None:  # a rank outside a mesh and its view gets None from both kinds
            is_other = (
                find_views(layout, view.plan.layout) is None or self.groups.rank not in layout
            )
        if view is not None and is_other:
            meshes, reduction = MeshPair(self.groups, view, self.device), self.make_reduction
            made = MeshRedistribution(pattern, meshes, op, grad_dtype, sizes, plans, reduction)
        else:
            place = MeshAndView(self.groups, view, self)
            place.check_pattern(pattern)
            made = Redistribution(pattern, place, op, grad_dtype, sizes, plans)
        return self.known.add(key, made)

    def make_reduction(
        self, groups: MeshGroups, side: Side, sizes: dict[str, int], op: str
    ) -> Reduce:
        """Return the function that replaces the parts of the sums of a side by the sums."""
        summed = summed_axes(side, groups.plan.layout)
        if not summed:
            return lambda x: x
        if not groups.plan.has(summed):
            raise missing_group_error(groups.plan, summed, groups.extended_by)
        pattern, place = sum_pattern(side), MeshAndView(groups, None, self)
        return Redistribution(pattern, place, op, None, sizes, {}).run

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Check the marks of all redistributions inside."""
        before, self.is_checked = self.is_checked, True
        try:
            yield
        finally:
            self.is_checked = before
