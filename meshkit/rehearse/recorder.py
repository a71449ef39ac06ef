"""Record the operations of a rehearsed rank, and its agreements with other ranks.

A rank that is played later receives what the ones before have sent, by a key of the message; the
ranks of another pass receive what all have shared in the pass before.
"""

from __future__ import annotations

import json
import os
import site
import sysconfig
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..launch.agreement import Agreement
from ..launch.judges import Arrival, Arrivals, Decision, Json, Judge
from ..launch.process import current_process
from ..launch.times import ARRIVAL
from ..launch.torch_rehearsal import program_frames
from ..layout.sizes import parse_sizes
from .record import GroupRecord, Operation, Source, Trace

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

Key = tuple[object, ...]
Payloads = dict[Key, bytes]
Shared = dict[Key, dict[int, bytes]]  # collective to rank to what it has passed in the last pass


@dataclass(frozen=True)
class Members:
    """The ranks of a recorded group."""

    number: int  # of the group in the trace
    ranks: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def kind(self) -> tuple[int, int]:
        """The number of ranks and the step between them, which groups of one axis share."""
        return self.count, self.ranks[1] - self.ranks[0] if self.count > 1 else 0

    @cached_property
    def places(self) -> dict[int, int]:
        """Rank to its place in the group."""
        return {rank: place for place, rank in enumerate(self.ranks)}


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

    def add_group(self, members: tuple[int, ...], name: str) -> Members:
        """Record that this rank has created a group. Its members must give it the same name."""
        serial = sum(group.members == members for group in self.trace.groups if group.serial >= 0)
        self.trace.groups.append(GroupRecord(members, serial))
        number = len(self.trace.groups) - 1
        self.start(Operation("new_group", number, detail=f"name {name}"))
        return Members(number, members)

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

    def share(
        self, group: Members, name: str, own: Sequence[Tensor], result: Sequence[Tensor]
    ) -> list[Tensor]:
        """Keep a small value for the next pass; return that of each member in the last pass.

        A rank that was not played has the value of the one before it that was. The list is empty
        if the values are unknown, and those of ``result`` are made up.
        """
        tensor = own[0] if len(own) == 1 else None
        if tensor is None or is_fake(tensor) or tensor.numel() == 0:
            self.keep(result, "made up")
            return []
        serial = self.trace.groups[group.number].serial
        channel = ("shared", name, hash(group.ranks), serial, str(tensor.dtype))
        self.counts[channel] += 1
        key = (*channel, self.counts[channel])
        size = tensor.numel() * tensor.element_size()
        is_small = tensor.numel() <= MAX_FLOATS or not tensor.is_floating_point()
        is_small &= size <= MAX_PAYLOAD and size * group.count <= MAX_STACKED
        if is_small and self.num_shared + size <= MAX_SHARED:
            self.num_shared += size
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            self.shared[key] = data.numpy().tobytes()
        known = self.known.get(key, {})
        if not known:
            self.keep(result, "own" if key in self.shared else "made up")
            return []
        self.keep(result, "all" if len(known) == group.count else "played")
        places = sorted((group.places[rank], rank) for rank in known)
        values = [torch.zeros_like(tensor) for _ in places]
        for value, (_, rank) in zip(values, places, strict=True):
            copy_to(value, torch.frombuffer(bytearray(known[rank]), dtype=tensor.dtype))
        starts = [place for place, _ in places]
        return [values[max(0, bisect_right(starts, n) - 1)] for n in range(group.count)]

    def relay_payload(
        self,
        group: Members,
        name: str,
        source: int,
        target: int,
        tensors: Sequence[Tensor],
        *,
        is_sender: bool,
    ) -> None:
        """Keep the content of a small message of the sender, or give it to the receiver.

        Ranks are played one after the other, so a receiver gets what the sender left earlier::

            rank 0 is played    broadcast(seed)    leaves 7
            rank 5 is played    broadcast(seed)    receives 7

        Programs branch on sizes, seeds, token ids and pickled objects, so such messages are kept,
        and large tensors are not. If the sender was not played before, the receiver gets the
        message of an equal group, or over an equal distance.
        """
        tensor = tensors[0]
        channel = (name, group.number, source, target)
        self.counts[channel] += 1
        turn = self.counts[channel]
        exact = (name, group.ranks[0], group.kind, source, target, turn)
        alike = (name, group.kind, target - source, turn)
        if not is_sender:
            self.keep(tensors, "made up")
        is_large = tensor.is_floating_point() and (name == "send" or tensor.numel() > MAX_FLOATS)
        if is_fake(tensor) or is_large or tensor.numel() == 0:
            return
        data = tensor.detach().view(-1).view(torch.uint8) if tensor.is_contiguous() else None
        if data is None or data.numel() > MAX_PAYLOAD:
            return
        if is_sender:
            self.sent[exact] = self.sent[alike] = bytes(data.numpy().tobytes())
            return
        message = self.received.get(exact, self.received.get(alike))
        if message is not None and len(message) == data.numel():
            data.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8).view_as(data))
            self.keep(tensors, "all" if exact in self.received else "made up")
        else:
            self.missing.add(alike)
        if exact not in self.received:
            self.missing.add(exact)

    def count_groups(self, number: int) -> None:
        """Record how many groups torch has counted, those of other ranks included."""
        self.trace.num_names = max(self.trace.num_names, number)


class RecordedAgreement(Agreement):
    """An agreement of which only this rank runs: all others agree.

    Some ranks state more than others: the source of a move also states its tensor. A rank that
    does not state it reads it from such a rank, which was played before.
    """

    def __init__(self, recorder: Recorder, call: str, ranks: Sequence[int]) -> None:
        self.recorder, self.rank, self.ranks = recorder, recorder.trace.rank, ranks
        self.call, self.limit, self.number = call, ARRIVAL, 1
        self.summary, self.describe = "", None
        self.arrived: dict[int, Arrival] = {}  # what this rank states, and one that states more

    def has_failed(self, judge: Judge) -> bool:
        """Return False: no rank of a rehearsal announces a failure to another one."""
        return False

    def arrive(self, facts: Mapping[str, Json], *, same: bool = True, **options: object) -> None:
        """Record what all ranks must state equally."""
        if not same:
            self.state(facts)
            return
        sizes, ranks = str(facts.get("sizes", "")), str(facts.get("ranks", ""))
        if sizes and ranks.startswith("range(0,"):  # a mesh over ranks in order
            self.recorder.trace.layouts.append(parse_sizes(sizes.split()))
        number = self.recorder.number_of(tuple(self.ranks))
        detail = json.dumps(facts, sort_keys=True)
        self.recorder.wait(self.recorder.start(Operation("agree", number, detail=detail)))

    def state(self, facts: Mapping[str, Json]) -> None:
        """Keep facts for ranks that are played later, and learn what another kind states."""
        recorder, ranks = self.recorder, tuple(self.ranks)
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

    def compare(self, facts: Mapping[str, Json]) -> None:
        """Record what all ranks must state equally."""
        self.arrive(facts)

    def broadcast(self, name: str, value: Json, **options: object) -> Json:
        """Return the value of this rank."""
        return value

    def fail(self, error: BaseException) -> None:
        """Do nothing: no rank waits."""

    def decide(self, judge: Judge | None = None, **options: object) -> Decision:
        """Return the decision of ranks that agree."""
        judge = judge or self.judge()
        decision = judge(Arrivals([*self.arrived], self.arrived)) if self.arrived else None
        return decision or Decision()


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


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor has no values that could be read here."""
    return tensor.device.type != "cpu" or type(tensor) is not Tensor


def program_line() -> str:
    """Return the line of the program that is running: ``train.py:88``."""
    file, line = next(program_frames(LIBRARIES), ("", 0))
    return f"{os.path.basename(file)}:{line}" if file else ""
