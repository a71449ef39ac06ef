"""A process group that records its operations, for a rank whose peers do not run.

:mod:`meshkit.rehearse.rehearsal` plays one rank of a large job in one process. Every group of such
a rank is a :class:`RecordingGroup`. An operation is recorded with the line of the program, and
completes at once. Its result is plausible: peers hold the values of this rank, until another pass
knows what they have passed (:meth:`RecordingGroup.share`)::

    all_gather        the own part, repeated         reduce_scatter   the own part, times the ranks
    all_reduce        the own value, times the ranks for a sum         all_to_all    the input
    broadcast         the own buffer, or what the root of an equal group has sent; zeros for recv

torch's own "fake" backend has works without a result, with which DDP fails.
"""

# mypy: disable-error-code="override, assignment"
# ruff: noqa: ANN401  # torch's options have no types
from __future__ import annotations

import json
import os
import site
import sysconfig
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..launch.judges import Arrival, Arrivals, Decision, Json, Judge
from ..launch.process import current_process
from ..launch.round import Round
from ..launch.times import Deadline
from ..launch.torch_program import keep_uncompiled
from ..launch.torch_rehearsal import (
    BACKEND,
    program_frames,
    record_every_group,
    record_meta_collectives,
)
from .record import ANY, GroupRecord, Operation, Source, Trace

PACKAGE = os.path.dirname(os.path.dirname(__file__))
LIBRARIES = tuple(
    {
        *site.getsitepackages(),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(torch.__file__)),
        PACKAGE,
        "<",
    }
)
MAX_PAYLOAD = 1 << 16  # bytes of a broadcast or a message that ranks played later receive
MAX_SHARED = 1 << 20  # bytes of all collectives that a rank shares with the next pass
MAX_STACKED = 1 << 26  # bytes of such a collective, of all ranks of the group
MAX_FLOATS = 8  # of a tensor whose values other ranks receive: losses and flags
READERS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")
DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}

Tensors = list[Tensor]
Lists = list[list[Tensor]]
Key = tuple[object, ...]
Payloads = dict[Key, bytes]
Shared = dict[Key, dict[int, bytes]]  # collective to rank to what it has passed in the last pass


@dataclass(eq=False, repr=False)
class Recorder:
    """The record of one rank, and the messages of ranks that were played before."""

    trace: Trace
    received: Payloads = field(default_factory=dict)  # from ranks that were played before
    sent: Payloads = field(default_factory=dict)
    missing: set[Key] = field(default_factory=set)  # messages that nobody has sent
    wanted: set[int] = field(default_factory=set)  # ranks that would send some of them
    known: Shared = field(default_factory=dict)
    shared: Payloads = field(default_factory=dict)  # to the next pass
    num_shared: int = 0  # their bytes
    counts: Counter[Key] = field(default_factory=Counter)
    values: dict[int, Source] = field(default_factory=dict)  # of received storages

    def start(self, operation: Operation) -> int:
        """Record that an operation begins; return its number."""
        self.trace.operations.append(operation._replace(line=program_line()))
        number = len(self.trace.operations) - 1
        self.trace.events.append(number)
        return number

    def wait(self, number: int) -> None:
        """Record that the rank waits for the end of an operation."""
        self.trace.events.append(-number - 1)

    def number_of(self, members: tuple[int, ...]) -> int:
        """Return the number of a group of these members, which need not exist."""
        groups = self.trace.groups
        known = (number for number, group in enumerate(groups) if group.members == members)
        number = next(known, len(groups))
        if number == len(groups):
            groups.append(GroupRecord(members, -1))
        return number

    def add_group(self, members: tuple[int, ...], name: str) -> int:
        """Record that this rank has created a group. Its members must give it the same name."""
        serial = sum(group.members == members for group in self.trace.groups if group.serial >= 0)
        self.trace.groups.append(GroupRecord(members, serial))
        number = len(self.trace.groups) - 1
        self.start(Operation("new_group", number, detail=f"name {name}"))
        return number

    def keep(self, tensors: Sequence[Tensor], source: Source) -> None:
        """Remember that tensors hold values that the rank has received."""
        for tensor in tensors:
            if not is_fake(tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self.values:
                    weakref.finalize(storage, self.values.pop, id(storage), None)
                self.values[id(storage)] = source

    def read(self, tensor: Tensor) -> None:
        """Record that the program reads values, if the rank has received them."""
        is_plain = type(tensor) in (Tensor, torch.nn.Parameter)
        source = self.values.get(id(tensor.untyped_storage())) if is_plain else None
        if source is not None and source not in self.trace.reads:
            self.trace.reads[source] = len(self.trace.operations), program_line()

    def count_groups(self, number: int) -> None:
        """Record how many groups torch has counted, those of other ranks included."""
        self.trace.num_names = max(self.trace.num_names, number)


class RecordedWork(dist.Work):
    """A work that is complete. Waiting for it is recorded."""

    def __init__(
        self, recorder: Recorder, number: int, result: Sequence[Tensor], peer: int
    ) -> None:
        super().__init__()
        self.recorder, self.number, self.peer = recorder, number, peer
        self.values = [*result]

    def wait(self, timeout: object = None) -> bool:
        """Record that the rank waits. Return at once."""
        self.recorder.wait(self.number)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return True."""
        return True

    is_success = is_completed

    def result(self) -> list[Tensor]:
        """Return the tensors of the result."""
        return self.values

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future that has the result."""
        future: Future[list[Tensor]] = Future()
        future.set_result(self.values)
        return future

    def _source_rank(self) -> int:
        return self.peer


class RecordingGroup(dist.ProcessGroup):
    """A group of which only this rank runs. See the table of the module for its results."""

    def __init__(self, rank: int, members: Sequence[int], name: str, recorder: Recorder) -> None:
        super().__init__(rank, len(members))  # type: ignore[call-arg]
        self.recorder, self.members = recorder, tuple(members)
        self.number = recorder.add_group(self.members, name)
        self.own, self.count = rank, len(members)
        step = self.members[1] - self.members[0] if self.count > 1 else 0
        self.kind = (self.count, step)  # equal for the groups of one axis
        self.names = [name, ""]

    @cached_property
    def places(self) -> dict[int, int]:
        """Rank to its place in the group."""
        return {rank: place for place, rank in enumerate(self.members)}

    # torch asks a group for these; a group in Python keeps them itself

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    def _get_backend(self, device: object) -> RecordingGroup:
        return self

    def _set_group_name(self, name: str) -> None:
        self.names[0] = name

    def _set_group_desc(self, description: str) -> None:
        self.names[1] = description
        groups = self.recorder.trace.groups
        groups[self.number] = groups[self.number]._replace(description=description)

    getGroupName = property(lambda self: lambda: self.names[0])
    group_name = property(lambda self: self.names[0])
    group_desc = property(lambda self: self.names[1])

    def shutdown(self, *_: object) -> None:
        """Do nothing: an operation takes no time, and there are no connections."""

    abort = set_timeout = shutdown

    def _start_coalescing(self, device: object) -> None:
        self.coalesced: list[RecordedWork] = []

    def _end_coalescing(self, device: object) -> RecordedWork:
        number = len(self.recorder.trace.operations) - 1
        return RecordedWork(self.recorder, number, (), -1)

    def record(
        self,
        name: str,
        compared: Sequence[Tensor],
        given: Sequence[Tensor],
        result: Sequence[Tensor],
        *,
        detail: str = "",
        root: int = ANY,
        peer: int = ANY,
        tag: int = 0,
        any_size: bool = False,
    ) -> RecordedWork:
        """Record an operation.

        ``compared`` has the tensors that have one size on all ranks, ``given`` those that this rank
        sends.
        """
        first = compared[0] if compared else None
        operation = Operation(
            name,
            self.number,
            dtype="" if first is None else format_dtype(first.dtype),
            shape=() if first is None else tuple(first.shape),
            numel=ANY if any_size else sum(t.numel() for t in compared),
            detail=detail,
            root=ANY if root == ANY else self.members[root],
            peer=ANY if peer == ANY else self.members[peer],
            tag=tag,
            num_bytes=sum(t.numel() * t.element_size() for t in given),
        )
        return RecordedWork(self.recorder, self.recorder.start(operation), result, operation.peer)

    def share(self, name: str, own: Sequence[Tensor], result: Sequence[Tensor]) -> Tensors:
        """Keep a small value for the next pass; return that of each member in the last pass.

        A rank that was not played has the value of the one before it that was. The list is empty
        if the values are unknown, and those of ``result`` are made up.
        """
        recorder, tensor = self.recorder, own[0] if len(own) == 1 else None
        if tensor is None or is_fake(tensor) or tensor.numel() == 0:
            recorder.keep(result, "made up")
            return []
        serial = recorder.trace.groups[self.number].serial
        channel = ("shared", name, hash(self.members), serial, str(tensor.dtype))
        recorder.counts[channel] += 1
        key = (*channel, recorder.counts[channel])
        size = tensor.numel() * tensor.element_size()
        is_small = tensor.numel() <= MAX_FLOATS or not tensor.is_floating_point()
        is_small &= size <= MAX_PAYLOAD and size * self.count <= MAX_STACKED
        if is_small and recorder.num_shared + size <= MAX_SHARED:
            recorder.num_shared += size
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            recorder.shared[key] = data.numpy().tobytes()
        known = recorder.known.get(key, {})
        if not known:
            recorder.keep(result, "own" if key in recorder.shared else "made up")
            return []
        recorder.keep(result, "all" if len(known) == self.count else "played")
        places = sorted((self.places[rank], rank) for rank in known)
        values = [torch.zeros_like(tensor) for _ in places]
        for value, (_, rank) in zip(values, places, strict=True):
            copy_to(value, torch.frombuffer(bytearray(known[rank]), dtype=tensor.dtype))
        starts = [place for place, _ in places]
        return [values[max(0, bisect_right(starts, n) - 1)] for n in range(self.count)]

    def combine(self, tensors: Sequence[Tensor], op: object, parts: Sequence[Tensor]) -> None:
        """Replace values by their reduction, over equal values of all ranks if ``parts`` is empty.

        Else the parts are the values of all members.
        """
        name = reduction_name(op)
        with torch.no_grad():
            for tensor in tensors:
                if parts and name in REDUCTIONS:
                    tensor.copy_(REDUCTIONS[name](torch.stack([*parts])))
                elif name == "sum" and tensor.dtype is not torch.bool:
                    tensor.mul_(self.count)

    # reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """Record an all_reduce."""
        work = self.record("all_reduce", tensors, tensors, tensors, detail=_reduction(opts))
        op = getattr(opts, "reduceOp", None)
        self.combine(tensors, op, self.share("all_reduce", tensors, tensors))
        return work

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a reduce."""
        detail, root = _reduction(opts), opts.rootRank
        work = self.record("reduce", tensors, tensors, tensors, detail=detail, root=root)
        parts = self.share("reduce", tensors, tensors)
        self.combine(tensors if root == self.own else (), opts.reduceOp, parts)
        return work

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> RecordedWork:
        """Record a reduce_scatter of lists."""
        given = [*chain.from_iterable(inputs)]
        return self.reduce_parts(outputs, given, [parts[self.own] for parts in inputs], opts)

    def reduce_scatter_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        opts: Any = None,
    ) -> RecordedWork:
        """Record a reduce_scatter of whole tensors."""
        check_dtypes("reduce_scatter", outputs, inputs)
        parts = [whole.detach().reshape(self.count, -1)[self.own].clone() for whole in inputs]
        return self.reduce_parts(outputs, inputs, parts, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(
        self,
        output: Tensor,
        whole: Tensor,
        opts: Any = None,
    ) -> RecordedWork:
        """Record a reduce_scatter of one tensor."""
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_parts(
        self,
        outputs: Sequence[Tensor],
        given: Sequence[Tensor],
        parts: Sequence[Tensor],
        opts: object,
    ) -> RecordedWork:
        """Record a reduce_scatter, in which this rank gets some parts of its own tensors."""
        work = self.record("reduce_scatter", outputs, given, outputs, detail=_reduction(opts))
        for output, part in zip(outputs, parts, strict=True):
            copy_to(output, part)
        self.combine(outputs, getattr(opts, "reduceOp", None), ())
        return work

    # copies

    def allgather(self, outputs: Lists, inputs: Tensors, opts: object = None) -> RecordedWork:
        """Record an all_gather of lists."""
        return self.collect("all_gather", outputs, inputs)

    def allgather_coalesced(
        self,
        outputs: Lists,
        inputs: Tensors,
        opts: object = None,
    ) -> RecordedWork:
        """Record an all_gather of lists, the outputs of each rank together."""
        return self.allgather([*map(list, zip(*outputs, strict=True))], inputs, opts)

    def all_gather_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        opts: object = None,
    ) -> RecordedWork:
        """Record an all_gather into whole tensors."""
        check_dtypes("all_gather", outputs, inputs)
        work = self.record("all_gather", inputs, inputs, outputs)
        known = self.share("all_gather", inputs, outputs)
        with torch.no_grad():
            for output, own in zip(outputs, inputs, strict=True):
                own_part = own.reshape(1, -1).clone()  # FSDP's input is a part of the output
                whole = torch.stack([*map(torch.flatten, known)]) if known else own_part
                output.view(self.count, -1).copy_(whole)
        return work

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: Tensor, own: Tensor, opts: object = None) -> RecordedWork:
        """Record an all_gather into one tensor."""
        return self.all_gather_single_coalesced([output], [own], opts)

    _allgather_base = all_gather_single

    def gather(self, outputs: Lists, inputs: Tensors, opts: Any) -> RecordedWork:
        """Record a gather."""
        return self.collect("gather", outputs, inputs, root=opts.rootRank)

    def collect(
        self, name: str, outputs: Lists, inputs: Tensors, *, root: int = ANY
    ) -> RecordedWork:
        """Record an operation that gives each rank, or the root, the inputs of all as lists."""
        results = [*chain.from_iterable(outputs)]
        work = self.record(name, inputs, inputs, results or inputs, root=root)
        known = self.share(name, inputs, results)
        for parts, own in zip(outputs, inputs, strict=False):  # no outputs but on the root
            for part, value in zip(parts, known or [own] * len(parts), strict=True):
                copy_to(part, value)
        return work

    def all_to_all_single(
        self,
        output: Tensor,
        own: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: object = None,
    ) -> RecordedWork:
        """Record an all_to_all of one tensor. Ranks may exchange parts of different sizes."""
        is_uneven = bool(output_sizes or input_sizes)
        return self.alltoall([output], [own], opts, any_size=is_uneven)

    alltoall_base = all_to_all_single

    def alltoall(
        self,
        outputs: Tensors,
        inputs: Tensors,
        opts: object = None,
        *,
        any_size: bool = True,
    ) -> RecordedWork:
        """Record an all_to_all of lists."""
        work = self.record("all_to_all", inputs, inputs, outputs, any_size=any_size)
        for output, own in zip(outputs, inputs, strict=True):
            copy_to(output, own)
        return work

    def broadcast(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a broadcast."""
        root, is_root = opts.rootRank, opts.rootRank == self.own
        work = self.record("broadcast", tensors, tensors if is_root else (), tensors, root=root)
        self.relay_payload("broadcast", root, root, tensors, is_sender=is_root)
        return work

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any) -> RecordedWork:
        """Record a scatter."""
        given = [*chain.from_iterable(inputs)]
        work = self.record("scatter", outputs, given, outputs, root=opts.rootRank)
        for number, output in enumerate(outputs):
            copy_to(output, inputs[number][self.own] if inputs else torch.zeros_like(output))
        for index, part in enumerate(inputs[0] if inputs else ()):
            self.relay_payload("scatter", self.own, index, [part], is_sender=True)
        if not inputs:
            self.relay_payload("scatter", opts.rootRank, self.own, outputs, is_sender=False)
        return work

    def barrier(self, opts: object = None) -> RecordedWork:
        """Record a barrier."""
        return self.record("barrier", (), (), ())

    # messages

    def send(self, tensors: Tensors, peer: int, tag: int) -> RecordedWork:
        """Record a send."""
        work = self.record("send", tensors, tensors, tensors, peer=peer, tag=tag)
        self.relay_payload("send", self.own, peer, tensors, is_sender=True)
        return work

    def recv(self, tensors: Tensors, peer: int, tag: int) -> RecordedWork:
        """Record a receive."""
        work = self.record("recv", tensors, (), tensors, peer=peer, tag=tag)
        for tensor in tensors:
            copy_to(tensor, torch.zeros_like(tensor))
        if peer != ANY:
            self.relay_payload("send", peer, self.own, tensors, is_sender=False)
        return work

    def recv_anysource(self, tensors: Tensors, tag: int) -> RecordedWork:
        """Record a receive from whichever rank sends first."""
        work = self.recv(tensors, ANY, tag)
        work.peer = self.members[self.own]
        return work

    def relay_payload(
        self, name: str, source: int, target: int, tensors: Tensors, *, is_sender: bool
    ) -> None:
        """Keep a small message of ints for ranks that are played later, or receive one.

        Sizes, seeds, token ids and pickled objects are such messages. If the sender itself was not
        played before, the message of an equal group, or over an equal distance, is received.
        """
        recorder, tensor = self.recorder, tensors[0]
        channel = (name, self.number, source, target)
        recorder.counts[channel] += 1
        turn = recorder.counts[channel]
        exact = (name, self.members[0], self.kind, source, target, turn)
        alike = (name, self.kind, target - source, turn)
        if not is_sender:
            recorder.keep(tensors, "made up")
        is_large = tensor.is_floating_point() and (name == "send" or tensor.numel() > MAX_FLOATS)
        if is_fake(tensor) or is_large or tensor.numel() == 0:
            return
        data = tensor.detach().view(-1).view(torch.uint8) if tensor.is_contiguous() else None
        if data is None or data.numel() > MAX_PAYLOAD:
            return
        if is_sender:
            recorder.sent[exact] = recorder.sent[alike] = bytes(data.numpy().tobytes())
            return
        message = recorder.received.get(exact, recorder.received.get(alike))
        if message is not None and len(message) == data.numel():
            data.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8).view_as(data))
            recorder.keep(tensors, "all" if exact in recorder.received else "made up")
        else:
            recorder.missing.add(alike)
        if exact not in recorder.received:
            recorder.missing.add(exact)


class RecordedRound(Round):
    """A round of meshkit of which only this rank runs: all others agree.

    If ranks of one kind state a fact more than the others (the source of a move states its tensor),
    the others read it from one that was played before.
    """

    def __init__(self, group: RecordingGroup, ranks: Sequence[int]) -> None:
        self.recorder, self.expected, self.rank = group.recorder, ranks, group.recorder.trace.rank
        self.number, self.name, self.summary = 1, "", ""
        self.turn, self.is_over, self.dissent = 0, False, {}
        self.arrived: dict[int, Arrival] = {}  # what this rank states, and one that states more

    def arrive(self, facts: Mapping[str, Json], *, same: bool = False, **options: object) -> None:
        """Record what all ranks must state equally."""
        self.turn = 1
        if not same:
            self.state(facts)
            return
        sizes, ranks = str(facts.get("sizes", "")), str(facts.get("ranks", ""))
        if sizes and ranks.startswith("range(0,"):  # a mesh over ranks in order
            pairs = (part.split("=") for part in sizes.split())
            self.recorder.trace.layouts.append({axis: int(size) for axis, size in pairs})
        number = self.recorder.number_of(tuple(self.expected))
        detail = json.dumps(facts, sort_keys=True)
        self.recorder.wait(self.recorder.start(Operation("agree", number, detail=detail)))

    def state(self, facts: Mapping[str, Json]) -> None:
        """Keep facts for ranks that are played later, and learn what another kind states."""
        recorder, ranks = self.recorder, tuple(self.expected)
        number, detail = recorder.number_of(ranks), json.dumps({"call": facts.get("call")})
        recorder.wait(recorder.start(Operation("agree", number, detail=detail)))
        channel = ("facts", ranks[0], ranks[-1], len(ranks))
        recorder.counts[channel] += 1
        key, more = (
            (*channel, recorder.counts[channel], len(facts) + extra) for extra in (False, True)
        )
        recorder.sent[key] = json.dumps(facts).encode()
        self.arrived[self.rank] = Arrival(current_process(), facts)
        message = recorder.received.get(more)
        other = next((rank for rank in ranks if rank != self.rank), None)
        if message is None or other is None:
            recorder.missing.add(more)
            recorder.wanted |= {int(str(facts["holder"]))} if "holder" in facts else set()
        else:
            self.arrived[other] = Arrival(current_process(), json.loads(message))

    def fail(self, error: BaseException) -> None:
        """Do nothing: no rank waits."""

    def decide(self, judge: Judge, deadline: Deadline, *, poll: float | None = None) -> Decision:
        """Return the decision of ranks that agree."""
        decision = judge(Arrivals([*self.arrived], self.arrived)) if self.arrived else None
        return decision or Decision()


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # of parts: (ranks, ...)
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.sum(0) / len(parts),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
}


@torch.no_grad()
def copy_to(target: Tensor, source: Tensor) -> None:
    """Copy as many values as fit, and fill the rest with zeros."""
    if target.numel() == source.numel():
        target.copy_(source.reshape(target.shape))
        return
    values = torch.zeros(target.numel(), dtype=target.dtype, device=target.device)
    common = min(target.numel(), source.numel())
    values[:common] = source.reshape(-1)[:common]
    target.copy_(values.view_as(target))


def check_dtypes(name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raise as every backend does if a collective gets an output of another dtype."""
    for output, given in zip(outputs, inputs, strict=True):
        if output.dtype != given.dtype:
            dtypes = format_dtype(output.dtype), format_dtype(given.dtype)
            raise RuntimeError(f"{name} has an output of {dtypes[0]} and an input of {dtypes[1]}")


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor has no values that could be read here."""
    return tensor.device.type != "cpu" or type(tensor) is not Tensor


def format_dtype(dtype: torch.dtype) -> str:
    """Return a dtype as short text: ``f32``, ``bf16``."""
    name = str(dtype).removeprefix("torch.")
    for long, short in DTYPES.items():
        if name.removeprefix(long)[:1].isdigit():
            return name.replace(long, short)
    return name


def reduction_name(op: object) -> str:
    """Return the name of a reduction: ``sum``."""
    return "sum" if op is None else str(getattr(op, "op", op)).rpartition(".")[2].lower()


def _reduction(opts: Any) -> str:
    return reduction_name(getattr(opts, "reduceOp", None))


def program_line() -> str:
    """Return the line of the program that is running: ``train.py:88``."""
    file, line = next(program_frames(LIBRARIES), ("", 0))
    return f"{os.path.basename(file)}:{line}" if file else ""


def start_recording(recorder: Recorder, world_size: int) -> RecordingGroup:
    """Make this process one rank of a world of which no other rank runs; return its default group.

    Local. Every group that is created from now on is a :class:`RecordingGroup`.
    """

    def create(options: Any, _: object) -> RecordingGroup:
        members = options.global_ranks_in_group or range(world_size)
        return RecordingGroup(options.group_rank, members, options.group_id, recorder)

    def note(method: Callable[..., object]) -> Callable[..., object]:
        def read(tensor: Tensor, *args: object, **options: object) -> object:
            recorder.read(tensor)
            return method(tensor, *args, **options)

        return read

    for name in READERS:
        setattr(Tensor, name, note(getattr(Tensor, name)))
    for method in chain(vars(RecordingGroup).values(), vars(RecordedWork).values()):
        if hasattr(method, "__code__"):
            keep_uncompiled(method)
    record_every_group(create, recorder.count_groups, recorder.trace.rank, world_size)
    record_meta_collectives()
    return cast(RecordingGroup, dist.group.WORLD)
