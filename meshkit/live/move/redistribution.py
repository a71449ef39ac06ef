"""Redistribution: a pattern on a mesh, with the programs for the shapes that it has seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...core.call import quotes_call
from ...core.data.sequence import SequencePlan
from ...core.errors import SpecError
from ...core.redistribute.dim_sizes import expand_to, infer_sizes, sizes_on_left
from ...core.redistribute.move import check_gradient, make_move
from ...core.redistribute.pattern import Pattern
from ...core.redistribute.plan import Plan, plan_move, reduces, uses_regions
from ...launch.torch_internals import make_constant, mark_constant
from .autograd import ProgramPair, apply_pair
from .checked import Check
from .handle import Handle
from .operations import Sizes, check_tensor
from .place import Place
from .program import Program, Unknowns, make_program

MAX_SHAPES = 1024  # of one pattern, so that lengths that vary do not fill the memory
HALF_DTYPES = (torch.float16, torch.bfloat16)
FIRST_PRIMES = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117)


@dataclass(frozen=True)
class Options:
    """The choices of a caller beside the pattern."""

    op: str  # the reduction: sum, avg, max or min
    grad_dtype: torch.dtype | None  # the dtype in which gradients are summed; None is their own
    sizes: dict[str, int]  # the global sizes given by name
    plans: dict[str, SequencePlan]  # the sequence plans among them


@dataclass(frozen=True, eq=False)
class SymbolicPair:
    """Programs for any sizes that divide, for torch.compile."""

    pair: ProgramPair
    # name, local dim, known part of the local size, and number of parts of each dim
    dims: tuple[tuple[str, int, int, int], ...]

    def sizes(self, x: Tensor) -> Sizes:
        """Return the global sizes of a local tensor."""
        return {name: x.size(dim) // known * parts for name, dim, known, parts in self.dims}


class Redistribution:
    """A pattern on a mesh: call it with a tensor. Created by ``mesh.redistribution``.

    Attributes:
        pattern: the pattern.
        place: this rank on the mesh, and on the view that the right side names.
    """

    def __init__(self, pattern: Pattern, place: Place, options: Options) -> None:
        self.pattern = pattern
        self.place = place
        self._options = options
        self._pairs: dict[torch.Size, ProgramPair] = {}
        self._differentiable: set[tuple[ProgramPair, torch.dtype]] = set()

    def __repr__(self) -> str:
        return f"Redistribution({str(self.pattern)!r})"

    @quotes_call("redistribution", by_name=("x",))
    def __call__(self, x: Tensor) -> Tensor:
        """Return the tensor in the division of the right side. Collective over these axes.

        It raises as :meth:`meshkit.Mesh.redistribute` does.
        """
        return self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """Return the same, for callers that quote a call of their own."""
        check_tensor(x)
        sizes = None
        if torch.compiler.is_compiling():
            pair, sizes = self._traced_pair(x)
        else:
            pair = self._find_pair(x)
        if (x.requires_grad and torch.is_grad_enabled()) and (
            torch.compiler.is_compiling() or (pair, x.dtype) not in self._differentiable
        ):
            self._check_differentiable(pair, x.dtype)
        return x.view_as(x) if pair.is_identity else apply_pair(x, pair, sizes)

    def begin(self, x: Tensor) -> Handle:
        """Begin the redistribution of a tensor without a gradient. Collective."""
        check_tensor(x)
        if x.requires_grad and torch.is_grad_enabled():
            fix = "mesh.redistribute, which has a gradient, or x.detach()."
            raise SpecError("the tensor requires a gradient.", fix=fix)
        if forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
            raise SpecError("the tensor has a tangent.", fix="mesh.redistribute, which moves it.")
        return Handle(self._find_pair(x).begin_forward(x))

    def _find_pair(self, x: Tensor) -> ProgramPair:
        """Return the programs for a tensor of this shape. Local."""
        if self._options.op == "avg" and not (x.is_floating_point() or x.is_complex()):
            fix = f'op="sum", or x.float(), since an average of {x.dtype} is no integer.'
            raise SpecError(f"op='avg' of a tensor of {x.dtype}.", fix=fix)
        pair = self._pairs.get(x.shape)
        if pair is None:
            pair = self._bind(tuple(x.shape))
        if self.place.state.is_checked:
            sizes = self._infer(tuple(x.shape))[1]
            return replace(pair, check=Check(self.place, self.pattern, sizes), is_identity=False)
        return pair

    def _check_differentiable(self, pair: ProgramPair, dtype: torch.dtype) -> None:
        """Raise if the gradient of the pattern is not determined."""
        self._check_gradient(pair.backward is not None, pair.backward_reduces, dtype)
        if pair.backward is not None and not torch.compiler.is_compiling():
            pair.backward.with_groups()  # a missing group raises here, not in the backward
            self._differentiable.add((pair, dtype))

    @mark_constant
    def _check_gradient(self, has_backward: bool, sums: bool, dtype: torch.dtype) -> None:
        """Raise if there is no gradient, or if it needs another dtype."""
        if not has_backward:
            check_gradient(self.pattern, self.place.unmarked_axes(self.pattern))
        if self._options.op in ("max", "min"):
            raise SpecError(
                f"op={self._options.op!r} has no gradient, and the tensor requires one.",
                fix="x.detach(), for example of the maximum that makes a softmax stable.",
            )
        if sums and dtype in HALF_DTYPES and self._options.grad_dtype is None:
            raise SpecError(
                f"the backward sums gradients of several ranks in {dtype}.",
                fix=f"grad_dtype=torch.float32, or grad_dtype={dtype}, which loses bits.",
            )

    def _bind(self, shape: tuple[int, ...]) -> ProgramPair:
        """Make the programs for a shape."""
        self.place.mesh.check_usable()
        named, sizes = self._infer(shape)
        pair = self._make_pair(self._plans(named, sizes), Unknowns())
        pair = replace(pair, is_identity=pair.keeps(shape))
        if len(self._pairs) >= MAX_SHAPES:
            self._pairs.clear()
            self._differentiable.clear()
        self._pairs[torch.Size(shape)] = pair
        return pair

    def _infer(self, shape: tuple[int, ...]) -> tuple[Pattern, dict[str, int]]:
        """Return the pattern over common axes without ellipsis, and the global sizes."""
        place, pattern = self.place, self.place.rewrite(self.pattern)
        given = self._given(pattern)
        return infer_sizes(pattern, place.sizes, place.coordinate, shape, given)

    def _given(self, named: Pattern) -> dict[str, int]:
        """Return the global sizes that the caller gave, as the left side has them."""
        return sizes_on_left(named, self.place.sizes, self._options.sizes, self._options.plans)

    def _plans(self, named: Pattern, sizes: dict[str, int]) -> tuple[Plan, Plan | None]:
        """Return the plans of the forward and, if all axes have marks, of the backward."""
        place, plans = self.place, self._options.plans
        forward = make_move(named, place.sizes, sizes, plans)
        place.check_even(forward)
        if place.unmarked_axes(self.pattern):
            return plan_move(forward), None
        return plan_move(forward), plan_move(make_move(named.mirror, place.sizes, sizes, plans))

    def _make_pair(self, plans: tuple[Plan, Plan | None], unknowns: Unknowns) -> ProgramPair:
        """Return the programs of two plans."""
        forward = self._program(plans[0], self._options.op, unknowns)
        is_linear = self._options.op not in ("max", "min")
        if plans[1] is None:
            return ProgramPair(forward, None, None, False, is_linear)
        backward = self._program(plans[1], "sum", unknowns)
        backward = replace(backward, divisor=forward.divisor)  # a share of an average
        return ProgramPair(
            forward, backward, self._options.grad_dtype, reduces(plans[1]), is_linear
        )

    def _program(self, plan: Plan, op: str, unknowns: Unknowns) -> Program:
        place, name = self.place, f'redistribute("{self.pattern}")'
        return make_program(plan, place.coordinate, place.group_of, op, name, unknowns)

    # -------------------------------------------------------------- torch.compile

    def _traced_pair(self, x: Tensor) -> tuple[ProgramPair, Sizes]:
        """Return the programs of a call that torch traces, and the sizes of its shapes."""
        name = self._publish(x.dim()) or self._publish_shape(*map(make_constant, x.shape))
        known: SymbolicPair = getattr(self, name)
        return known.pair, known.sizes(x)

    @mark_constant
    def _publish_shape(self, *shape: int) -> str:
        """Return the name of an attribute that holds the programs for one shape."""
        name = f"_traced_{'_'.join(map(str, shape))}_exactly"
        setattr(self, name, SymbolicPair(self._bind(shape).with_groups(), ()))
        return name

    @mark_constant
    def _publish(self, num_dims: int) -> str:
        """Return the name of an attribute that holds the programs for any sizes that divide.

        The name is empty if a plan exchanges regions, which depend on the sizes.
        """
        place, name = self.place, f"_traced_{num_dims}"
        named = expand_to(place.rewrite(self.pattern), num_dims)
        given = self._given(named)
        scale = math.prod(place.sizes[axis] for axis in named.types)
        unknown = [dim.name for dim in named.left.dims if dim.name not in given]
        primes = dict(zip(FIRST_PRIMES, unknown, strict=False))
        sizes = {**given, **{name: scale * prime for prime, name in primes.items()}}
        if len(sizes) < len(named.left.dims):
            return ""
        plans = self._plans(named, sizes)
        if any(plan is not None and uses_regions(plan) for plan in plans):
            return ""
        pair = self._make_pair(plans, Unknowns(primes, scale)).with_groups()
        setattr(self, name, SymbolicPair(pair, tuple(self._unknown_dims(named))))
        return name

    def _unknown_dims(self, named: Pattern) -> Iterator[tuple[str, int, int, int]]:
        """Yield the dims whose size a tensor gives, as :class:`SymbolicPair` holds them."""
        given = self._given(named)
        for number, entry in enumerate(named.left.entries):
            parts = {d.name: math.prod(self.place.sizes[axis] for axis in d.axes) for d in entry}
            known = math.prod(given[name] // parts[name] for name in parts if name in given)
            for name in parts.keys() - given.keys():
                yield name, number, known, parts[name]
