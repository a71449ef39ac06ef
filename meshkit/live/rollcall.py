"""After a collective has failed, every rank says through the store where it is.

The first to fail calls; whoever is in a guard answers, those that hang included, whose watching
thread answers for them. The caller writes the report once all have answered or a few seconds have
passed, and all raise it. A mesh has one such report: what fails after it fails because of it. Where
a watching thread only suspected a hang, and nobody is behind, the call is over without one.

The process that hosts the store leaves last: a watching thread reads the report as soon as it is
there, for a main thread that comes to its own error later, and rank 0 stays until all have read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta

import torch.distributed as dist

from ..core.call import Call
from ..core.errors import CollectiveError, MeshkitError
from ..core.hang import Place, hang
from ..core.layout import Layout
from ..core.plan import Axes
from ..launch.deadline import OverdueError, within
from ..launch.record import Joined
from ..launch.seat import Holder, holders
from ..launch.store import hosted_by_rank_0, lost
from ..launch.verdict import as_words, from_words
from .agree import coordinates_of

ANSWER = 3.0  # seconds for the answers, beside two looks of those who watch
LOOK = 0.5  # seconds between two looks at the store, at least
LOOKS = 4000  # of all ranks together in a second, at most: a store serves 85,000 operations


@dataclass(frozen=True)
class Site:
    """What is known of a mesh to those who guard it.

    Attributes:
        call: the call to quote.
        layout: its ranks.
        record: what is known of the job.
        groups: the key of a plan to this rank's group.
        number: that of the meeting in which the mesh was agreed upon.
        left: this rank, once it has left a guard with an error of its own, until it enters again.
        answered: the numbers of the roll calls that this rank has answered.
        heard: number of a call to the words of its report, which this rank has read: the store
            may be gone later.
    """

    call: Call
    layout: Layout
    record: Joined
    groups: Mapping[Axes, dist.ProcessGroup]
    number: int
    left: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    heard: dict[int, str] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """This process."""
        return self.record.world.rank

    @property
    def keys(self) -> dist.Store | None:
        """The keys of this mesh's roll call; None where torch tells no store."""
        root = self.record.store
        return None if root is None else dist.PrefixStore(f"mesh/{self.number}/guard", root)

    @property
    def look(self) -> float:
        """Seconds between two looks of a rank that watches."""
        return max(LOOK, self.layout.num_ranks / LOOKS)

    @property
    def answer(self) -> float:
        """Seconds for all to answer."""
        return ANSWER + 2 * self.look


def answer(keys: dist.Store, mine: Place, call: int = 0) -> None:
    """Say where this rank is. One store operation.

    Args:
        keys: those of the mesh's roll call.
        mine: where this rank is.
        call: the number of the roll call that is answered; 0 for a rank that leaves by itself.
    """
    keys.set(f"place/{mine.rank}", json.dumps({**asdict(mine), "call": call}))


def attend(site: Site, keys: dist.Store, mine: Place) -> None:
    """Answer the roll for another thread, and read the report. One store operation, or up to 5."""
    number = calls(keys)
    if number and number not in site.answered:
        site.answered.add(number)
        answer(keys, mine, number)
    if number and number not in site.heard and keys.check([f"report/{number}"]):
        _read(site, keys, number)


def take_back(keys: dist.Store, rank: int) -> None:
    """Forget what this rank said when it left. One store operation."""
    keys.set(f"place/{rank}", "")


def calls(keys: dist.Store) -> int:
    """How often the roll has been called. One store operation."""
    return int(keys.add("calls", 0))


def report(site: Site, error: str, mine: Place) -> MeshkitError | None:
    """Call the roll, or answer it; the error that all ranks raise.

    Collective over the ranks that are there; waits ``site.answer`` seconds for the others, and
    twice that where the one who called is gone. Where rank 0 hosts the store it stays until all who
    answered have read, at most ``site.answer`` seconds more. Where the store has gone, and this
    rank has not read the report before that, it says what it knows itself.

    Args:
        site: the mesh.
        error: what failed, in a line; empty where this rank only suspects a hang, and nothing is
            to be raised unless a rank is behind or silent.
        mine: where this rank is.

    Returns:
        The report; None where nothing was found.
    """
    keys = site.keys
    if keys is None:
        return _alone(site, error, mine, ())
    try:
        within(ANSWER, lambda: calls(keys))  # a store that answers nothing is not waited for
        words = within(2 * (site.answer + ANSWER), lambda: _report(site, keys, error, mine))
    except (RuntimeError, OverdueError):
        words = site.heard.get(max(site.heard, default=0), "")
        if not words:
            return _alone(site, error, mine, lost(site.call, site.record.world).missing_ranks)
    if words and site.rank == 0 and hosted_by_rank_0(site.record.world):
        _leave_last(site, keys)
    return from_words(words) if words else None


def _report(site: Site, keys: dist.Store, error: str, mine: Place) -> str:
    """The words of the report, by whoever called the roll, or by this rank where that is gone."""
    number, mine_to_write = _call(keys, mine.rank)
    site.answered.add(number)
    answer(keys, mine, number)
    if not mine_to_write:
        try:
            keys.wait([f"report/{number}"], timedelta(seconds=site.answer + 1))
        except dist.DistNetworkError:
            raise
        except (dist.DistStoreError, RuntimeError):  # the time is over; FileStore says RuntimeError
            pass
    if not keys.check([f"report/{number}"]):
        found = _gathered(site, keys, error, number)
        words = as_words(found) if error or found.behind or found.missing_ranks else ""
        keys.compare_set(f"report/{number}", "", json.dumps(words))
    return _read(site, keys, number)


def _read(site: Site, keys: dist.Store, number: int) -> str:
    """The words of a report that is there; kept, and told to the host of the store."""
    site.heard[number] = str(json.loads(keys.get(f"report/{number}")))
    keys.set(f"read/{number}/{site.rank}", "1")
    return site.heard[number]


def _leave_last(site: Site, keys: dist.Store) -> None:
    """Wait until all who answered the last call have read its report, or a few seconds."""
    deadline = time.monotonic() + site.answer

    def stay() -> None:
        while any(_unread(site, keys, max(site.heard))) and time.monotonic() < deadline:
            time.sleep(0.05)

    with suppress(RuntimeError, OverdueError):  # somebody else hosted it after all
        within(site.answer, stay)


def _unread(site: Site, keys: dist.Store, number: int) -> Iterator[bool]:
    """True for each rank that has answered the call and not read its report yet."""
    for rank in site.layout.grid.flat:
        if keys.check([f"place/{rank}"]) and not keys.check([f"read/{number}/{rank}"]):
            yield json.loads(keys.get(f"place/{rank}") or "{}").get("call") == number


def _call(keys: dist.Store, rank: int) -> tuple[int, bool]:
    """The number of the roll call that is open, or was the last one; whether this rank opened it.

    A call whose report found nothing is over: the next one has a number of its own.
    """
    number = calls(keys)
    over = number == 0 or (
        keys.check([f"report/{number}"]) and not json.loads(keys.get(f"report/{number}"))
    )
    if not over:
        return number, False
    mine = keys.compare_set(f"caller/{number + 1}", "", str(rank)).decode() == str(rank)
    if mine:
        keys.add("calls", 1)
    return number + 1, mine


def _gathered(site: Site, keys: dist.Store, error: str, number: int) -> CollectiveError:
    """The report on all ranks, those that do not answer included."""
    ranks = sorted(int(rank) for rank in site.layout.grid.flat)
    known = {} if site.record.store is None else holders(site.record.store, ranks)
    deadline = time.monotonic() + site.answer
    answers: dict[int, Place] = {}
    while True:
        left: dict[int, Place] = {}  # who left with an error of its own, before this call
        for rank in (r for r in ranks if r not in answers and keys.check([f"place/{r}"])):
            words = json.loads(keys.get(f"place/{rank}") or "{}")
            call = words.pop("call", None)
            if call is not None:
                (answers if call == number else left)[rank] = Place(**words)
        silent = [rank for rank in ranks if rank not in answers]
        alive = [rank for rank in silent if rank not in known or known[rank].runs() is not False]
        if not alive or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    places = {**left, **answers}
    why = {rank: _why(known.get(rank)) for rank in silent if rank not in left}
    what = error or f"rank {site.rank} begins no collective."
    return hang(site.call, what, site.layout, places, why, coordinates_of(site.layout))


def _why(holder: Holder | None) -> str:
    """What is known of a rank that does not answer."""
    if holder is None:
        return "no answer"
    busy = ", outside a guard with a timeout or too busy to answer" if holder.runs() else ""
    return f"{holder}; {holder.state()}{busy}"


def _alone(site: Site, error: str, mine: Place, gone: Sequence[int]) -> CollectiveError:
    """The report of a rank that reaches nobody."""
    silent = dict.fromkeys(gone, "it hosted the store, which does not answer")
    return hang(
        site.call, error, site.layout, {mine.rank: mine}, silent, coordinates_of(site.layout)
    )
