"""Judge a round: the records that ranks have left at the store become one decision for all ranks.

A judge is a pure function of these records. :class:`meshkit.launch.round.Round` reads the store,
calls the judge and writes the decision. The first decision counts, and every rank follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from ..errors import CALL, DisagreementError, MeshkitError, RankTimeoutError, text_of
from ..text import format_ranks, format_sizes, plural, shorten
from .disagreement import describe_disagreement, group_equal_requests

Json = Any  # a value of JSON: a number, a text, a list or a mapping

MAX_NAMES = 8  # ranks or hosts that an error names one by one
MAX_RANKS = 100_000  # missing ranks that an error lists as an attribute
MAX_RANGES = 100  # ranges of ranks in a text


class RankState(IntEnum):
    """The state of the process of a missing rank. The most certain cause of a hang comes first."""

    ENDED = 0
    STOPPED = 1
    UNKNOWN = 2  # on another machine, or in other namespaces of pids and times
    BUSY = 3  # it runs

    @property
    def is_certain(self) -> bool:
        """Whether such a rank cannot answer."""
        return self <= RankState.STOPPED


STATES = {RankState.ENDED: "has ended", RankState.STOPPED: "is stopped"}


class Process(NamedTuple):
    """A process. A rank of the same machine can tell whether it still runs."""

    host: str  # the name of its host, for texts
    pid: int
    machine: str = ""  # the id of the boot of its machine; else the name of the host
    space: str = ""  # the namespaces of its pid and its start; empty if they are unknown
    start: str = ""  # its start in ticks of the kernel; empty if it is unknown

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


class Arrival(NamedTuple):
    """The record of a rank in a round: its process, and the facts that it states."""

    process: Process
    facts: Mapping[str, Json]


class Sighting(NamedTuple):
    """The last process of a rank that is missing: its state, and a text on it."""

    state: RankState
    text: str


class Arrivals(NamedTuple):
    """The facts of a round that a judge sees."""

    expected: Sequence[int]  # the ranks that take part
    arrived: Mapping[int, Arrival]  # also ranks that are not expected, if their request differs
    objections: Sequence[MeshkitError] = ()  # the errors that ranks have posted
    seen: Mapping[int, Sighting] = {}  # the last process of missing ranks, as far as known
    late: Sequence[int] = ()  # the ranks that came after the deadline, while the others judged
    waited: float = 0.0  # the seconds that the judge has waited
    expired: bool = False  # whether the deadline has passed

    @property
    def missing(self) -> list[int]:
        """The expected ranks that have not arrived, in their order."""
        return [rank for rank in self.expected if rank not in self.arrived]

    @property
    def is_final(self) -> bool:
        """Whether ranks wait no longer for missing ones: the deadline has passed, or one ended."""
        return self.expired or RankState.ENDED in self.states.values()

    @property
    def states(self) -> dict[int, RankState]:
        """The state of the missing ranks, as far as this machine knows."""
        return {rank: seen.state for rank, seen in self.seen.items()}


@dataclass(frozen=True)
class Decision:
    """The outcome of a round; without any field all ranks agree."""

    error: MeshkitError | None = None  # the error that every rank raises
    # the facts of each rank that goes on, in a round that decides who lives
    members: Mapping[int, Mapping[str, Json]] = field(default_factory=dict)
    value: Json = None  # the message of one rank to all others
    is_replaced: bool = False  # whether this start of the job is over: ranks join a later one

    def check(self, rank: int) -> Decision:
        """Return the decision, or raise its error, with a note for a rank that came too late."""
        if (error := self.error) is None:
            return self
        if isinstance(error, RankTimeoutError) and rank in error.missing_ranks:
            error = error.but(evidence=(*error.evidence, f"Rank {rank} came after that."))
        try:
            raise error
        finally:
            del self, error  # a frame that holds its own error would keep the groups of its callers


Judge = Callable[[Arrivals], "Decision | None"]  # None: keep waiting
Look = Callable[[Sequence[int]], Mapping[int, Sighting]]  # the last processes of missing ranks
Describe = Callable[[int], str]  # the coordinate of a rank as text


def all_same(
    summary: str,
    *,
    seconds: float = 0.0,
    describe: Describe | None = None,
    hosts: Callable[[], Sequence[str]] = tuple,
    is_end: bool = False,
) -> Judge:
    """Return the judge of ranks that must all arrive with equal facts, or the error ``summary``.

    They wait ``seconds`` for each other. ``hosts`` returns the hosts of the job, as far as the
    launcher lists them. ``is_end``: they have agreed before, and have done it now: see
    :func:`all_done`.
    """

    def judge(seen: Arrivals) -> Decision | None:
        if seen.missing and not seen.is_final:
            return None
        error, objection = disagreement(summary, seen), next(iter(seen.objections), None)
        if seen.missing and not (error or (objection and not is_end)):
            stage = "the end of " * is_end
            error = missing_error(seen, seconds, stage=stage, describe=describe, hosts=hosts())
        return Decision(error or objection)

    return judge


def all_same_and_stated(
    summary: str, fact: str, *, alike: bool, seconds: float, describe: Describe | None = None
) -> Judge:
    """Return the judge of ranks with equal facts, but for one ``fact`` that they may state or omit.

    For example the ranks of two meshes move a state, and each that holds a part states its table::

        rank 0   call=transfer  state=3f                            value of the decision
        rank 1   call=transfer  state=3f     all but "state"        [("3f", [0, 1]),
        rank 2   call=transfer  state=a8     is equal          ->    ("a8", [2])]
        rank 3   call=transfer               states nothing

    ``alike`` is whether all that is stated must be equal; a8 above would then be a disagreement.
    The other arguments are those of :func:`all_same`.
    """
    same = all_same(summary, seconds=seconds, describe=describe)

    def judge(seen: Arrivals) -> Decision | None:
        stated: dict[int, Arrival] = {}
        common: dict[int, Arrival] = {}
        for rank, (process, facts) in seen.arrived.items():
            rest = {name: value for name, value in facts.items() if name != fact}
            common[rank] = Arrival(process, rest)
            if fact in facts:
                stated[rank] = Arrival(process, {fact: facts[fact]})
        decision = same(seen._replace(arrived=common))
        if decision is None or decision.error is not None:
            return decision
        error = disagreement(summary, seen._replace(arrived=stated)) if alike else None
        groups: list[tuple[Json, list[int]]] = []
        for rank, arrival in stated.items():
            value = arrival.facts[fact]
            known = next((ranks for other, ranks in groups if other == value), None)
            if known is None:
                groups.append((value, [rank]))
            else:
                known.append(rank)
        return Decision(error) if error is not None else Decision(value=groups)

    return judge


def all_done(summary: str, *, seconds: float, describe: Describe | None = None) -> Judge:
    """Return the judge of ranks that must all have done something, after they have agreed on it.

    A rank that is missing may be the reason why others failed, so it is named first.
    """
    return all_same(summary, seconds=seconds, describe=describe, is_end=True)


def disagreement(summary: str, seen: Arrivals) -> MeshkitError | None:
    """Return the error of ranks whose facts differ; None if they are equal."""
    requests = {
        rank: {str(name): str(value) for name, value in arrival.facts.items()}
        for rank, arrival in seen.arrived.items()
    }
    grouped = group_equal_requests(requests)
    if len(grouped) < 2:
        return None
    processes = {rank: str(arrival.process) for rank, arrival in seen.arrived.items()}
    evidence, fix = describe_disagreement(requests, processes, seen.missing)
    by_rank = {rank: format_sizes(request) for request, ranks in grouped for rank in ranks}
    return DisagreementError(summary, *evidence, fix=fix, requests=by_rank)


def failure_error(summary: str, rank: int, process: Process, error: BaseException) -> MeshkitError:
    """Return the error that the other ranks raise when a rank's own call failed."""
    if isinstance(error, MeshkitError):
        # the call of the failed rank, not of the rank that raises the report
        reason, evidence, fix = error.headline, error.evidence_text, error.fix_text
    else:
        reason, *rest = text_of(error).splitlines() or [""]
        evidence, fix = [line.strip() for line in rest], ""
    reason = f"{type(error).__name__}: {reason}"
    return DisagreementError(
        summary,
        f"rank {rank} ({process}) gave up: {reason}",
        *evidence,
        fix=fix or f"look at the log of rank {rank} first.",
        requests={rank: reason},
    )


def missing_error(
    seen: Arrivals,
    seconds: float,
    *,
    stage: str = "",
    describe: Describe | None = None,
    hosts: Sequence[str] = (),
) -> RankTimeoutError:
    """Return the error that names the ranks that did not arrive.

    Ranks that have ended or are stopped come first. The other ranks are then only late.
    """
    seconds = seconds if seen.expired else min(seconds, round(seen.waited, 1))
    certain = {rank: state for rank, state in seen.states.items() if state.is_certain}
    reasons = [*certain] or seen.missing
    names = [
        f"{rank}{f' ({describe(rank)})' if describe else ''}"
        f"{f' {STATES[certain[rank]]}' if rank in certain else ''}"
        for rank in reasons[:MAX_NAMES]
    ]
    names += [f"and {len(reasons) - len(names)} more"] * (len(reasons) > len(names))
    arrived_hosts = sorted({arrival.process.host for arrival in seen.arrived.values()})
    listed = f"{plural('host', len(arrived_hosts))} {', '.join(shorten(arrived_hosts, MAX_NAMES))}"
    came = f"{shorten_ranks(sorted(seen.arrived))}{f' on {listed}' * bool(arrived_hosts)}"
    lines = [f"Missing: {', '.join(names)}. Arrived: {came}."]
    if late := [rank for rank in seen.missing if rank not in certain] if certain else []:
        ranks = f"{plural('Rank', len(late))} {shorten_ranks(late)}"
        lines.append(f"{ranks}: late, and not known to have ended.")
    by_state = sorted(seen.seen.items(), key=lambda item: item[1].state)  # the ended ranks first
    if last := [f"{rank} on {sight.text}" for rank, sight in by_state if sight.text]:
        lines.append(f"Last seen: {'; '.join(last[:MAX_NAMES])}.")
    if seen.late:
        ranks = f"{plural('Rank', len(seen.late))} {format_ranks(seen.late)}"
        lines.append(f"{ranks} came late, after {seconds:g} s.")
    known = {host.partition(".")[0] for host in arrived_hosts}
    absent = [host for host in hosts if host.partition(".")[0] not in known]
    if 0 < len(absent) < len(hosts):  # else the launcher and the hosts use different names
        few = ", ".join(shorten(absent, MAX_NAMES))
        lines.append(f"No rank came from {plural('host', len(absent))} {few}.")
    ranks = f"{plural('rank', len(reasons))} {shorten_ranks(reasons)}"
    who = "it" if len(reasons) == 1 else "they"
    skipped = "" if stage else f"; if {who} skipped the call, make it there too"
    return RankTimeoutError(
        f"{len(seen.missing)} of {len(seen.expected)} ranks did not arrive at {stage}{CALL} within "
        f"{seconds:g} s.",
        *lines,
        fix=f"look at the logs of {ranks} first{skipped}.",
        missing_ranks=tuple(reasons[:MAX_RANKS]),
    )


def shorten_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, the ranges after the first hundred as a number of ranks."""
    ranges = format_ranks(ranks).split(", ")
    if len(ranges) <= MAX_RANGES:
        return ", ".join(ranges)
    return f"{', '.join(ranges[:MAX_RANGES])}, and more, {len(ranks)} in all"
