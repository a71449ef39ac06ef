"""After a collective has failed, every rank says through the store where it is.

The first to fail calls; whoever is in a guard answers, those that hang included, whose watching
thread answers for them. The caller writes the report once all have answered or a few seconds have
passed, and all raise it. A mesh has one report: what fails after it fails because of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from ..launch.store import lost
from ..launch.verdict import as_words, from_words
from .agree import placed

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
    """

    call: Call
    layout: Layout
    record: Joined
    groups: Mapping[Axes, dist.ProcessGroup]
    number: int

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


def answer(keys: dist.Store, mine: Place) -> None:
    """Say where this rank is. One store operation."""
    keys.set(f"place/{mine.rank}", json.dumps(asdict(mine)))


def called(keys: dist.Store) -> bool:
    """Whether a rank has called the roll. One store operation."""
    return bool(keys.check(["alarm"]))


def report(site: Site, error: str, mine: Place) -> MeshkitError:
    """Call the roll, or answer it; the error that all ranks raise.

    Collective over the ranks that are there; waits ``site.answer`` seconds for the others, and
    twice that where the one who called is gone. Where the store has gone too, this rank says what
    it knows itself.

    Args:
        site: the mesh.
        error: what failed, in a line.
        mine: where this rank is.
    """
    keys = site.keys
    if keys is None:
        return _alone(site, error, mine, ())
    try:
        within(ANSWER, lambda: answer(keys, mine))
        limit = 2 * site.answer + ANSWER
        return from_words(within(limit, lambda: _report(site, keys, error, mine)))
    except (RuntimeError, OverdueError):
        return _alone(site, error, mine, lost(site.call, site.record.world).missing_ranks)


def _report(site: Site, keys: dist.Store, error: str, mine: Place) -> str:
    """The words of the report, by whoever called the roll, or by this rank where that is gone."""
    caller = keys.compare_set("alarm", "", str(mine.rank)).decode()
    if caller != str(mine.rank):
        try:
            keys.wait(["report"], timedelta(seconds=site.answer + 1))
        except dist.DistNetworkError:
            raise
        except (dist.DistStoreError, RuntimeError):  # the time is over; FileStore says RuntimeError
            pass
    if not keys.check(["report"]):
        keys.compare_set("report", "", as_words(_gathered(site, keys, error)))
    return str(keys.get("report").decode())


def _gathered(site: Site, keys: dist.Store, error: str) -> CollectiveError:
    """The report on all ranks, those that do not answer included."""
    ranks = sorted(int(rank) for rank in site.layout.grid.flat)
    known = {} if site.record.store is None else holders(site.record.store, ranks)
    places: dict[int, Place] = {}
    deadline = time.monotonic() + site.answer
    while True:
        for rank in (r for r in ranks if r not in places and keys.check([f"place/{r}"])):
            places[rank] = Place(**json.loads(keys.get(f"place/{rank}")))
        silent = [rank for rank in ranks if rank not in places]
        alive = [rank for rank in silent if rank not in known or known[rank].runs() is not False]
        if not alive or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    why = {r: _why(known.get(r)) for r in silent}
    return hang(site.call, error, site.layout, places, why, placed(site.layout))


def _why(holder: Holder | None) -> str:
    """What is known of a rank that does not answer."""
    if holder is None:
        return "no answer"
    busy = ", outside a guard with a timeout or too busy to answer" if holder.runs() else ""
    return f"{holder}; {holder.state()}{busy}"


def _alone(site: Site, error: str, mine: Place, gone: Sequence[int]) -> CollectiveError:
    """The report of a rank that reaches nobody."""
    silent = dict.fromkeys(gone, "it hosted the store, which does not answer")
    return hang(site.call, error, site.layout, {mine.rank: mine}, silent, placed(site.layout))
