"""Move a tensor from the ranks of one mesh to those of another, with its gradient.

The first call with a pattern tells all ranks the sizes, the dtype and whether a gradient flows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..call import quotes_call
from ..errors import MeshkitError, SpecError
from ..groups.registry import MeshGroups
from ..groups.status import compares_calls
from ..launch.of_one_process import OfOneProcess
from ..launch.torch_groups import backend_of
from ..launch.torch_program import keep_uncompiled
from ..layout.sequence import SequencePlan
from ..text import dtype_name, format_sizes
from .mesh_move import axes_of_both, join_axes, make_mesh_move
from .move import check_axes, check_op, infer_dim_sizes, local_shape, sizes_on_left
from .mover import BATCHES, CHUNK, Channel, Leg, MeshPair, Mover, Works, make_leg
from .operations import check_differentiable, check_tensor
from .pattern import DOTS, Pattern, Side, expand_dots

Reduce = Callable[[Tensor], Tensor]  # replaces the parts of a sum by the sum
Running = Generator[Works, None, Tensor | None]


def votes() -> bool:
    """Return whether ranks vote in a move: in a guard with a timeout, where calls wait. Local."""
    return compares_calls() and "gloo" in backend_of()


def finish(running: Running) -> Tensor | None:
    """Return the result of a move that was started. Collective over both meshes."""
    while True:
        try:
            next(running)
        except StopIteration as end:
            return cast("Tensor | None", end.value)


@dataclass(frozen=True, eq=False)
class Direction(OfOneProcess):
    """The move of one tensor, forwards, or backwards with the gradient."""

    leg: Leg
    mover: Mover
    reduce: Reduce  # sums the parts that the left side marks so; it comes before the move
    vote: Callable[[Mover, Works], None] | None = None  # whether to go on, after first sends

    @property
    def is_source(self) -> bool:
        """Whether this rank has an input."""
        return self.leg.rank in self.leg.move.source.layout

    def run(self, x: Tensor | None) -> Tensor | None:
        """Return the result on a rank of the target, else None. Collective over both meshes."""
        return finish(self.start(x))

    def start(self, x: Tensor | None) -> Running:
        """Run the move, with a pause after the first sends."""
        leg, held, out = self.leg, None, None
        if x is not None and self.is_source:
            held = leg.arrange(leg.move.before, x)
        if leg.rank in leg.move.target.layout:
            shape = [interval.size for interval in leg.wanted]
            new = torch.empty if leg.is_holder else torch.zeros  # zeros: another rank has it
            out = new(shape, dtype=leg.dtype, device=self.mover.device)
        vote = self.vote if votes() else None  # before a wait that may stand outside the guard
        running = self.mover.start([held], [out])
        works = next(running)
        yield works
        if vote is not None:
            vote(self.mover, works)
        yield from running
        return None if out is None else leg.arrange(leg.move.after, out)


class MoveTensor(torch.autograd.Function):
    """A move to another mesh, whose gradient moves back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: Direction, back: Direction) -> Tensor:  # noqa: ANN401
        """Move the tensor; a rank outside the target gets an empty one."""
        ctx.back, ctx.shape, ctx.dtype = back, x.shape, x.dtype
        y = ahead.run(x if ahead.is_source else None)
        return x.new_empty(0) if y is None else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """Move the gradient; a rank outside the source gets zeros for its empty input."""
        back: Direction = ctx.back
        y = back.run(back.reduce(grad.to(back.leg.dtype)) if back.is_source else None)
        return grad.new_zeros(ctx.shape) if y is None else y.to(ctx.dtype), None, None


apply_move: Callable[..., Tensor] = MoveTensor.apply


class Known(NamedTuple):
    """The facts that all ranks know of a redistribution after its first call."""

    sizes: dict[str, int]  # the global size of each dim
    dtype: torch.dtype
    requires_grad: bool
    ahead: Direction
    back: Direction | None  # None without a gradient
    shapes: set[torch.Size]  # the local shapes of these sizes


class Handle(OfOneProcess):
    """A redistribution in progress: ``handle = mesh.begin(...); ...; y = handle.wait()``."""

    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish: Callable[[], object] | None = finish
        self._result: Any = None  # None also on a rank outside the target

    @quotes_call("handle.wait")
    def wait(self) -> Any:  # noqa: ANN401
        """Wait for the communication and return the result; later calls return it again.

        It is a tensor, or a state of a transfer; None on a rank outside the mesh ``to``.
        """
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        return self._result


# makes the reduction of one side of a pattern on a mesh, by the sizes of its dims
MakeReduce = Callable[[MeshGroups, Side, "dict[str, int]", str], Reduce]


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
        make_reduce: MakeReduce,
    ) -> None:
        self.pattern = pattern
        self._meshes = meshes
        self._op, self._grad_dtype = op, grad_dtype
        self._sizes, self._plans = sizes, plans
        self._make_reduce = make_reduce
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
        if known.ahead.is_source and x is not None:
            x = known.ahead.reduce(x)
        if known.back is None:
            return known.ahead.run(x)
        if not known.ahead.is_source or x is None:
            x = torch.empty(0, dtype=known.dtype, device=self._meshes.device, requires_grad=True)
        return apply_move(x, known.ahead, known.back)

    def begin(self, x: Tensor | None) -> Handle:
        """Begin the move of a tensor without a gradient. Collective over both meshes."""
        known = self._learn(x)
        if known is None:
            return Handle(lambda: None)
        if known.back is not None:
            fix = "mesh.redistribute, which has a gradient, or x.detach()."
            raise SpecError("the tensor requires a gradient.", fix=fix)
        if known.ahead.is_source and x is not None:
            x = known.ahead.reduce(x)
        running = known.ahead.start(x)
        next(running)
        return Handle(lambda: finish(running))

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
        elif self._meshes.rank in self._layouts[0]:
            try:
                self._check_as_before(x, known)
            except MeshkitError as error:
                self._refuse(known, error)
                raise
        return known

    def _refuse(self, known: Known, error: MeshkitError) -> None:
        """Raise an error on all ranks inside a guard. They may wait already, so they get zeros."""
        if votes():
            leg = known.ahead.leg
            move = leg.move.move
            shape = local_shape(move.left_entries, move.source.shape(leg.coordinate))
            zeros = torch.zeros((), dtype=known.dtype, device=self._meshes.device).expand(shape)
            running = known.ahead.mover.start(
                [leg.arrange(leg.move.before, known.ahead.reduce(zeros))], [None]
            )
            self._vote(known.ahead.mover, next(running), error)

    def _vote(self, mover: Mover, works: Works, error: MeshkitError | None = None) -> None:
        """Agree that no rank has refused its tensor, once the first messages have come.

        A rank that is killed is seen by the messages at once. Collective over both meshes.
        """
        mover.channel.wait(works)
        works.clear()

        def check() -> None:
            if error is not None:
                raise error

        facts, limit = {"pattern": str(self.pattern)}, self._meshes.message_timeout()
        self._meshes.confirm("mesh.redistribute", facts, check, limit)

    def _agree(self, x: Tensor | None, enabled: bool) -> Known:
        """Return what all ranks know, from the first call. Collective over both meshes."""
        is_source = self._meshes.rank in self._layouts[0]
        facts = {
            "pattern": str(self.pattern),
            "op": self._op,
            "sizes": format_sizes(self._sizes),
            "gradients": "enabled" if enabled else "disabled",
        }
        read: Callable[[object], Any] = lambda _: self._read(x) if is_source else None  # noqa: E731
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
        ahead = self._direction(pattern, joined, meshes, sizes, dtype, self._op)
        ahead = replace(ahead, vote=self._vote)
        back = None
        if needs_gradient:
            sums = self._grad_dtype if self._sums_backwards else None
            mirror = pattern.mirror
            joined = join_axes(mirror, *(layout.sizes for layout in self._layouts[::-1]))
            back = self._direction(mirror, joined, meshes[::-1], sizes, sums or dtype, "sum")
        return Known(sizes, dtype, needs_gradient, ahead, back, set())

    def _direction(
        self,
        pattern: Pattern,
        joined: Pattern,
        meshes: tuple[MeshGroups, ...],
        sizes: dict[str, int],
        dtype: torch.dtype,
        op: str,
    ) -> Direction:
        """Return one direction of the move as this rank runs it."""
        source, target = (groups.plan.layout for groups in meshes)
        sizes = {**sizes, **{name: plan.length for name, plan in self._plans.items()}}
        move = make_mesh_move(joined, source, target, sizes, self._plans)
        leg = make_leg(move, meshes[1], dtype)
        on_left = sizes_on_left(
            joined, axes_of_both(source.sizes, target.sizes), sizes, self._plans
        )
        reduce = self._make_reduce(meshes[0], pattern.left, on_left, op)
        name = f'redistribute("{self.pattern}")'
        rank = self._meshes.rank
        chunks = move.count_chunks(max(1, CHUNK // BATCHES // dtype.itemsize))
        batches = [((0, chunk, chunks),) for chunk in range(chunks)]
        device = self._meshes.device
        channel = Channel(name, self._meshes.message_timeout)
        return Direction(leg, Mover(rank, device, [leg], batches, channel), reduce)

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
