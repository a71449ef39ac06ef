"""Move a tensor from the ranks of one mesh to those of another, with its gradient.

Pieces travel as sends and receives on the default group, which every rank has. Ranks that want
copies gather them over a group of the target. A large tensor travels in chunks, so that the gather
of one chunk runs beside the sends of the next::

    chunk 0   send ........ gather ........
    chunk 1           send ........ gather ........

Every rank issues the chunks in this order, so no rank waits for one that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core.call import quotes_call
from ...core.errors import MeshkitError, SpecError
from ...core.group_plan import missing_group_error
from ...core.hang import describe_coordinate
from ...core.judges import all_same_and_first
from ...core.redistribute.mesh_move import (
    Gather,
    MeshMove,
    Message,
    axes_of_both,
    join_axes,
    make_mesh_move,
)
from ...core.redistribute.move import (
    Region,
    check_axes,
    check_op,
    infer_sizes,
    num_elements,
    sizes_on_left,
    slices_within,
)
from ...core.redistribute.pattern import DOTS, Pattern, Side, expand_dots
from ...core.redistribute.steps import Step
from ...core.sequence import SequencePlan
from ...core.text import format_sizes
from ...launch.default_group import default_group
from ...launch.job import require_job
from ...launch.times import TIMES, Deadline
from ...launch.torch_internals import collective_count
from ..group_registry import MeshGroups
from ..restore import message_timeout
from ..status import in_collective
from .operations import ALL_GATHER, carried, check_differentiable, check_tensor, run_local

CHUNK = 64 * 2**20  # bytes of a rank's part that travel at once
TENSOR = "tensor"  # the fact that only ranks of the source state

Reduce = Callable[[Tensor], Tensor]  # replaces the parts of a sum by the sum
Running = Generator[None, None, Tensor | None]


def finish(running: Running) -> Tensor | None:
    """Return the result of a move that was started. Collective over both meshes."""
    while True:
        try:
            next(running)
        except StopIteration as end:
            return cast("Tensor | None", end.value)


class Arriving(NamedTuple):
    """The messages of a chunk in progress. The tensors that are sent must live as long."""

    works: list[dist.Work]
    received: list[tuple[Message, Tensor]]
    sent: list[Tensor]


@dataclass(frozen=True, eq=False)
class Direction:
    """A move between two meshes as this rank runs it: forwards, or backwards with the gradient."""

    name: str  # the call, for reports of hangs
    move: MeshMove
    rank: int
    device: torch.device
    dtype: torch.dtype
    group: dist.ProcessGroup | None  # of the ranks that want copies; None without a gather
    limit: Callable[[], timedelta]  # returns how long a message may take
    reduce: Reduce  # sums the parts that the left side marks so; it comes before the move
    chunk: int = CHUNK  # bytes

    @property
    def is_source(self) -> bool:
        """Whether this rank has an input."""
        return self.rank in self.move.source.layout

    @property
    def is_target(self) -> bool:
        """Whether this rank gets a result."""
        return self.rank in self.move.target.layout

    def run(self, x: Tensor | None) -> Tensor | None:
        """Return the result on a rank of the target, else None. Collective over both meshes."""
        return finish(self.start(x))

    def start(self, x: Tensor | None) -> Running:
        """Run the move, with a pause after the first sends."""
        held = None
        if x is not None and self.is_source:
            held = self._arrange(self.move.before, x.resolve_conj())
        out = self._new_part(held)
        chunks = self.move.count_chunks(max(1, self.chunk // self.dtype.itemsize))
        arriving: dict[int, Arriving] = {}
        gathering: dict[int, tuple[Gather, dist.Work, Tensor]] = {}
        for chunk in range(chunks + 2):
            if chunk < chunks:
                arriving[chunk] = self._send(held, chunk, chunks)
                if not chunk:
                    yield
            if chunk - 1 in arriving:
                self._receive(arriving.pop(chunk - 1), out)
                self._begin_gather(gathering, out, chunk - 1, chunks)
            if chunk - 2 in gathering:
                self._end_gather(*gathering.pop(chunk - 2), out)
        return None if out is None else self._arrange(self.move.after, out)

    def _arrange(self, steps: Iterable[Step], x: Tensor) -> Tensor:
        for step in steps:
            x = run_local(step.bind(self._coordinate), x, None)
        return x

    @cached_property
    def _coordinate(self) -> dict[str, int]:
        return self.move.coordinate(self.rank)

    @cached_property
    def _held(self) -> Region:
        """The region that this rank holds before."""
        return self.move.move.source.region(self._coordinate)

    @cached_property
    def _wanted(self) -> Region:
        """The region that this rank wants."""
        return self.move.move.target.region(self._coordinate)

    def _new_part(self, held: Tensor | None) -> Tensor | None:
        """Return the tensor for this rank's part, with what this rank holds already."""
        if not self.is_target:
            return None
        shape = [interval.size for interval in self._wanted]
        if self.move.target.place(self.rank) is None:  # another rank has it
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        out = torch.empty(shape, dtype=self.dtype, device=self.device)
        kept = self.move.keeps(self.rank)
        if kept is not None and held is not None:
            out[slices_within(kept, self._wanted)] = held[slices_within(kept, self._held)]
        return out

    def _send(self, held: Tensor | None, chunk: int, chunks: int) -> Arriving:
        """Start the sends and receives of a chunk."""
        sends = self.move.sends(self.rank, chunk, chunks)
        receives = self.move.receives(self.rank, chunk, chunks)
        sent = [_pack(held, self._held, message) for message in sends if held is not None]
        received = [(message, self._new_buffer(_count(message))) for message in receives]
        ops = [
            dist.P2POp(dist.isend, carried(tensor), message.peer)
            for message, tensor in zip(sends, sent, strict=True)
        ]
        ops += [dist.P2POp(dist.irecv, carried(tensor), m.peer) for m, tensor in received]
        if not ops:
            return Arriving([], [], [])
        world, counts = default_group(), require_job().counts
        before = collective_count(world) or 0
        with in_collective(self.name, world):
            works = dist.batch_isend_irecv(ops)
        counts.own[world.group_name] += (collective_count(world) or 0) - before
        return Arriving(works, received, sent)

    def _receive(self, arriving: Arriving, out: Tensor | None) -> None:
        """Wait for the messages of a chunk, and put them in place."""
        with in_collective(self.name, default_group()):
            for work in arriving.works:
                work.wait(self.limit())  # else gloo waits as long as for a connection
        for message, tensor in arriving.received:
            _unpack(out, self._wanted, message.boxes, tensor)

    def _begin_gather(
        self,
        gathering: dict[int, tuple[Gather, dist.Work, Tensor]],
        out: Tensor | None,
        chunk: int,
        chunks: int,
    ) -> None:
        """Start the gather of a chunk, if ranks want copies of it."""
        gather = self.move.gather(self.rank, chunk, chunks)
        if gather is None or out is None or self.group is None:
            return
        own = self._new_buffer(gather.size)
        position = 0
        for box in gather.blocks[self.group.rank()]:
            part = out[slices_within(box, self._wanted)].reshape(-1)
            own[position : position + part.numel()] = part
            position += part.numel()
        buffer = self._new_buffer(gather.size * len(gather.blocks))
        with in_collective(self.name, self.group):
            work = ALL_GATHER(carried(buffer), carried(own), self.group, True)
        gathering[chunk] = gather, work, buffer

    def _end_gather(self, gather: Gather, work: dist.Work, buffer: Tensor, out: Any) -> None:  # noqa: ANN401
        """Wait for the gather of a chunk, and put the blocks in place."""
        with in_collective(self.name, cast(dist.ProcessGroup, self.group)):
            work.wait()
        parts = torch.split(buffer, gather.size)
        for boxes, part in zip(gather.blocks, parts, strict=True):
            _unpack(out, self._wanted, boxes, part)

    def _new_buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)


def _count(message: Message) -> int:
    return sum(int(num_elements(box)) for box in message.boxes)


def _pack(held: Tensor, region: Region, message: Message) -> Tensor:
    """Return the elements of a message, one after the other in memory."""
    parts = [held[slices_within(box, region)].reshape(-1) for box in message.boxes]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous()


def _unpack(out: Any, region: Region, boxes: tuple[Region, ...], packed: Tensor) -> None:  # noqa: ANN401
    position = 0
    for box in boxes:
        place = out[slices_within(box, region)]
        place.copy_(packed[position : position + place.numel()].view(place.shape))
        position += place.numel()


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
        y = back.run(back.reduce(grad.to(back.dtype)) if back.is_source else None)
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


class Handle:
    """A redistribution in progress: ``handle = mesh.begin(...); ...; y = handle.wait()``."""

    def __init__(self, finish: Callable[[], Tensor | None]) -> None:
        self._finish: Callable[[], Tensor | None] | None = finish
        self._result: Any = None  # None also on a rank outside the target

    @quotes_call("handle.wait")
    def wait(self) -> Any:  # noqa: ANN401
        """Wait for the communication and return the result; later calls return it again.

        It is a tensor, or None on a rank outside the mesh ``to``.
        """
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        return self._result


# makes the reduction of one side of a pattern on a mesh, by the sizes of its dims
MakeReduce = Callable[[MeshGroups, Side, "dict[str, int]", str], Reduce]


class MeshRedistribution:
    """A pattern from one mesh to another: call it with a tensor, on the ranks of both.

    Created by ``mesh.redistribution(pattern, to=other)``.
    """

    def __init__(
        self,
        pattern: Pattern,
        meshes: tuple[MeshGroups, MeshGroups],
        op: str,
        grad_dtype: torch.dtype | None,
        sizes: dict[str, int],
        plans: dict[str, SequencePlan],
        make_reduce: MakeReduce,
        device: torch.device,
    ) -> None:
        self.pattern = pattern
        self._source, self._target = meshes
        self._op, self._grad_dtype = op, grad_dtype
        self._sizes, self._plans = sizes, plans
        self._make_reduce = make_reduce
        self._device = device
        self._known: dict[bool, Known] = {}  # by whether gradients are enabled
        self._check_open()
        self._layouts = meshes[0].plan.layout, meshes[1].plan.layout
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

    @torch.compiler.disable  # type: ignore[untyped-decorator]
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
            x = torch.empty(0, dtype=known.dtype, device=self._device, requires_grad=True)
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

    def _check_open(self) -> None:
        self._source.check_open()
        self._target.check_open()

    def _learn(self, x: Tensor | None) -> Known | None:
        """Return what all ranks know; None on a rank outside both meshes."""
        rank, enabled = self._source.rank, torch.is_grad_enabled()
        if all(rank not in layout for layout in self._layouts):
            return None
        self._check_open()
        known = self._known.get(enabled)
        if known is None:
            self._known[enabled] = known = self._agree(x, enabled)
        elif rank in self._layouts[0]:
            self._check_as_before(x, known)
        return known

    def _agree(self, x: Tensor | None, enabled: bool) -> Known:
        """Return what all ranks know, from the first call. Collective over both meshes."""
        source, target = self._layouts
        job, rank = require_job(), self._source.rank
        ranks = sorted({*map(int, source.grid.flat), *map(int, target.grid.flat)})
        part = f"move/{self._source.round_id}.{self._source.view_id}"
        part = f"{part}/{self._target.round_id}.{self._target.view_id}"
        name, everyone = "mesh.redistribute", len(ranks) == job.world.world_size
        summary = f"ranks disagree about {name}()."
        round = job.round(
            name,
            summary=summary,
            ranks=None if everyone else ranks,
            part="" if everyone else part,
        )
        if round is None:
            line = "the default group has no store, in which ranks of two meshes agree."
            raise MeshkitError(line, fix="meshkit.init() in place of your own init_process_group.")
        deadline = Deadline.after(job.arrival_timeout)
        facts: dict[str, Any] = {
            "call": name,
            "pattern": str(self.pattern),
            "op": self._op,
            "mesh": repr(source),
            "to": repr(target),
            "sizes": format_sizes(self._sizes),
            "gradients": "enabled" if enabled else "disabled",
        }
        with round:
            if rank in source:
                facts[TENSOR] = self._read(x)
            round.arrive(facts, deadline=deadline)
            seconds = job.arrival_timeout.total_seconds()
            judge = all_same_and_first(summary, TENSOR, seconds=seconds, describe=self._describe)
            decision = round.decide(judge, deadline, poll=TIMES.poll).check(rank)
        sizes, dtype, needs_gradient = decision.value
        return self._bind(dict(sizes), getattr(torch, dtype), needs_gradient)

    def _describe(self, rank: int) -> str:
        source, target = self._layouts
        return describe_coordinate(source if rank in source else target, rank)

    def _read(self, x: object) -> list[Any]:
        """Return the facts of a tensor that all ranks of the source must share, as JSON."""
        if x is None:
            line = f"x is None on rank {self._source.rank}, which is in the source mesh."
            raise SpecError(line, fix="the local tensor on every rank of the mesh.")
        check_tensor(x)
        tensor: Any = x
        needs_gradient = tensor.requires_grad and torch.is_grad_enabled()
        sizes = self._infer(tensor.shape)
        return [sorted(sizes.items()), str(tensor.dtype).removeprefix("torch."), needs_gradient]

    def _infer(self, shape: torch.Size) -> dict[str, int]:
        """Return the global size of each dim."""
        layout = self._layouts[0]
        given = sizes_on_left(self._joined, self._axes, self._sizes, self._plans)
        coordinate = layout.coordinate(self._source.rank)
        return infer_sizes(self._joined, self._axes, coordinate, tuple(shape), given)[1]

    def _check_as_before(self, x: Tensor | None, known: Known) -> None:
        """Raise before anything is sent if a tensor is not what all ranks expect."""
        needs_gradient = x is not None and x.requires_grad and torch.is_grad_enabled()
        is_known = x is not None and x.shape in known.shapes and x.dtype == known.dtype
        if is_known and needs_gradient == known.requires_grad:
            return
        facts, dtype = self._read(x), str(known.dtype).removeprefix("torch.")
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
            fix="global sizes by keyword on all ranks, if they vary.",
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
        meshes = self._source, self._target
        ahead = self._direction(pattern, joined, meshes, sizes, dtype, self._op)
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
        axes, group = move.target.copy_axes, None
        if axes and not meshes[1].plan.has(axes):
            raise missing_group_error(meshes[1].plan, axes, meshes[1].extended_by)
        if axes and self._source.rank in target:
            group = meshes[1].get((axes,))
        on_left = sizes_on_left(
            joined, axes_of_both(source.sizes, target.sizes), sizes, self._plans
        )
        reduce = self._make_reduce(meshes[0], pattern.left, on_left, op)
        name = f'redistribute("{self.pattern}")'
        rank, limit = self._source.rank, self._message_timeout
        return Direction(name, move, rank, self._device, dtype, group, limit, reduce)

    def _message_timeout(self) -> timedelta:
        """Return how long a message may take: the least timeout of both meshes."""
        return min(message_timeout(groups) for groups in (self._source, self._target))

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
