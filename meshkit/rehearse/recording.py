"""A process group that records its operations, for a rank whose peers do not run.

:mod:`meshkit.rehearse.rank` plays one rank of a large job in one process. Every group of such
a rank is a :class:`RecordingGroup`. An operation is recorded with the line of the program, and
completes at once. Its result is plausible: peers hold the values of this rank, until another pass
knows what they have passed (:meth:`~meshkit.rehearse.recorder.Recorder.share`)::

    all_gather        the own part, repeated         reduce_scatter   the own part, times the ranks
    all_reduce        the own value, times the ranks for a sum         all_to_all    the input
    broadcast         the own buffer, or what the root of an equal group has sent; zeros for recv

torch's own "fake" backend has works without a result, with which DDP fails.
"""

# mypy: disable-error-code="override, assignment"
# ruff: noqa: ANN401  # torch's options have no types
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..launch.torch_program import keep_uncompiled
from ..launch.torch_rehearsal import BACKEND, record_every_group, record_meta_collectives
from ..text import dtype_name
from .record import ANY, Operation
from .recorder import Recorder, copy_to

READERS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")
SHORT_KINDS = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
Tensors = list[Tensor]
Lists = list[list[Tensor]]


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
        self.recorder = recorder
        self.members = recorder.add_group(tuple(members), name)
        self.relay = partial(recorder.relay_payload, self.members)
        self.own, self.count = rank, len(members)
        self.names = [name, ""]

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
        groups, number = self.recorder.trace.groups, self.members.number
        groups[number] = groups[number]._replace(description=description)

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
            self.members.number,
            dtype="" if first is None else format_dtype(first.dtype),
            shape=() if first is None else tuple(first.shape),
            numel=ANY if any_size else sum(t.numel() for t in compared),
            detail=detail,
            root=ANY if root == ANY else self.members.ranks[root],
            peer=ANY if peer == ANY else self.members.ranks[peer],
            tag=tag,
            num_bytes=sum(t.numel() * t.element_size() for t in given),
        )
        return RecordedWork(self.recorder, self.recorder.start(operation), result, operation.peer)

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
        self.combine(tensors, op, self.recorder.share(self.members, "all_reduce", tensors, tensors))
        return work

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a reduce."""
        detail, root = _reduction(opts), opts.rootRank
        work = self.record("reduce", tensors, tensors, tensors, detail=detail, root=root)
        parts = self.recorder.share(self.members, "reduce", tensors, tensors)
        self.combine(tensors if root == self.own else (), opts.reduceOp, parts)
        return work

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> RecordedWork:
        """Record a reduce_scatter of lists."""
        given = [*chain.from_iterable(inputs)]
        return self.reduce_parts(outputs, given, [parts[self.own] for parts in inputs], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record a reduce_scatter of whole tensors."""
        check_dtypes("reduce_scatter", outputs, inputs)
        parts = [whole.detach().reshape(self.count, -1)[self.own].clone() for whole in inputs]
        return self.reduce_parts(outputs, inputs, parts, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(
        self, output: Tensor, whole: Tensor, opts: Any = None
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
        self, outputs: Lists, inputs: Tensors, opts: object = None
    ) -> RecordedWork:
        """Record an all_gather of lists, the outputs of each rank together."""
        return self.allgather([*map(list, zip(*outputs, strict=True))], inputs, opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: object = None
    ) -> RecordedWork:
        """Record an all_gather into whole tensors."""
        check_dtypes("all_gather", outputs, inputs)
        work = self.record("all_gather", inputs, inputs, outputs)
        known = self.recorder.share(self.members, "all_gather", inputs, outputs)
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
        known = self.recorder.share(self.members, name, inputs, results)
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
        self, outputs: Tensors, inputs: Tensors, opts: object = None, *, any_size: bool = True
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
        self.relay("broadcast", root, root, tensors, is_sender=is_root)
        return work

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any) -> RecordedWork:
        """Record a scatter."""
        given = [*chain.from_iterable(inputs)]
        work = self.record("scatter", outputs, given, outputs, root=opts.rootRank)
        for number, output in enumerate(outputs):
            copy_to(output, inputs[number][self.own] if inputs else torch.zeros_like(output))
        for index, part in enumerate(inputs[0] if inputs else ()):
            self.relay("scatter", self.own, index, [part], is_sender=True)
        if not inputs:
            self.relay("scatter", opts.rootRank, self.own, outputs, is_sender=False)
        return work

    def barrier(self, opts: object = None) -> RecordedWork:
        """Record a barrier."""
        return self.record("barrier", (), (), ())

    # messages

    def send(self, tensors: Tensors, peer: int, tag: int) -> RecordedWork:
        """Record a send."""
        work = self.record("send", tensors, tensors, tensors, peer=peer, tag=tag)
        self.relay("send", self.own, peer, tensors, is_sender=True)
        return work

    def recv(self, tensors: Tensors, peer: int, tag: int) -> RecordedWork:
        """Record a receive."""
        work = self.record("recv", tensors, (), tensors, peer=peer, tag=tag)
        for tensor in tensors:
            copy_to(tensor, torch.zeros_like(tensor))
        if peer != ANY:
            self.relay("send", peer, self.own, tensors, is_sender=False)
        return work

    def recv_anysource(self, tensors: Tensors, tag: int) -> RecordedWork:
        """Record a receive from whichever rank sends first."""
        work = self.recv(tensors, ANY, tag)
        work.peer = self.members.ranks[self.own]
        return work


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # of parts: (ranks, ...)
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.sum(0) / len(parts),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
}


def check_dtypes(name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raise as every backend does if a collective gets an output of another dtype."""
    for output, given in zip(outputs, inputs, strict=True):
        if output.dtype != given.dtype:
            dtypes = format_dtype(output.dtype), format_dtype(given.dtype)
            raise RuntimeError(f"{name} has an output of {dtypes[0]} and an input of {dtypes[1]}")


def format_dtype(dtype: torch.dtype) -> str:
    """Return a dtype as short text: ``f32``, ``bf16``."""
    name = dtype_name(dtype)
    for long, short in SHORT_KINDS.items():
        if name.removeprefix(long)[:1].isdigit():
            return name.replace(long, short)
    return name


def reduction_name(op: object) -> str:
    """Return the name of a reduction: ``sum``."""
    return "sum" if op is None else str(getattr(op, "op", op)).rpartition(".")[2].lower()


def _reduction(opts: Any) -> str:
    return reduction_name(getattr(opts, "reduceOp", None))


def start_recording(recorder: Recorder, world_size: int) -> None:
    """Make this process one rank of a world of which no other rank runs. Local.

    Every group that is created from now on is a :class:`RecordingGroup`.
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
