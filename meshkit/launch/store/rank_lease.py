"""Who holds a rank at a store: one process at a time, known by name.

::

    meshkit/seat/3    {"host": "b", "pid": 311, "born": "<boot> <namespace> 8812",
                       "claim": "c0..", "generation": 2}

The first process to claim a rank has it. A process that joins again takes its own place in the next
generation, so that no key of an earlier group is ever met again. Another process takes the place of
one that has ended, and says to those who still wait for it that this start is over; where the first
one waits for the others itself, or is known to run, there is one process too many.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from .check_in import NAMED, CheckIn, error_to_json
from .deadline import DeadlineExceededError, run_with_deadline

OVER = "this start of the job is over; another one has begun."


@dataclass(frozen=True)
class LeaseHolder:
    """The process that holds a rank, and its generation: how often it was taken, from 1.

    Every claim has a number of its own, so that a process knows its claim from its earlier ones.
    """

    host: str
    pid: int
    born: str
    claim: str
    generation: int = 1

    @classmethod
    def here(cls) -> LeaseHolder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), process_identity(os.getpid()), uuid4().hex)

    @classmethod
    def read(cls, said: bytes) -> LeaseHolder:
        """As it stands in the store."""
        return cls(**json.loads(said))

    def written(self) -> str:
        """As it stands in the store."""
        return json.dumps(vars(self))

    def is_same(self, other: LeaseHolder) -> bool:
        """Whether both are one process."""
        return (self.host, self.pid, self.born) == (other.host, other.pid, other.born)

    def runs(self) -> bool | None:
        """Whether the process runs; None where that cannot be known from this host."""
        if self.host != socket.gethostname() or not self.born.startswith(_space()):
            return None
        return process_identity(self.pid) == self.born

    def state(self) -> str:
        """What the process does, in words, as far as this host can know."""
        known = {None: "not known here whether it runs", False: "it has ended"}
        stopped = process_stat(self.pid)[:1] == ["T"]
        return known.get(self.runs()) or ("it is stopped" if stopped else "it runs")

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


class RankTakenError(Exception):
    """Another process holds the rank.

    Attributes:
        holder: that process.
        waits: whether it still waits for the others of its job.
    """

    def __init__(self, holder: LeaseHolder, waits: bool) -> None:
        super().__init__(holder, waits)
        self.holder, self.waits = holder, waits


def acquire_rank(base: dist.Store, rank: int) -> int:
    """Take a rank; the generation in which this process has it. Local.

    One store operation, two for a process that comes again, and one to four more to see that
    nobody who has ended is in the way.

    Args:
        base: the store of the job, without the prefix of a generation.
        rank: what is claimed.

    Raises:
        TakenError: where another process has it and waits, or is known to run.
    """
    key, me = f"meshkit/seat/{rank}", LeaseHolder.here()
    said = base.compare_set(key, "", me.written())
    while (before := LeaseHolder.read(said)) != me:
        if not before.is_same(me):
            _succeed(base, before)
        me = replace(me, generation=before.generation + 1)
        said = base.compare_set(key, said.decode(), me.written())
    return acquire_rank(base, rank) if _given_up(base, me.generation) else me.generation


def _given_up(base: dist.Store, generation: int) -> bool:
    """Whether a start of the job was begun by a process that has ended without a verdict.

    Its check-ins would be counted for this one's, so it is over now. One to four store operations.
    """
    root = dist.PrefixStore(f"meshkit/{generation}", base)
    if not root.check(["meeting/1/request"]) or root.check(["meeting/1/verdict"]):
        return False
    _, rank, _ = json.loads(root.get("meeting/1/request"))
    before = LeaseHolder.read(base.get(f"meshkit/seat/{rank}"))
    ended = before.generation == generation and before.runs() is False
    if ended:
        end_generation(base, generation)
    return ended


def is_generation_over(root: dist.Store) -> bool:
    """Whether another start of the job has taken the place of this generation; False if untold."""
    try:
        return run_with_deadline(1, lambda: bool(root.check(["over"])))
    except (RuntimeError, DeadlineExceededError):  # the store has gone
        return False


def lease_holders(root: dist.Store, ranks: Sequence[int]) -> dict[int, LeaseHolder]:
    """Who holds these ranks now, as far as that is known. One or two operations a rank; for errors.

    Args:
        root: the store of a generation.
        ranks: of whom to tell.
    """
    if not isinstance(root, dist.PrefixStore):
        return {}
    base = root.underlying_store
    seats = {rank: f"meshkit/seat/{rank}" for rank in ranks}
    return {
        rank: LeaseHolder.read(base.get(key)) for rank, key in seats.items() if base.check([key])
    }


def last_seen(root: dist.Store, rank: int, ranks: Sequence[int]) -> list[str]:
    """Where ranks were last seen, in words; nothing of those that never came. For errors.

    Args:
        root: the store of a generation.
        rank: this process.
        ranks: of whom to tell; the first eight are told.
    """
    found = lease_holders(root, [rank, *ranks[:NAMED]])
    mine = found.pop(rank, None)
    if mine is not None:
        words = {
            one: f"{holder}{_elsewhere(holder, mine.generation)}" for one, holder in found.items()
        }
    else:  # someone else's group: its first meeting knows
        keys = {one: f"meeting/1/here/{one}" for one in ranks[:NAMED]}
        came = {one: root.get(key) for one, key in keys.items() if root.check([key])}
        words = {one: str(CheckIn(**json.loads(said))) for one, said in came.items()}
    return [f"{one} on {where}" for one, where in words.items()]


def _elsewhere(holder: LeaseHolder, mine: int) -> str:
    if holder.generation == mine:
        return ""
    return f" (in its {_nth(holder.generation)} init, this rank is in its {_nth(mine)})"


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _succeed(base: dist.Store, before: LeaseHolder) -> None:
    """Refuse to take the place of a process that is there; tell those who wait for one that is not.

    Raises:
        TakenError: where it is there.
    """
    old = dist.PrefixStore(f"meshkit/{before.generation}", base)
    meeting = dist.PrefixStore("meeting/1", old)  # that of init
    waits = not meeting.check(["verdict"])
    runs = before.runs()
    if runs or (waits and runs is None):
        raise RankTakenError(before, waits)
    end_generation(base, before.generation)


def end_generation(base: dist.Store, generation: int) -> None:
    """Say to all who wait in a start of the job that it is over. Two store operations."""
    root = dist.PrefixStore(f"meshkit/{generation}", base)
    root.set("over", "")
    words = error_to_json(RankTimeoutError(OVER))
    dist.PrefixStore("meeting/1", root).compare_set("verdict", "", words)


def process_identity(pid: int) -> str:
    """What tells a process of this host from all others: empty where it has ended.

    When it began, in the kernel's ticks, after what tells where its number means something.
    """
    state, *fields = process_stat(pid) or ["X"]
    return "" if state in "ZX" else f"{_space()}{fields[18]}"  # a zombie has ended


def process_stat(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on; empty where it tells nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _space() -> str:
    """The boot and the namespace in which process numbers are counted; hosts may share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} "
    except OSError:
        return "unknown "
