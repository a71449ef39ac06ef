"""Words of ranks that differ: who asked for what, and what a rank was doing.

A request is what a rank asks for in a call of all ranks, and a :class:`RankStatus` what it does
while others wait. The errors of every wing describe ranks by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ..layout.layout import Layout
from ..text import format_sizes, group_by, name_ranks, shorten

# An axis may use the default group, so it is created again too.
REBUILD_ADVICE = "mesh.close(), meshkit.shutdown(), and build again on all ranks"

Request = Mapping[str, str]  # field to its value as text; equal requests mean equal calls


MAX_REQUESTS = 8  # different requests shown one by one
MAX_HOSTS = 4  # ranks with host and process in one line
VERSIONS = "install one version of meshkit and of torch on every rank."
FIXES = {  # the fix of a field; a field before others is their cause
    "call": "make the same calls in the same order on every rank.",
    "job": "give every job its own MASTER_PORT (or init_method).",
    "open": "close the same views on every rank, and create new ones from the same mesh.",
    "external": "pass groups over the same axes on every rank.",
    "history": "create the same groups in the same order on every rank, also before this call.",
    "meshkit": VERSIONS,
    "torch": VERSIONS,
}
ALONE = {  # the fix of a field if no other one differs
    "grad": "x.requires_grad_() on every rank or on none, and the same for torch.no_grad().",
    "destroyed": "destroy a group on all its ranks; if the mesh leaves ranks out, close it and "
    "build it again instead.",
    "ranks": "pass equal ranks on every rank; of a DeviceMesh, the whole mesh and not a slice.",
    "seed": "pass the same seed on every rank, or seed='shared', which rank 0 draws for all.",
}


def describe_disagreement(
    requests: Mapping[int, Request], processes: Mapping[int, str], missing: Sequence[int]
) -> tuple[list[str], str]:
    """Return the evidence and the fix of the error that every rank raises."""
    groups = group_equal_requests(requests)
    fields = differing_fields([request for request, _ in groups])
    if "sizes" in fields:  # which axes may cross nodes follows from them
        fields = [field for field in fields if field != "crossing"]
    lines = []
    for number, (request, ranks) in enumerate(groups):
        known = [processes[rank] for rank in ranks[:MAX_HOSTS] if rank in processes]
        more = [f"and {len(ranks) - MAX_HOSTS} more"] * (len(ranks) > MAX_HOSTS)
        hosts = f" ({'; '.join(known + more)})" * bool(known and number)
        values = [request["sizes"]] if "sizes" in request else []
        values += [f"{name}={request.get(name, 'none')}" for name in fields if name != "sizes"]
        lines.append(f"{name_ranks(ranks)}{hosts}:  {', '.join(values)}")
    absent = [f"Missing: {name_ranks(missing)}."] * bool(missing)
    fixes = [fix for field, fix in FIXES.items() if field in fields]
    fixes += [ALONE[field] for field in fields if len(fields) == 1 and field in ALONE]
    if fields == ["world_size"]:
        (usual, most), *others = groups
        odd, size = sorted(rank for _, ranks in others for rank in ranks), usual["world_size"]
        if len(most) > len(odd):  # else nothing says which one is wrong
            fixes += [f"export WORLD_SIZE={size} on {name_ranks(odd)}, or pass world_size={size}."]
    fixes += [f"pass equal {' and '.join(fields)} on every rank."]
    return [*shorten(lines, MAX_REQUESTS, "."), *absent], fixes[0]


def group_equal_requests(requests: Mapping[int, Request]) -> list[tuple[Request, list[int]]]:
    """Return the different requests with their ranks; most ranks first, then by first rank."""
    ranks_of = group_by((tuple(sorted(requests[rank].items())), rank) for rank in sorted(requests))
    ordered = sorted(ranks_of.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    return [(requests[ranks[0]], ranks) for ranks in ordered]


def differing_fields(requests: Sequence[Request]) -> list[str]:
    """Return the fields in which requests differ, in the order of the first request."""
    names = dict.fromkeys(name for request in requests for name in request)
    return [name for name in names if len({request.get(name) for request in requests}) > 1]


# calls in which the sizes of tensors may differ between ranks
UNEVEN_CALLS = ("all_to_all", "alltoall", "scatter", "gather")
TracedTensor = tuple[tuple[int, ...], str]  # sizes and dtype


class TracedCall(NamedTuple):
    """A collective or a message that a rank has begun, as far as it is known.

    Collectives of a group are numbered from 1. Messages have numbers of their own, from 1 for each
    group, peer and direction.
    """

    number: int = 0  # 0 if unknown
    name: str = ""  # ``"all_reduce"``, ``"send"``
    tensors: tuple[TracedTensor, ...] = ()  # the first ones, ``(((4, 8), "float32"),)``
    line: str = ""  # of user code, ``"train.py:88 (step)"``
    peer: int = -1  # the rank at the other end of a message; -1 of a collective, or if unknown
    state: str = ""  # ``"begun"``, ``"started"`` on the device, or ``"completed"``
    order: int = 0  # its place among all calls of the rank over all groups, from 1; 0 if unknown
    root: int = -1  # the rank from which, or to which, a collective moves; -1 of others, or unknown
    more: int = 0  # how many tensors it has besides
    tag: int = 0  # of a message

    @classmethod
    def from_facts(cls, values: Iterable[Any]) -> TracedCall:
        """Return the call that a rank has posted."""
        call = cls(*values)
        return call._replace(tensors=tuple((tuple(sizes), name) for sizes, name in call.tensors))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its tensors, each once."""
        return tuple(dict.fromkeys(dtype for _, dtype in self.tensors))

    @property
    def content(self) -> str:
        """Its tensors and its tag as text, ``"[4, 8] float32, tag 3"``."""
        texts = [f"{[*sizes]} {dtype}" for sizes, dtype in self.tensors]
        texts += [f"and {self.more} more"] * (self.more > 0) + [f"tag {self.tag}"] * bool(self.tag)
        return ", ".join(texts)

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.is_send or "recv" in self.name

    @property
    def is_send(self) -> bool:
        """Whether it is a send."""
        return "send" in self.name

    @property
    def is_open(self) -> bool:
        """Whether it is not known to have completed."""
        return self.state != "completed"


@dataclass(frozen=True)
class RankStatus:
    """The collectives and the line of code that a rank is in."""

    rank: int
    begun: Mapping[str, int] = field(default_factory=dict)  # axes ("dp sp") to collectives
    function: str = ""  # the current collective, ``"all_reduce"``; empty outside
    group: str = ""  # its axes, or torch's description of a group of the user; may be unknown
    line: str = ""  # of user code, ``"train.py:88 (step)"``
    error: str = ""  # error with which it left the guard, other than a collective's; else empty
    ended_by: str = ""  # call by which it stopped using the mesh, ``"mesh.close()"``; else empty
    is_other_mesh: bool = False  # whether another mesh created the group of the collective
    left_guard: int = 0  # the number of the last guard that it left without an error, from 1
    thread: str = ""  # the thread and task that left it; empty if others were in guards meanwhile
    waited: float = 0.0  # seconds since it began its last collective, as far as it knows
    sees_waits: bool = True  # False on nccl: a rank may wait for a collective at any line
    # axes to the last calls over that group, the oldest first, its last collective among them;
    # a group that is missing is unknown
    calls: Mapping[str, tuple[TracedCall, ...]] = field(default_factory=dict)

    @classmethod
    def from_facts(cls, rank: int, facts: Mapping[str, Any]) -> RankStatus:
        """Return the status that a rank has posted."""
        begun = {str(axes): int(count) for axes, count in facts.get("begun", {}).items()}
        names = ("function", "group", "line", "error", "ended_by", "thread")
        texts: dict[str, Any] = {name: str(facts.get(name, "")) for name in names}
        numbers: dict[str, Any] = {"left_guard": int(facts.get("left_guard", 0))}
        numbers["sees_waits"] = bool(facts.get("sees_waits", True))
        calls = {
            str(axes): tuple(map(TracedCall.from_facts, made))
            for axes, made in facts.get("calls", {}).items()
        }
        waited = float(facts.get("waited", 0))
        return cls(rank, begun, **texts, **numbers, waited=waited, calls=calls)

    def to_facts(self) -> dict[str, Any]:
        """Return the status as a rank posts it."""
        return asdict(self)

    @property
    def operation(self) -> str:
        """The current collective with its group, ``"all_reduce over dp"``; empty outside."""
        return f"{self.function} over {self.group}" if self.group else self.function

    @property
    def has_left(self) -> bool:
        """Whether it takes part in no more collectives."""
        return bool(self.error or self.ended_by)

    def __str__(self) -> str:
        if self.error:
            return f"left with {self.error}"
        if self.ended_by:
            return f"has called {self.ended_by}"
        if self.left_guard:
            return "has left the guard"
        return f"in {self.operation or 'no collective'}, {self.line or 'no line is known'}"


def describe_coordinate(layout: Layout, rank: int) -> str:
    """Return the coordinate of a rank as text; ``outside`` for a rank outside the layout."""
    return format_sizes(layout.coordinate(rank)) if rank in layout else "outside"
