"""Move a tensor from the ranks of one mesh to those of another, with its gradient.

The first call with a pattern tells all ranks the sizes, the dtype and whether a gradient flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..call import quotes_call
from ..errors import MeshkitError, SpecError
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess
from ..launch.torch_program import keep_uncompiled
from ..layout.group_plan import missing_group_error
from ..layout.sequence import SequencePlan
from ..text import dtype_name, format_sizes
from .dim_sizes import infer_dim_sizes, sizes_on_left
from .mesh_and_view import MeshAndView
from .mesh_move import axes_of_both, join_axes, make_mesh_move, sum_pattern, summed_axes
from .mesh_pair import MeshPair
from .move import check_axes, check_op
from .mover import BATCHES, CHUNK, Channel, Mover, Moving, Transmit, Vote, has_votes, make_leg
from .operations import check_differentiable, check_dtype, check_tensor
from .pattern import DOTS, Pattern, Side, expand_dots
from .program import Handle, Program, ProgramPair, Redistribute
from .redistribution import Redistribution


def make_sum(
    meshes: MeshPair, groups: MeshGroups, side: Side, sizes: Mapping[str, int], op: str
) -> Callable[[Tensor], Tensor] | None:
    """Return what replaces the parts of the sums of a side by the sums; None without sums.

    ``groups`` are those of the mesh of the side. Local, with equal errors on all ranks.
    """
    summed = summed_axes(side, groups.plan.layout)
    if not summed:
        return None
    if not groups.plan.has(summed):
        raise missing_group_error(groups.plan, summed, groups.extended_by)
    place = MeshAndView(groups, None, meshes.is_checked)
    return Redistribution(sum_pattern(side), place, op, None, dict(sizes), {}).run


class RedistributeOnce(Redistribute):
    """A move to another mesh. A rank outside one of them holds no tensor of a second derivative."""

    backward = staticmethod(once_differentiable(Redistribute.backward))  # type: ignore[assignment]


apply_once: Callable[..., Tensor] = RedistributeOnce.apply


class Known(NamedTuple):
    """The facts that all ranks know of a redistribution after its first call."""

    sizes: dict[str, int]  # the global size of each dim
    dtype: torch.dtype
    requires_grad: bool
    pair: ProgramPair
    shapes: set[torch.Size]  # the local shapes of these sizes


class MeshRedistribution(OfOneProcess):
    """A pattern from one mesh to another: call it with a tensor, on the ranks of both.

    Created by ``mesh.redistribution(pattern, to=other)``.
    """

    def __init__(
        self,
        pattern: Pattern,
        meshes: MeshPair,
        op: str,
        grad_dtype: torch.dtype | None,
        sizes: dict[str, int],
        plans: dict[str, SequencePlan],
    ) -> None:
        self.pattern = pattern
        self._meshes = meshes
        self._op, self._grad_dtype = op, grad_dtype
        self._sizes, self._plans = sizes, plans
        self._known: dict[bool, Known] = {}  # by whether gradients are enabled
        meshes.check_open()
        self._layouts = meshes.layouts
        for side, layout in zip((pattern.left, pattern.right), self._layouts, strict=True):
            check_axes(Pattern(side, side), layout.sizes)
        check_op(pattern, op)
        sizes_of_axes = [layout.sizes for layout in self._layouts]
        self._joined = join_axes(pattern, *sizes_of_axes)
        self._axes = axes_of_both(*sizes_of_axes)

    def __repr__(self) -> str:
        return f"MeshRedistribution({str(self.pattern)!r})"

    @quotes_call("redistribution", by_name=("x",))
    def __call__(self, x: Tensor | None) -> Tensor | None:
        """Return the tensor on the ranks of the target, as ``mesh.redistribute``."""
        result: Tensor | None = self.run(x)
        return result

    @keep_uncompiled
    def run(self, x: Tensor | None) -> Tensor | None:
        """Return the same, for callers that quote a call of their own."""
        known = self._learn(x)
        if known is None:
            return None
        held = self._held(x, known)
        if known.requires_grad:
            return apply_once(held, known.pair, None)  # empty outside the target
        y = known.pair.forward.run(held)
        return y if self._is_target else None

    def begin(self, x: Tensor | None) -> Handle:
        """Begin the move of a tensor without a gradient. Collective over both meshes."""
        known = self._learn(x)
        if known is None:
            return Handle(lambda: None)
        if known.requires_grad:
            fix = "mesh.redistribute, which has a gradient, or x.detach()."
            raise SpecError("the tensor requires a gradient.", fix=fix)
        wait = known.pair.forward.begin(self._held(x, known))

        def finish() -> Tensor | None:
            y = wait()
            return y if self._is_target else None

        return Handle(finish)

    def _held(self, x: Tensor | None, known: Known) -> Tensor:
        """Return the tensor of a rank of the source, and an empty one elsewhere."""
        if x is not None and self._is_source:
            return x
        needs_gradient = known.requires_grad
        device = self._meshes.device
        return torch.empty(0, dtype=known.dtype, device=device, requires_grad=needs_gradient)

    # -------------------------------------------------------------- the first call

    def _learn(self, x: Tensor | None) -> Known | None:
        """Return what all ranks know; None on a rank outside both meshes."""
        if self._meshes.is_outside:
            return None
        self._meshes.check_open()
        enabled = torch.is_grad_enabled()
        known = self._known.get(enabled)
        if known is None:
            self._known[enabled] = known = self._agree(x, enabled)
        elif self._is_source:
            try:
                self._check_as_before(x, known)
            except MeshkitError as error:
                self._refuse(known, error)
                raise
        return known

    def _refuse(self, known: Known, error: MeshkitError) -> None:
        """Raise an error on all ranks inside a guard. They may wait already, so they get zeros."""
        if has_votes():
            program = known.pair.forward
            (step,) = (step for step in program.steps if isinstance(step, Transmit))
            zeros = torch.zeros((), dtype=known.dtype, device=self._meshes.device)
            refusing = replace(step, vote=partial(self._vote, error=error))
            steps = (refusing if each is step else each for each in program.steps)
            replace(program, steps=tuple(steps)).run(zeros.expand(step.leg.held_shape))

    def _vote(self, moving: Moving, error: MeshkitError | None = None) -> None:
        """Agree that no rank has refused its tensor, once the first messages have come.

        A rank that is killed is seen by the messages at once. Collective over both meshes.
        """
        moving.wait_for_first()

        def check() -> None:
            if error is not None:
                raise error

        facts, limit = {"pattern": str(self.pattern)}, self._meshes.message_timeout()
        self._meshes.confirm("mesh.redistribute", facts, check, limit)

    def _agree(self, x: Tensor | None, enabled: bool) -> Known:
        """Return what all ranks know, from the first call. Collective over both meshes."""
        facts = {
            "pattern": str(self.pattern),
            "op": self._op,
            "grad_dtype": str(self._grad_dtype),
            "sizes": format_sizes({**self._sizes, **self._plans}),
            "gradients": "enabled" if enabled else "disabled",
        }
        read: Callable[[object], Any] = lambda _: self._read(x) if self._is_source else None  # noqa: E731
        stated = self._meshes.agree("mesh.redistribute", facts, read, stated="tensor", alike=True)
        if not stated:  # only in a rehearsal, if no rank of the source was played before this one
            line = "no rank of the source mesh was rehearsed, so the tensor is unknown."
            raise MeshkitError(line, fix="rehearse a rank of the source mesh too.")
        sizes, dtype, needs_gradient = stated[0][0]
        return self._bind(dict(sizes), getattr(torch, dtype), needs_gradient)

    def _read(self, x: object) -> list[Any]:
        """Return the facts of a tensor that all ranks of the source must share, as JSON."""
        if x is None:
            line = f"x is None on rank {self._meshes.rank}, which is in the source mesh."
            raise SpecError(line, fix="the local tensor on every rank of the mesh.")
        check_tensor(x)
        tensor: Any = x
        check_dtype(self._op, tensor.dtype)
        needs_gradient = tensor.requires_grad and torch.is_grad_enabled()
        sizes = self._infer(tensor.shape)
        return [sorted(sizes.items()), dtype_name(tensor.dtype), needs_gradient]

    def _infer(self, shape: torch.Size) -> dict[str, int]:
        """Return the global size of each dim."""
        layout = self._layouts[0]
        given = sizes_on_left(self._joined, self._axes, self._sizes, self._plans)
        coordinate = layout.coordinate(self._meshes.rank)
        return infer_dim_sizes(self._joined, self._axes, coordinate, tuple(shape), given)[1]

    def _check_as_before(self, x: Tensor | None, known: Known) -> None:
        """Raise before anything is sent if a tensor is not what all ranks expect."""
        if isinstance(x, Tensor) and x.layout == torch.strided:
            needs_gradient = x.requires_grad and torch.is_grad_enabled()
            is_known = x.shape in known.shapes and x.dtype == known.dtype
            if is_known and needs_gradient == known.requires_grad:
                return
        facts, dtype = self._read(x), dtype_name(known.dtype)
        before: list[Any] = [sorted(known.sizes.items()), dtype, known.requires_grad]
        if facts == before and x is not None:
            known.shapes.add(x.shape)
            return
        texts = [[format_sizes(dict(f[0])), *map(str, f[1:])] for f in (facts, before)]
        names = "sizes", "dtype", "requires_grad"
        triples = zip(names, *texts, strict=True)
        changed = (f"{name} {new}, not {old}" for name, new, old in triples if new != old)
        raise SpecError(
            f"x has {'; '.join(changed)}.",
            "Ranks without x know its sizes and dtype from the first call with this pattern.",
            fix="global sizes by keyword on all ranks." if texts[0][0] != texts[1][0] else "",
        )

    # -------------------------------------------------------------- programs

    def _bind(self, sizes: dict[str, int], dtype: torch.dtype, needs_gradient: bool) -> Known:
        """Return the programs of this rank. Local, with equal errors on all ranks."""
        dots = sum(name.startswith("_") for name in sizes)
        joined, pattern = self._joined, self.pattern
        if any(dim.name == DOTS for dim in joined.left.dims):
            joined, pattern = expand_dots(joined, dots), expand_dots(pattern, dots)
        if needs_gradient:
            check_differentiable(
                self.pattern,
                self._unmarked_axes(),
                self._op,
                self._grad_dtype,
                sums=self._sums_backwards,
                dtype=dtype,
            )
        meshes = self._meshes.source, self._meshes.target
        forward = self._program(pattern, joined, meshes, sizes, dtype, self._op, self._vote)
        backward, sums = None, self._grad_dtype if self._sums_backwards else None
        if needs_gradient:
            mirror = pattern.mirror
            joined = join_axes(mirror, *(layout.sizes for layout in self._layouts[::-1]))
            backward = self._program(mirror, joined, meshes[::-1], sizes, sums or dtype, "sum")
        pair = ProgramPair(forward, backward, sums, self._sums_backwards)
        return Known(sizes, dtype, needs_gradient, pair, set())

    def _program(
        self,
        pattern: Pattern,
        joined: Pattern,
        meshes: tuple[MeshGroups, ...],
        sizes: dict[str, int],
        dtype: torch.dtype,
        op: str,
        vote: Vote | None = None,
    ) -> Program:
        """Return the steps of this rank in one direction of the move."""
        source, target = (groups.plan.layout for groups in meshes)
        axes, rank = axes_of_both(source.sizes, target.sizes), self._meshes.rank
        sizes = {**sizes, **{name: plan.length for name, plan in self._plans.items()}}
        move = make_mesh_move(joined, source, target, sizes, self._plans)
        leg = make_leg(move, meshes[1], dtype)
        on_left = sizes_on_left(joined, axes, sizes, self._plans)
        sum_parts = make_sum(self._meshes, meshes[0], pattern.left, on_left, op)
        name = f'redistribute("{self.pattern}")'
        chunks = move.count_chunks(max(1, CHUNK // BATCHES // dtype.itemsize))
        batches = [((0, chunk, chunks),) for chunk in range(chunks)]
        channel = Channel(name, self._meshes.message_timeout)
        transmit = Transmit(leg, Mover(rank, self._meshes.device, [leg], batches, channel), vote)
        before = leg.bind(move.before) if rank in source else []
        after = leg.bind(move.after) if rank in target else []
        group_of = MeshAndView(meshes[0], None, self._meshes.is_checked).group_of
        first = sum_parts if rank in source else None
        return Program(name, (*before, transmit, *after), group_of, op, sum_parts=first)

    @property
    def _is_source(self) -> bool:
        return self._meshes.rank in self._layouts[0]

    @property
    def _is_target(self) -> bool:
        return self._meshes.rank in self._layouts[1]

    @property
    def _sums_backwards(self) -> bool:
        """Whether the backward sums gradients over ranks of the target."""
        sizes, types = self._layouts[1].sizes, self.pattern.right.types
        return any(kind.symbol == "*" and sizes.get(axis, 1) > 1 for axis, kind in types.items())

    def _unmarked_axes(self) -> list[tuple[int, str]]:
        """Return the axes of both meshes that the pattern leaves out, each after its side."""
        sides = self.pattern.left, self.pattern.right
        return [
            (number, axis)
            for number, (side, layout) in enumerate(zip(sides, self._layouts, strict=True))
            for axis, size in layout.sizes.items()
            if size > 1 and axis not in side.types
        ]
