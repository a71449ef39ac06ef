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
ranks that one of them refuses its tensor, or that a gradient flows on some of them only, if the
backward is collective. A forward that is local, as of ``a =tp -> a *tp``, compares nothing.

Elsewhere they wait for that one, gloo may end a process whose tensor has another size, and nccl
returns garbage. To another mesh all ranks know of a refused tensor in the first call with a
pattern, and on gloo in all calls inside a guard with a timeout, which end with a round at the
store.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..call import quotes_call
from ..errors import MeshkitError, SpecError
from ..launch.of_one_process import OfOneProcess
from ..launch.torch_program import has_dual_level, make_constant, mark_constant
from ..layout.sequence import SequencePlan
from ..text import format_sizes
from . import move
from .checked import Check
from .dim_sizes import expand_to, infer_dim_sizes, sizes_on_left
from .equal_calls import compare_calls, compare_refusal, device_of, drop_idle_gradient
from .mesh_and_view import MeshAndView
from .operations import UnknownSizes, check_differentiable, check_dtype, check_tensor
from .pattern import DOTS, Pattern
from .plan import plan_move
from .program import Handle, ProgramPair, apply_pair, make_program
from .steps import Arrange

MAX_KEPT = 1000  # redistributions of a mesh, and shapes of a redistribution
FIRST_PRIMES = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117)
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
            return pair.run_forward(drop_idle_gradient(x), sizes)
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
        return Handle(pair.forward.begin(drop_idle_gradient(x)))

    def _refuse(self, x: object, error: MeshkitError, *, first: bool) -> None:
        """Let the other ranks know that this one refuses their call, where they compare it.

        They do so over the group of the first step, or of the last one in ``begin``. Its axes
        follow from another shape as well. Collective there; else local.
        """
        with suppress(MeshkitError):  # all ranks refuse the pattern, or the group
            if self.place.is_checked():
                self._make_check({}).share(error, device_of(x))
            num_dims = len(self.pattern.left.entries)
            if isinstance(x, Tensor) and any(dim.name == DOTS for dim in self.pattern.left.dims):
                num_dims = x.dim()
            pair = self._pairs.last() or self._guess_pair(num_dims)
            steps = [] if pair is None else pair.forward.group_steps
            if steps:
                group = self.place.group_of(steps[0 if first else -1].axes)
                compare_refusal(self.place.mesh, group, x, self._describe_call(), error)

    def _guess_pair(self, num_dims: int) -> ProgramPair | None:
        """Return the programs for the sizes given, or for any; None if they need more sizes."""
        named = expand_to(self.place.rewrite(self.pattern), num_dims)
        given = self._given(named)
        if {dim.name for dim in named.left.dims} <= {*given}:
            pair: ProgramPair = self._make_pair(named, given)
            return pair
        return self._make_any_pair(num_dims)

    def _find_pair(self, x: Tensor) -> ProgramPair:
        """Return the programs for a tensor of this shape. Local."""
        if self._op != "sum":
            check_dtype(self._op, x.dtype)
        pair = self._pairs.get(x.shape)
        if pair is None:
            pair = self._bind(tuple(x.shape))
        if self.place.is_checked():
            check = self._make_check(self._infer(tuple(x.shape))[1])
            return replace(pair, check=check, is_identity=False)
        return pair

    def _make_check(self, sizes: dict[str, int]) -> Check:
        """Return the check of the marks. A factor of an axis of a view may have no group."""
        place, named = self.place, self.place.rewrite(self.pattern)
        axes = [axis for axis in named.types if place.sizes[axis] > 1 and place.find_group((axis,))]
        groups = {axis: place.group_of((axis,)) for axis in axes}
        return Check(self.pattern, named, groups, sizes)

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
        return infer_dim_sizes(pattern, place.sizes, place.coordinate, shape, given)

    def _given(self, named: Pattern) -> dict[str, int]:
        """Return the global sizes that the caller gave, as the left side has them."""
        return sizes_on_left(named, self.place.sizes, self._sizes, self._plans)

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
        compare = partial(
            compare_calls,
            place.mesh,
            facts=f"{self._describe_call()}; {format_sizes(sizes)}",
            has_backward=any(program.group_steps for program in others),
        )
        forward = replace(forward, compare=compare)
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
        if self._traced.get(num_dims) is None:
            pair = self._make_any_pair(num_dims)
            if pair is None:
                return ""
            self._traced.add(num_dims, pair.with_groups())
        return self._traced.publish(num_dims)

    def _make_any_pair(self, num_dims: int) -> ProgramPair | None:
        """Return the programs for any sizes; None if regions need sizes."""
        place = self.place
        named = expand_to(place.rewrite(self.pattern), num_dims)
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
