"""Send the parts of tensors from the ranks of one mesh to those of another, many at a time.

Pieces travel as sends and receives on the default group, which every rank has. Ranks that want
copies gather them over a group of the target; on gloo they send them to each other. Large states
travel in batches, so that the gathers of one batch run beside the sends of the next::

    batch 0   send ........ gather ........
    batch 1           send ........ gather ........

Every rank issues the batches in this order, so no rank waits for one that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..groups.groups import batch_messages
from ..groups.registry import MeshGroups
from ..groups.status import compares_calls, in_collective
from ..launch.default_group import default_group
from ..launch.job import require_job
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import plain
from ..launch.torch_aborts import collective_count, wait_in_time
from ..launch.torch_groups import backend_of
from ..layout.group_plan import missing_group_error
from ..text import name_ranks
from .mesh_move import Gather, MeshMove, Message
from .move import Region, local_shape, num_elements, slices_within
from .operations import ALL_GATHER
from .steps import Step

ALIGNED = 16  # bytes; at a multiple of it a block may begin with elements of any dtype
CHUNK = 64 * 2**20  # bytes of a rank's part, of which at most two are on their way
BATCHES = 4  # of a chunk: a late rank then stalls others less, and the ends of a move cost less
AHEAD = 2  # batches that are sent before one is received, and gathered before one is put in place


@dataclass(frozen=True, eq=False)
class Leg(OfOneProcess):
    """The move of one tensor as this rank plans it. Messages are planned once."""

    move: MeshMove
    rank: int
    dtype: torch.dtype  # in which the tensor travels
    group: dist.ProcessGroup | None  # of the ranks that want copies; None without a gather

    @cached_property
    def coordinate(self) -> dict[str, int]:
        """The coordinate of this rank over the axes of both meshes."""
        return self.move.coordinate(self.rank)

    @cached_property
    def held(self) -> Region:
        """The region that this rank holds before."""
        return self.move.move.source.region(self.coordinate)

    @cached_property
    def wanted(self) -> Region:
        """The region that this rank wants."""
        return self.move.move.target.region(self.coordinate)

    @cached_property
    def is_holder(self) -> bool:
        """Whether this rank wants the tensor, and not zeros."""
        return self.move.target.place(self.rank) is not None

    @cached_property
    def copies(self) -> tuple[int, ...]:
        """The ranks that want the same copies as this one, in the order of their blocks."""
        place = self.move.target.place(self.rank)
        return () if place is None else (*map(int, self.move.target.ranks[place.cell]),)

    @cached_property
    def chunks(self) -> dict[tuple[int, int], tuple[list[Message], list[Message], Gather | None]]:
        """The messages to send and to receive, and the gather, of each chunk so far."""
        return {}

    def plan(self, chunk: int, chunks: int) -> tuple[list[Message], list[Message], Gather | None]:
        """Return the messages to send and to receive, and the gather, of one chunk."""
        key = chunk, chunks
        if key not in self.chunks:
            methods = self.move.sends, self.move.receives
            sends, receives = (method(self.rank, *key) for method in methods)
            self.chunks[key] = sends, receives, self.move.gather(self.rank, *key)
        return self.chunks[key]

    def bind(self, steps: Iterable[Step]) -> list[Step]:
        """Return the local steps of this rank."""
        return [step.bind(self.coordinate) for step in steps]

    @cached_property
    def held_shape(self) -> tuple[int, ...]:
        """The shape of the local tensor before."""
        move = self.move.move
        return local_shape(move.left_entries, move.source.shape(self.coordinate))

    @cached_property
    def wanted_shape(self) -> tuple[int, ...]:
        """The shape of the local tensor after."""
        move = self.move.move
        return local_shape(move.right_entries, move.target.shape(self.coordinate))

    def keep(self, held: Tensor | None, out: Tensor | None) -> None:
        """Copy what this rank holds already."""
        kept = self.move.keeps(self.rank)
        if kept is not None and held is not None and out is not None:
            out[slices_within(kept, self.wanted)] = held[slices_within(kept, self.held)]


def make_leg(move: MeshMove, target: MeshGroups, dtype: torch.dtype) -> Leg:
    """Return this rank's move of a tensor. Local, with equal errors on all ranks."""
    axes, group = move.target.copy_axes, None
    if axes and not target.plan.has(axes):
        raise missing_group_error(target.plan, axes, target.extended_by)
    if axes and target.rank in target.plan.layout:
        group = target.get((axes,))
    return Leg(move, target.rank, dtype, group)


Works = list[tuple[dist.Work, list[int]]]  # each with the other ranks of its messages


class Arriving(NamedTuple):
    """The messages of one step in progress. The tensors that are sent must live as long."""

    works: Works
    received: dict[int, Tensor]  # the bytes from each rank
    sent: list[Tensor]


class Gathering(NamedTuple):
    """A gather in progress."""

    parts: list[tuple[int, Gather]]  # the tensors, in their order in each block
    blocks: Tensor  # the bytes of each rank that wants the same copies  # (ranks, bytes)
    wait: Callable[[], object]


Batch = tuple[tuple[int, int, int], ...]  # number of a tensor, chunk, chunks: what travels together


@dataclass(frozen=True, eq=False)
class Channel(OfOneProcess):
    """Messages of bytes on the default group, which every rank has."""

    name: str  # the call, for reports of hangs
    limit: Callable[[], timedelta]  # returns how long a message may take

    def start(self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor]) -> Works:
        """Start the messages to and from other ranks; return the works, each with its ranks."""
        sends, receives = ([(x[peer], peer) for peer in sorted(x)] for x in (sent, received))
        batches = batch_messages(sends, receives)
        if not batches:
            return []
        world, counts = default_group(), require_job().counts
        before_ops = collective_count(world) or 0
        # other backends than gloo run the messages of all ranks together
        batches = [[op] for batch in batches for op in batch] if self._is_gloo else batches
        works: Works = []
        with in_collective(self.name, world):
            for some in batches:
                peers = [op.peer for op in some]
                with naming(name_ranks(sorted({*peers}))):
                    works += [(work, peers) for work in dist.batch_isend_irecv(some)]
        counts.own[world.group_name] += (collective_count(world) or 0) - before_ops
        return works

    def wait(self, works: Works) -> None:
        """Wait for messages, and name the ranks of one that fails."""
        with in_collective(self.name, default_group()):
            for work, peers in works:
                with naming(name_ranks(sorted({*peers}))):
                    wait_in_time(work, default_group(), self.limit())

    def gather(self, leg: Leg, own: Tensor, blocks: Tensor) -> Callable[[], object]:
        """Start to gather the blocks of all ranks that want copies; return how to wait for it.

        A gather of gloo is a ring: each of its steps takes as long as its slowest link. So ranks
        send their blocks instead, and a link that others share as well delays its own blocks only.
        """
        if self._is_gloo:
            rows = dict(zip(leg.copies, blocks, strict=True))
            rows.pop(leg.rank).copy_(own)
            return partial(self.wait, self.start(dict.fromkeys(rows, own), rows))
        group = cast(dist.ProcessGroup, leg.group)
        with in_collective(self.name, group):
            work = ALL_GATHER(blocks.view(-1), own, group, True)

        def wait() -> None:
            with in_collective(self.name, group):
                work.wait()

        return wait

    @property
    def _is_gloo(self) -> bool:
        return "gloo" in backend_of()


@dataclass(frozen=True, eq=False)
class Mover(OfOneProcess):
    """Moves tensors together: all that one rank sends another in a batch is one message."""

    rank: int
    device: torch.device
    legs: Sequence[Leg]  # in a batch, elements of more bytes come first, so that all are aligned
    batches: Sequence[Batch]
    channel: Channel

    def start(
        self, held: Sequence[Tensor | None], out: Sequence[Tensor | None], vote: Vote | None = None
    ) -> Moving:
        """Start to move the parts that this rank holds into those that it wants."""
        return Moving(self.channel, self._run(held, out), vote)

    def _run(
        self, held: Sequence[Tensor | None], out: Sequence[Tensor | None]
    ) -> Generator[Works, None, None]:
        """Move the parts, with a pause after the first sends; yield their works."""
        arriving: dict[int, Arriving] = {}
        gathering: dict[int, list[Gathering]] = {}
        for number in range(len(self.batches) + 2 * AHEAD):
            if number < len(self.batches):
                arriving[number] = self._send(self.batches[number], held)
            if number == 0:
                yield arriving[0].works if arriving else []
                for leg, before, after in zip(self.legs, held, out, strict=True):
                    leg.keep(before, after)
            arrived, gathered = number - AHEAD, number - 2 * AHEAD
            if arrived in arriving:
                batch = self.batches[arrived]
                self._receive(batch, arriving.pop(arrived), out)
                gathering[arrived] = self._begin_gathers(batch, out)
            for started in gathering.pop(gathered, ()):
                self._end_gather(started, out)

    def _send(self, batch: Batch, held: Sequence[Tensor | None]) -> Arriving:
        """Start the sends and receives of a batch."""
        sent: dict[int, list[Tensor]] = {}
        sizes: dict[int, int] = {}
        for number, *chunk in batch:
            leg, before = self.legs[number], held[number]
            sends, receives, _ = leg.plan(*chunk)
            if before is not None:
                for message in sends:
                    sent.setdefault(message.peer, []).extend(
                        _bytes_of(before[slices_within(box, leg.held)], leg.dtype)
                        for box in message.boxes
                    )
            for message in receives:
                size = _count(message.boxes) * leg.dtype.itemsize
                sizes[message.peer] = sizes.get(message.peer, 0) + size
        packed = {
            peer: (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self.device)
            for peer, parts in sent.items()
        }
        received = {peer: self._new_bytes(size) for peer, size in sizes.items()}
        return Arriving(self.channel.start(packed, received), received, [*packed.values()])

    def _receive(self, batch: Batch, arriving: Arriving, out: Sequence[Tensor | None]) -> None:
        """Wait for the messages of a batch, and put them in place."""
        self.channel.wait(arriving.works)
        positions = dict.fromkeys(arriving.received, 0)
        for number, *chunk in batch:
            leg, after = self.legs[number], out[number]
            for message in leg.plan(*chunk)[1]:
                packed = arriving.received[message.peer]
                start = positions[message.peer]
                positions[message.peer] = _unpack(after, leg, message.boxes, packed, start)

    def _begin_gathers(self, batch: Batch, out: Sequence[Tensor | None]) -> list[Gathering]:
        """Start the gathers of a batch, one with each set of ranks."""
        parts: dict[tuple[int, ...], list[tuple[int, Gather]]] = {}
        for number, *chunk in batch:
            leg, gather = self.legs[number], self.legs[number].plan(*chunk)[2]
            if gather is not None and out[number] is not None:
                parts.setdefault(leg.copies, []).append((number, gather))
        started = []
        for ranks, pairs in parts.items():
            sizes = [gather.size * self.legs[number].dtype.itemsize for number, gather in pairs]
            own, position = self._new_bytes(-(-sum(sizes) // ALIGNED) * ALIGNED), 0
            for (number, gather), size in zip(pairs, sizes, strict=True):
                leg, after, start = self.legs[number], cast(Tensor, out[number]), position
                for box in gather.own:
                    part = _bytes_of(after[slices_within(box, leg.wanted)], leg.dtype)
                    own[start : start + part.numel()] = part
                    start += part.numel()
                position += size
            blocks = self._new_bytes(own.numel() * len(ranks)).view(len(ranks), -1)
            wait = self.channel.gather(self.legs[pairs[0][0]], own, blocks)
            started.append(Gathering(pairs, blocks, wait))
        return started

    def _end_gather(self, gathering: Gathering, out: Sequence[Tensor | None]) -> None:
        """Wait for a gather, and put the blocks in place."""
        gathering.wait()
        position = 0
        for number, gather in gathering.parts:
            leg = self.legs[number]
            end = position + gather.size * leg.dtype.itemsize
            blocks = gathering.blocks[:, position:end].reshape(len(gather.runs), -1)
            for boxes, packed in zip(gather.runs, blocks, strict=True):
                _unpack(out[number], leg, boxes, packed, 0)
            position = end

    def _new_bytes(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


class Moving(OfOneProcess):
    """Tensors on their way to another mesh, whose first messages have started."""

    def __init__(
        self, channel: Channel, running: Generator[Works, None, None], vote: Vote | None
    ) -> None:
        self._channel = channel
        self._running = running
        self._vote = vote
        self._works = next(running)

    def wait_for_first(self) -> None:
        """Wait for the first messages. No tensor to fill has changed then."""
        self._channel.wait(self._works)
        self._works.clear()  # a finished receive of gloo is not waited for again

    def wait(self) -> None:
        """Vote if ranks do, and wait until the tensors are filled. Collective over both meshes."""
        if self._vote is not None:
            self._vote(self)
        for _ in self._running:
            pass


Vote = Callable[[Moving], object]  # raises on all ranks if one of them has refused its tensor


@dataclass(frozen=True, eq=False)
class Transmit(OfOneProcess):
    """The step of a program in which the pieces of a tensor go to the ranks of another mesh."""

    leg: Leg
    mover: Mover
    vote: Vote | None = None

    def start(self, x: Tensor) -> tuple[Moving, Tensor]:
        """Start the first messages. Return the move, and the part of this rank that it fills.

        A rank outside the source has an empty tensor ``x``, and one outside the target gets one.
        """
        leg, out = self.leg, None
        held = x if leg.rank in leg.move.source.layout else None
        if leg.rank in leg.move.target.layout:
            shape = [interval.size for interval in leg.wanted]
            new = torch.empty if leg.is_holder else torch.zeros  # zeros: another rank has it
            out = new(shape, dtype=leg.dtype, device=self.mover.device)
        vote = self.vote if has_votes() else None  # before a wait that may stand outside the guard
        moving = self.mover.start([held], [out], vote)
        return moving, x.new_empty(0) if out is None else out


def has_votes() -> bool:
    """Return whether ranks vote in a move: in a guard with a timeout, where calls wait. Local."""
    return compares_calls() and "gloo" in backend_of()


@contextmanager
def naming(peers: str) -> Iterator[None]:
    """Add the peers of messages to torch's error, which names none."""
    try:
        yield
    except RuntimeError as error:
        error.args = (f"{error} The message was to or from {peers}.",)
        raise


def _count(boxes: Iterable[Region]) -> int:
    return sum(int(num_elements(box)) for box in boxes)


def _bytes_of(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes of a tensor in the dtype in which it travels."""
    return plain(part.to(dtype)).reshape(-1).contiguous().view(torch.uint8)


def _unpack(
    out: Tensor | None, leg: Leg, boxes: Iterable[Region], packed: Tensor, position: int
) -> int:
    """Put boxes of packed bytes in place; return the position after them."""
    for box in boxes:
        shape = [interval.size for interval in box]
        end = position + int(num_elements(box)) * leg.dtype.itemsize
        if out is not None:
            part = packed[position:end].view(leg.dtype).view(shape)
            out[slices_within(box, leg.wanted)] = part
        position = end
    return position
