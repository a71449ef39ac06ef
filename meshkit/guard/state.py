"""The parts of a mesh that a guard uses, and the status that this rank leaves in the store.

The keys of the guards of a mesh, below ``mesh/ROUND/guard``. ``groups/close_mesh.py`` names them,
and deletes them once all ranks have closed the mesh::

    key               value                                    written by
    calls             the number of roll calls                 the rank that opens one
    opener/N          the rank that opens roll call N          the first rank that fails
    call/N/...        a round: the statuses and the report     all ranks
    call/N/readers    how many ranks have read the report      all ranks
    over/N            roll call N was a false alarm            the rank that opened it
    status/RANK       the status at an error, or at a close    the rank
    exit/RANK         its counts when it left its last guard   the rank
    exits/N           how many ranks have left guard N         all ranks; the last deletes it, or a
                                                               recovery
    own/RANK          its own seconds in its last steps        the rank: sampling.py
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

import torch.distributed as dist

from ..errors import MeshkitError
from ..groups.close_mesh import EXIT, READERS, STATUS
from ..groups.frame_calls import Frames
from ..groups.live_mesh import LiveMesh
from ..groups.registry import Edge, GroupKey
from ..groups.status import CollectiveTracker, CurrentCollective, rank_status, with_calls
from ..launch.disagreement import RankStatus, TracedCall
from ..launch.job import LEFT, Job
from ..launch.judges import Decision
from ..launch.of_one_process import OfOneProcess
from ..launch.round import Round
from ..launch.store import Store, error_from_json
from ..launch.times import TIMES
from ..launch.torch_groups import is_nccl
from ..launch.torch_traces import read_calls
from ..layout.group_plan import Axes, edge_rounds
from ..layout.layout import Layout
from ..text import Ints
from .sampling import StepSampler

MAX_AHEAD = 8  # guards that a rank may have left before another one is lost in the first of them
Calls = Mapping[str, tuple[TracedCall, ...]]  # the last calls by the axes of their group
POLLS_PER_SECOND = 4000  # polls of all ranks, at most; a store serves 85,000 operations/s


@dataclass
class GuardState(OfOneProcess):
    """The memory of one mesh for its guards on this rank: one object for all guards and threads.

    A guard lives for one block, and a mesh has many, one after the other or in several threads.
    The fields outlive a block. Roll calls have numbers from 1.

    Attributes:
        has_left: whether an error of the user's code ended the last guard of this rank. The next
            guard withdraws the status that the rank posted then.
        numbers: counts the guards with a timeout that this rank enters. Equal numbers on two ranks
            mean the same block, so their collectives can be compared.
        exits: the keys that count the ranks which have left the newest guards of this rank, if it
            was not the last one to leave.
        open: the trackers of the guards in which this rank is now, one for each thread or task.
        alarm: the number of the roll call that the watching thread of this rank has opened without
            an error, on a suspicion; 0 without one.
        is_lost: whether the store did not answer when this rank left its last guard, or reported.
        is_aborted: whether this rank has closed the connections of gloo after a report.
        sampler: measures the steps of guards with ``stragglers=True``; None before the first one.
        has_failed: whether a collective has raised on this rank; torch then counts it as completed.
        traced: the collectives begun, and the calls that torch had recorded, when the watching
            thread has last seen this rank wait for half of its limit.
        asked: the last question of a client outside that this rank has answered.
        answered: by number of a roll call, when this rank posted its status there.
        reports: by number of a roll call, the report that this rank has read, as JSON; None after
            a false alarm. A copy, since the process of the store may end first.
    """

    has_left: bool = False
    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    exits: deque[str] = field(default_factory=partial(deque, maxlen=MAX_AHEAD))
    open: list[CollectiveTracker] = field(default_factory=list)
    alarm: int = 0
    is_lost: bool = False
    is_aborted: bool = False
    sampler: StepSampler | None = None
    has_failed: bool = False
    traced: tuple[Mapping[str, int], Calls] | None = None
    asked: str = ""
    answered: dict[int, float] = field(default_factory=dict)
    reports: dict[int, dict[str, Any] | None] = field(default_factory=dict)

    @contextmanager
    def opened(self, tracker: CollectiveTracker, number: int | None) -> Iterator[None]:
        """Note which guards are open at the same time in other threads or tasks. Local."""
        if number is None:
            yield
            return
        self.open.append(tracker)  # before the look: of two that come at once, one sees the other
        around = tracker.around()
        for other in [*self.open]:
            if other not in around:
                other.is_alone = tracker.is_alone = False
        try:
            yield
        finally:
            self.open.remove(tracker)


class GuardedMesh(LiveMesh, Protocol):
    """A mesh with the memory of its guards."""

    _guard_state: GuardState


@dataclass(frozen=True)
class Guard(OfOneProcess):
    """The parts of a mesh that a guard uses."""

    layout: Layout
    job: Job  # the current job
    # axes to this rank's group; the axes are keys of the group plan
    groups: Mapping[Axes, dist.ProcessGroup]
    round_id: int  # id of the agreement round in which the mesh was built
    state: GuardState
    edges: Mapping[str, Mapping[Edge, dist.ProcessGroup]] = field(default_factory=dict)
    # all groups that meshkit has created for the mesh and its views
    created: Mapping[GroupKey, dist.ProcessGroup | None] = field(default_factory=dict)
    parts: list[Guard] = field(default_factory=list)  # guards of other meshes inside this one

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.job.world.rank

    @property
    def store(self) -> Store | None:
        """The part of the store for the guards of this mesh; None if torch exposes no store."""
        store = self.job.store
        return None if store is None else store.part(f"mesh/{self.round_id}/guard")

    def named(self) -> dict[str, dist.ProcessGroup]:
        """Return the groups of this guard, and of those inside it, by their axes as text."""
        taken: dict[str, dist.ProcessGroup] = {}
        for guard in (self, *self.parts):
            groups = [(" ".join(axes), group) for axes, group in guard.groups.items()]
            for axis, edges in [*guard.edges.items()]:  # another thread may request more
                groups += [(edge_name(axis, edge), group) for edge, group in [*edges.items()]]
            for name, group in groups:
                if group not in taken.values() and (name or guard is self):
                    taken[guard.label(name) if name in taken else name] = group
        return taken

    def label(self, name: str) -> str:
        """Return the name of a group of this mesh beside another group of that name."""
        return f"{name} of {self.layout.sizes_text}"

    def rows(self) -> dict[str, Ints]:
        """Return the ranks of the groups of single edges, and of guards inside this one."""
        rows: dict[str, Ints] = {}
        for guard in (self, *self.parts):
            layout = guard.layout
            others = guard.groups if guard is not self else ()
            own = {" ".join(axes): layout.groups(axes) for axes in others}
            for axis in [*guard.edges]:
                for edge in itertools.chain(*edge_rounds(layout.sizes[axis], wrap=True)):
                    own[edge_name(axis, edge)] = layout.groups(axis)[:, edge]
            for name, ranks in own.items():
                rows.setdefault(name, ranks)
                rows.setdefault(guard.label(name), ranks)
        return rows

    def status(
        self,
        tracker: CollectiveTracker | None,
        frames: Frames = (),
        current: CurrentCollective | None = None,
        error: str = "",
    ) -> RankStatus:
        """Return the status of this rank, from the frames of a thread or of an error."""
        groups, own = self.named(), self.job.counts.own
        more = [*self.created.values()]
        status = rank_status(self.rank, groups, frames, current, error, own, more)
        if tracker is None:
            return status
        waited = tracker.progress.waited(status.begun)
        sees_waits = not any(map(is_nccl, groups.values()))
        return replace(status, waited=waited, sees_waits=sees_waits)

    @property
    def poll_interval(self) -> float:
        """Seconds between two polls of a watching thread."""
        return max(TIMES.watch, self.layout.num_ranks / POLLS_PER_SECOND)

    @property
    def answer_time(self) -> float:
        """Seconds in which all ranks can answer."""
        return TIMES.answer + 2 * (self.poll_interval - TIMES.watch)

    def roll_call(self, store: Store, number: int) -> Round:
        """Return a roll call of this mesh."""
        ranks = sorted(int(rank) for rank in self.layout.grid.flat)
        return Round(store, f"call/{number}", self.rank, ranks, look=self.job.look)

    def trace(self, begun: Mapping[str, int]) -> None:
        """Keep the calls that torch has recorded, unless that was done since the last of these."""
        if self.state.traced is None or self.state.traced[0] != begun:
            self.state.traced = begun, read_calls(self.named(), begun)

    def with_calls(self, status: RankStatus) -> RankStatus:
        """Return a status with the last calls over each group, as far as torch records them.

        After a failure those count that were read before it. Cost: that of ``read_calls``.
        """
        begun, traced = self.state.traced or ({}, {})
        if not self.state.has_failed or begun != status.begun:
            traced = read_calls(self.named(), status.begun)
        return with_calls(status, traced, has_failed=self.state.has_failed)

    def answer(self, call: Round, number: int, status: RankStatus) -> None:
        """Leave the status of this rank in a roll call, unless another thread has done so."""
        now = time.monotonic()
        if self.state.answered.setdefault(number, now) is now:
            try:
                call.arrive(self.with_calls(status).to_facts())
            except BaseException:  # the thread goes on, and answers again
                self.state.answered.pop(number, None)
                raise

    def keep(self, call: Round, number: int, decision: Decision) -> None:
        """Keep a report, and post that this rank has read it."""
        if self.state.reports.setdefault(number, decision.value) is decision.value:
            call.store.run(lambda: call.store.add(READERS, 1))

    def post(self, status: RankStatus) -> None:
        """Post the status with which this rank leaves, if a rank could read it. Local."""
        if (store := self.store) is not None:
            text = json.dumps(status.to_facts())

            def work() -> bool:
                store.set(STATUS.format(self.rank), text)
                return True

            self.state.is_lost = not store.try_within(TIMES.host_stays, work)

    def left(self, store: Store, ranks: Sequence[int]) -> dict[int, RankStatus]:
        """Return the status of those ranks that left a guard, closed the mesh, or left the job.

        Cost: two to four store operations per rank.
        """
        statuses = {}
        for rank in ranks:
            facts = store.read(EXIT.format(rank), parse_facts) or {}
            if own := store.read(STATUS.format(rank), parse_facts):
                facts |= {name: value for name, value in own.items() if value}
            elif cast(Store, self.job.store).has(LEFT.format(rank)):
                facts |= {"ended_by": "meshkit.shutdown()"}
            if facts:
                statuses[rank] = RankStatus.from_facts(rank, facts)
        return statuses


def edge_name(axis: str, edge: Edge) -> str:
    """Return the name of the group of a single edge in a report."""
    return f"{axis} edge {edge[0]}>{edge[1]}"


def last_report(state: GuardState) -> MeshkitError | None:
    """Return the last report that this rank has read, if any. Local."""
    known = [report for _, report in sorted(state.reports.items()) if report is not None]
    return error_from_json(known[-1]) if known else None


def parse_facts(text: str) -> dict[str, Any]:
    """Return what a rank has posted; empty if it has withdrawn that."""
    return dict(json.loads(text or "{}").items())
