"""A lease on a rank number: one process holds it at a time.

::

    meshkit/lease/3   {"process": ["b", 311], "start": "<boot> <namespaces> 8812",
                       "claim": "c0..", "generation": 2, "is_replaced": false}

The first process to claim a rank holds it. A process that joins again renews its own lease in the
next generation, so that no key of an earlier group is used again. Another process may replace one
that has exited; it then reports to waiting ranks that this start is over. If the first holder waits
for the other ranks, or is still alive, the second process is rejected as a duplicate.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast
from uuid import uuid4

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from ...core.hang import RankState as Life
from . import keys
from .check_in import CheckIn, ProcessIdentity
from .deadline import DeadlineExceededError, run_with_deadline
from .error_json import error_to_json
from .file_store import check_file
from .foreign_value import read_number, read_value

STATES = {
    Life.ENDED: "it has ended",
    Life.STOPPED: "it is stopped",
    Life.UNKNOWN: "not known here whether it runs",
    Life.BUSY: "it runs",
}
ENDS = (1, 2)  # the rounds of init
MAX_SEEN = 8  # missing ranks whose last process an error names


class LeaseHolder(NamedTuple):
    """The process that holds a rank, and its generation: how often the rank was taken, from 1.

    Attributes:
        process: its host and pid.
        start: text that no other process of its host shares.
        claim: a number of this claim, so that a process knows it from its earlier claims.
        generation: how often the rank was taken.
        is_replaced: whether another process has taken the rank since.
    """

    process: ProcessIdentity
    start: str
    claim: str
    generation: int = 1
    is_replaced: bool = False

    @classmethod
    def current(cls) -> LeaseHolder:
        """Return a new claim of this process."""
        process = ProcessIdentity(socket.gethostname(), os.getpid())
        return cls(process, process_start(process.pid), uuid4().hex)

    @classmethod
    def from_json(cls, text: str | bytes) -> LeaseHolder:
        """Return the holder that stands in the store."""
        record = json.loads(text)
        process = ProcessIdentity.from_record(record["process"])
        return cls(process, str(record["start"]), str(record["claim"]), int(record["generation"]))

    def is_same(self, other: LeaseHolder) -> bool:
        """Return whether both are one process."""
        return (self.process, self.start) == (other.process, other.start)

    def runs(self) -> bool | None:
        """Return whether the process runs; None if this host cannot know."""
        if self.is_replaced:
            return False
        on_this_host = self.process.host == socket.gethostname()
        if not on_this_host or not self.start.startswith(pid_namespace()):
            return None
        return process_start(self.process.pid) == self.start

    def life(self) -> Life:
        """Return the state of the process, as far as this host can know."""
        runs = self.runs()
        if runs is None:
            return Life.UNKNOWN
        if not runs:
            return Life.ENDED
        return Life.STOPPED if process_stat(self.process.pid)[:1] == ["T"] else Life.BUSY

    def __str__(self) -> str:
        return str(self.process)


class RankTakenError(Exception):
    """Another process holds the rank.

    Attributes:
        holder: the other process.
        waits: whether it still waits for the other ranks of its job.
    """

    def __init__(self, holder: LeaseHolder, waits: bool) -> None:
        super().__init__(holder, waits)
        self.holder, self.waits = holder, waits


def acquire_rank(base: dist.Store, rank: int) -> LeaseHolder:
    """Take a rank, and return the claim of this process, with its generation. Local.

    Cost: two store operations; some more for a process that joins again, or if an exited process
    is in the way.
    """
    key, own = keys.LEASE.format(rank), LeaseHolder.current()
    own = own._replace(generation=_next_generation(base, 0))
    record = json.dumps(own._asdict())
    text = base.compare_set(key, "", record)
    while text != record.encode():
        holder = read_value(key, text, LeaseHolder.from_json)
        if not holder.is_same(own):
            _end_exited(base, holder)
        elif _is_unfinished(base, holder.generation):
            end_generation(base, holder.generation)  # an error ended the last call of this process
        own = own._replace(generation=_next_generation(base, holder.generation))
        record = json.dumps(own._asdict())
        text = base.compare_set(key, text.decode(), record)
    return own


def _next_generation(base: dist.Store, last: int) -> int:
    """Return the generation in which a rank joins that has last joined in another, 0 for none.

    The newest generation stands in the store, so a rank that is behind learns it. A rank without a
    last generation joins the first one, also if that is decided: it reads the decision.

    Cost: one store operation, two more for a rank that joins again.
    """
    text = base.compare_set(keys.NEWEST, "", "1")
    if text == b"1" and not last:
        return 1
    newest = read_number(keys.NEWEST, text)
    if not last:  # it came late to the first start, unless that was given up
        first = dist.PrefixStore(keys.GENERATION.format(1), base)
        return newest if first.check([keys.OVER]) else 1
    if newest > last and not _join_round(base, newest, 1).check([keys.DECISION]):
        return newest
    generation = max(newest, last) + 1
    while newest < generation:
        text = base.compare_set(keys.NEWEST, str(newest), str(generation))
        newest = read_number(keys.NEWEST, text)
    return generation


def _is_unfinished(base: dist.Store, generation: int) -> bool:
    """Return whether ranks may still wait in the start of a generation."""
    arrival, end = (_join_round(base, generation, number) for number in ENDS)
    if not arrival.check([keys.DECISION]):
        return True
    has_agreed = bytes(arrival.get(keys.DECISION)) == b"all"
    return has_agreed and not end.check([keys.DECISION])


def _join_round(base: dist.Store, generation: int, number: int) -> dist.Store:
    """Return the store of a round of ``init``: 1 until all have arrived, 2 until all are done."""
    store = dist.PrefixStore(keys.GENERATION.format(generation), base)
    return dist.PrefixStore(keys.ROUND.format("", number), store)


def end_abandoned(store: dist.Store, generation: int, process: ProcessIdentity, start: str) -> None:
    """End a start of the job if the process that began it has exited before a decision.

    Its check-ins would count for this start's. Cost: none if the process runs.
    """
    if LeaseHolder(process, start, "").runs() is False:
        base = cast(dist.PrefixStore, store).underlying_store
        join_round = dist.PrefixStore(keys.JOIN_ROUND.format(generation), base)
        if not join_round.check([keys.DECISION]):
            end_generation(base, generation)


def is_past(base: dist.Store) -> bool:
    """Return whether this attempt of a torchrun job is over. Ask after taking a rank.

    Cost: one store operation.
    """
    return bool(base.check([keys.PAST]))


def is_generation_over(store: dist.Store) -> bool:
    """Return whether another start of the job has replaced this generation; False if unknown."""
    try:
        check_file(store)
        return run_with_deadline(1, lambda: bool(store.check([keys.OVER])))
    except (RuntimeError, DeadlineExceededError):  # the store is gone
        return False


def read_lease_holders(
    store: dist.Store, ranks: Sequence[int], generation: int | None = None
) -> dict[int, LeaseHolder]:
    """Return the processes that hold these ranks now, as far as known.

    With a generation, a holder that took its rank in a later one has replaced a rank of this one.

    Cost: one or two store operations per rank.
    """
    if not isinstance(store, dist.PrefixStore):
        return {}
    base = store.underlying_store
    by_rank = {rank: keys.LEASE.format(rank) for rank in ranks}
    holders = {
        rank: read_value(key, base.get(key), LeaseHolder.from_json)
        for rank, key in by_rank.items()
        if base.check([key])
    }
    return {
        rank: holder._replace(is_replaced=generation is not None and holder.generation > generation)
        for rank, holder in holders.items()
    }


def last_seen(store: dist.Store, rank: int, ranks: Sequence[int]) -> dict[int, str]:
    """Return the last processes of missing ranks as text; ranks never seen are left out."""
    first_ranks = ranks[:MAX_SEEN]
    holders = read_lease_holders(store, [rank, *first_ranks])
    own = holders.pop(rank, None)
    if own is not None:
        return {r: f"{holder}{_lag(holder, own.generation)}" for r, holder in holders.items()}
    # a default group that someone else created: its first round knows
    first = dist.PrefixStore(keys.ROUND.format("", 1), store)
    by_rank = {r: keys.CHECK_IN.format(r) for r in first_ranks}
    texts = {r: first.get(key) for r, key in by_rank.items() if first.check([key])}
    check_ins = {r: read_value(by_rank[r], text, CheckIn.from_json) for r, text in texts.items()}
    return {r: str(check_in.process) for r, check_in in check_ins.items()}


def _lag(holder: LeaseHolder, own: int) -> str:
    """Return a note on a rank that is in another generation than this one."""
    if holder.generation == own:
        return ""
    return f" (in its {_ordinal(holder.generation)} init, this rank is in its {_ordinal(own)})"


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _end_exited(base: dist.Store, holder: LeaseHolder) -> None:
    """End the generation of a process that has exited."""
    store = dist.PrefixStore(keys.JOIN_ROUND.format(holder.generation), base)
    waits = not store.check([keys.DECISION])
    runs = holder.runs()
    if runs or (waits and runs is None):
        raise RankTakenError(holder, waits)
    end_generation(base, holder.generation)


def end_generation(base: dist.Store, generation: int) -> None:
    """Report to all ranks that wait in a start of the job that it is over.

    Cost: three store operations.
    """
    error = RankTimeoutError("this start of the job is over; another one has begun.")
    dist.PrefixStore(keys.GENERATION.format(generation), base).set(keys.OVER, "")
    for number in ENDS:
        _join_round(base, generation, number).compare_set(keys.DECISION, "", error_to_json(error))


def process_start(pid: int) -> str:
    """Return text that no other process of this host shares; empty if the process has ended.

    The text holds the boot, the namespaces, and the start of the process in kernel ticks.
    """
    state, *fields = process_stat(pid) or ["X"]
    return "" if state in "ZX" else f"{pid_namespace()}{fields[18]}"  # a zombie has ended


def process_stat(pid: int) -> list[str]:
    """Return what Linux reports about a process, from its state on; empty if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def pid_namespace() -> str:
    """Return the boot and the namespaces in which pids and times count, as text.

    Two hosts may share a name. Linux counts the start of a process from the boot, which the time
    namespace of the reader shifts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink("/proc/self/ns/pid")]
        with suppress(FileNotFoundError):  # before Linux 5.6
            spaces.append(os.readlink("/proc/self/ns/time"))
        return f"{boot} {' '.join(spaces)} "
    except OSError:
        return "unknown "
