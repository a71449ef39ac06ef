"""Move one state between two jobs: all ranks arrive, connect, exchange messages, vote and take.

The tensors change after all ranks of both sides have voted, and the ranks of the target once more
among themselves, so that they change on all of them or on none. Messages travel on a gloo group
that torch does not know. A failed exchange closes it, and the next one connects anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.bridge import SIDES, BridgePlan
from ...core.errors import CollectiveError, MeshkitError
from ...core.judges import (
    STATES,
    Arrivals,
    Decision,
    Sighting,
    all_done,
    disagreement,
    missing_error,
)
from ...core.text import format_range
from ...launch.creation import Creation, GroupStore, commit
from ...launch.job import require_job
from ...launch.meeting import Side
from ...launch.process import current_process, sight
from ...launch.round import Round
from ...launch.store import Store
from ...launch.times import TIMES, Deadline
from ...launch.torch_internals import close_gloo_group, create_gloo_group
from .mover import MeshPair, Mover
from .state_plan import StatePlan

FAILED = "a rank could not connect the two sides."
INTACT = "The weights of the last version are intact on each rank."


class Link(NamedTuple):
    """The connections between one start of each side."""

    name: str  # of the exchange in which they were made
    starts: tuple[int, int]  # the numbers of this side and of the other one
    group: dist.ProcessGroupGloo
    store: GroupStore  # the one of the group, which must live as long


@dataclass(frozen=True, eq=False)
class BridgeChannel:
    """Messages on a gloo group over the ranks of both sides, from the memory of the host."""

    group: Any  # ProcessGroupGloo, whose sends and receives have no types
    limit: timedelta
    plan: BridgePlan

    @property
    def device(self) -> torch.device:
        """The memory of the host: gloo sends no other."""
        return torch.device("cpu")

    def start(
        self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor]
    ) -> list[tuple[dist.Work, list[int]]]:
        """Start the messages to and from other ranks; return the works, each with its ranks."""
        works = []
        for operation, tensors in ((self.group.send, sent), (self.group.recv, received)):
            for peer in sorted(tensors):
                with self._naming(peer):
                    works.append((operation([tensors[peer]], peer, 0), [peer]))
        return works

    def wait(self, works: Sequence[tuple[dist.Work, list[int]]]) -> None:
        """Wait for messages, and name the rank of one that fails."""
        for work, (peer,) in works:
            with self._naming(peer):
                work.wait(self.limit)

    @contextmanager
    def _naming(self, peer: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            line = f"{error} The message was to or from {self.plan.describe(peer)}."
            raise RuntimeError(line) from None


@dataclass(eq=False)
class Connection:
    """The link of one side of a bridge, if there is one."""

    link: Link | None = None

    def close(self) -> None:
        """Close the link, so that no rank of either side waits for this one. Local."""
        if self.link is not None:
            close_gloo_group(self.link.group)
            self.link = None


@dataclass(frozen=True, eq=False)
class Exchange:
    """The exchanges of a transfer between one start of each side, as one rank runs them."""

    own: MeshPair  # the ranks of this side alone
    side: Side
    store: Store  # the part of the transfer
    plan: BridgePlan
    parts: StatePlan
    rank: int  # among the ranks of both sides
    starts: tuple[int, int]  # the numbers of this side and of the other one
    is_target: bool
    connection: Connection

    def move(self, version: int, tensors: list[Tensor | None], limit: timedelta) -> None:
        """Move the tensors, or fill them. Collective over both sides.

        ``limit``: how long this side wants to wait for the ranks of the other one.
        """
        plan, own = self.parts, self.own
        part = self.store.part(f"exchanges/{version}")
        longest = min(require_job().arrival_timeout, timedelta(seconds=TIMES.newcomer))
        wait = min(longest, max(limit, timedelta(seconds=TIMES.store)))
        start = self._start(part, wait)
        channel = BridgeChannel(self._connect(part, start, wait), self._limit, self.plan)
        mover = Mover(self.rank, own.device, plan.legs, plan.batches, "sync.pull", channel)
        places: list[Tensor | None] = [None] * len(tensors)
        if self.is_target:
            places = [None if tensor is None else torch.empty_like(tensor) for tensor in tensors]
        views = plan.view(places)
        end = self._round(part, "end", start)
        with end:
            failure: Exception | None = None
            try:
                held = plan.arrange(tensors) if not self.is_target else [None] * len(tensors)
                mover.exchange(held, views)
                own.synchronize()
            except Exception as error:
                failure, announced = error, Decision(self._failed(version, error, start))
                decision = end.try_say(announced) or announced
            else:
                decision = self._vote(end)
        if decision.error is not None:
            # the frames of torch's error hold the new tensors and the connections
            raise decision.error from (failure and failure.with_traceback(None))
        if self.is_target:
            self._take(version, mover, views, places, tensors)
        if self.side.name == SIDES[0] and self.side.rank == 0:
            self._forget(version - 1)

    def _start(self, part: Store, wait: timedelta) -> Round:
        """Wait until all ranks of both sides are here, and know whether they are connected."""
        link, round = self.connection.link, self._round(part, "start", None)
        if link is not None and link.starts != self.starts:
            self.connection.close()
            link = None
        deadline = Deadline.after(wait)

        def judge(seen: Arrivals) -> Decision | None:
            if not seen.missing:
                return Decision(value=disagreement("", seen) is not None)
            if not seen.expired:
                return None
            stage, seconds = "the exchange of ", wait.total_seconds()
            describe = self.plan.describe
            return self._explain(missing_error(seen, seconds, stage=stage, describe=describe))

        with round:
            facts = {"link": "" if link is None else link.name}
            round.arrive(facts, same=True, deadline=deadline)
            if round.decide(judge, deadline).check(self.rank).value:
                self.connection.close()
        return round

    def _connect(self, part: Store, start: Round, wait: timedelta) -> dist.ProcessGroupGloo:
        """Return the group of both sides, made anew if a side has none. Collective over both."""
        if self.connection.link is not None:
            return self.connection.link.group
        size = self.plan.num_ranks
        store = GroupStore(part.watcher().part("group").raw)

        def create(creation: Creation) -> dist.ProcessGroupGloo:
            return create_gloo_group(store, self.rank, size, creation.attempt)

        round = self._round(part, "connected", start)
        describe, undo = self.plan.describe, close_gloo_group
        group: dist.ProcessGroupGloo = commit(
            round, "the exchange", wait, create, undo, connects=True, describe=describe
        )
        self.connection.link = Link(part.path, self.starts, group, store)
        return group

    def _explain(self, error: MeshkitError | None) -> Decision:
        """Return the decision with the sides of the ranks, which the error numbers together."""
        if error is not None:
            size, first = self.plan.num_ranks, self.plan.trainer_ranks
            trainer, sampler = format_range(0, first - 1), format_range(first, size - 1)
            line = f"The trainer has ranks {trainer} here, and the sampler {sampler}."
            error.evidence += (line, INTACT)
        return Decision(error)

    def _vote(self, end: Round) -> Decision:
        """Return whether all ranks of both sides have sent and received all."""
        limit = self._limit + timedelta(seconds=TIMES.store)
        seconds, describe = limit.total_seconds(), self.plan.describe
        done = all_done(end.summary, seconds=seconds, describe=describe)

        def judge(seen: Arrivals) -> Decision | None:
            decision = done(seen)
            return None if decision is None else self._explain(decision.error)

        end.arrive({})
        return end.decide(judge, Deadline.after(limit))

    def _failed(self, version: int, error: Exception, start: Round) -> CollectiveError:
        """Return the error that all ranks of both sides raise if this one fails."""
        describe, own = self.plan.describe, current_process()
        line = f"version {version} did not arrive."
        evidence = [f"{describe(self.rank)} ({own}): {type(error).__name__}: {error}"]
        seen = start.store.try_within(TIMES.store, start.arrivals)
        for rank, (process, _) in sorted(seen.arrived.items() if seen else ()):
            if (state := sight(process).state).is_certain:
                evidence.append(f"{describe(rank)} ({process}) {STATES[state]}.")
        fix = "look at the logs of these ranks first; the next push and pull connect anew."
        return CollectiveError(line, *evidence, INTACT, fix=fix)

    def _take(
        self,
        version: int,
        mover: Mover,
        views: list[Tensor | None],
        places: list[Tensor | None],
        tensors: list[Tensor | None],
    ) -> None:
        """Fill the tensors of all ranks of this side, or of none. Collective over this side."""
        failure: Exception | None = None
        try:
            mover.gather(views)
            self.own.synchronize()
        except Exception as error:
            failure = error

        def report() -> None:
            if failure is not None:
                raise failure

        facts = {"version": version}
        self.own.confirm("sync.pull", facts, report)
        for place, tensor in zip(places, tensors, strict=True):
            if place is not None and tensor is not None:
                tensor.copy_(place)

    def _forget(self, version: int) -> None:
        """Delete what an earlier exchange has left at the store: all ranks have left it."""
        for name in ("start", "connected", "end"):
            self._round(self.store.part(f"exchanges/{version}"), name, None).forget()

    def _round(self, part: Store, name: str, start: Round | None) -> Round:
        """Return a round of all ranks of both sides."""

        def look(ranks: Sequence[int]) -> dict[int, Sighting]:
            arrived = {} if start is None else start.arrivals().arrived
            return {rank: sight(arrived[rank].process) for rank in ranks if rank in arrived}

        expected = range(self.plan.num_ranks)
        return Round(part, name, self.rank, expected, summary=FAILED, look=look)

    @property
    def _limit(self) -> timedelta:
        """How long a message may take."""
        return self.own.message_timeout()
