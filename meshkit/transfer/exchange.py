"""Move one state between two jobs: all ranks arrive, connect, exchange messages, and vote.

The tensors change after all ranks of both sides have voted, and the ranks of each side once more
among themselves, so that they change on all of them or on none. Messages travel on a gloo group
that torch does not know, also those with which ranks of the target gather copies: a failure breaks
no group of a mesh. A failed exchange closes the group, and the next one connects anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import CollectiveError, MeshkitError, RankTimeoutError
from ..launch.creation import Creation, GroupStore, commit
from ..launch.judges import (
    STATES,
    Arrivals,
    Decision,
    Sighting,
    all_done,
    disagreement,
    missing_error,
)
from ..launch.memory import check_equal_memory
from ..launch.of_one_process import OfOneProcess
from ..launch.process import current_process, sight
from ..launch.round import Round
from ..launch.store import Store
from ..launch.times import TIMES, Deadline
from ..launch.torch_internals import close_gloo_group, create_gloo_group
from ..redistribute.mover import Leg, MeshPair, Mover, gather_by_messages, naming
from ..text import format_range
from .bridge_plan import BridgePlan
from .state_plan import StatePlan

FAILED = "a rank could not connect the two sides."
INTACT = "The weights of the last version are intact on each rank."

Works = Sequence[tuple[dist.Work, list[int]]]  # each with its ranks


@dataclass(eq=False)
class Connection(OfOneProcess):
    """The connections between one start of each side, if there are any."""

    name: str = ""  # of the exchange in which they were made
    starts: tuple[str, str] = ("", "")  # the numbers of this side and of the other one
    group: Any = None  # ProcessGroupGloo, whose sends and receives have no types
    store: GroupStore | None = None  # the one of the group, which must live as long

    def close(self) -> None:
        """Close the connections, so that no rank of either side waits for this one. Local."""
        if self.group is not None:
            close_gloo_group(self.group)
            self.name, self.group, self.store = "", None, None


@dataclass(frozen=True, eq=False)
class BridgeChannel(OfOneProcess):
    """Messages on a gloo group over the ranks of both sides, from the memory of the host."""

    group: Any
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
                with naming(self.plan.describe(peer)):
                    works.append((operation([tensors[peer]], peer, 0), [peer]))
        return works

    def wait(self, works: Works) -> None:
        """Wait for messages, and name the rank of one that fails."""
        for work, (peer,) in works:
            with naming(self.plan.describe(peer)):
                work.wait(self.limit)

    def gather(self, leg: Leg, own: Tensor, blocks: Tensor) -> Callable[[], object]:
        """Start to gather the blocks of all ranks that want copies; return how to wait for it."""
        return gather_by_messages(self, leg, own, blocks)

    def meet(self) -> None:
        """Wait until all ranks of both sides have sent and received all."""
        options = dist.BarrierOptions()
        options.timeout = self.limit
        self.group.barrier(options).wait()


@dataclass(frozen=True, eq=False)
class Exchange(OfOneProcess):
    """The exchanges of a transfer between one start of each side, as one rank runs them."""

    own: MeshPair  # the ranks of this side alone
    store: Store  # the part of the transfer
    plan: BridgePlan
    parts: StatePlan
    rank: int  # among the ranks of both sides
    starts: tuple[str, str]  # the numbers of this side and of the other one
    connection: Connection

    def move(
        self,
        call: str,
        version: int,
        state: list[Tensor | None],
        taking: Round | None,
        *,
        fills: bool,
        limit: float,
    ) -> None:
        """Move the tensors of a state, or fill them. Collective over both sides.

        Args:
            call: the call, for errors.
            version: the number of this exchange.
            state: the tensors of this rank.
            taking: the round in which the ranks of this side know that the version has arrived.
            fills: whether this side receives.
            limit: the seconds that are left for the ranks of the other side to come, 4 at least.
        """
        take = partial(self._take, taking, call, version)
        part = self.store.part(f"exchanges/{version}")
        wait = timedelta(seconds=min(max(limit, TIMES.store), TIMES.newcomer))
        start = self._start(part, wait)
        channel = BridgeChannel(self._connect(part, start, wait), self._limit, self.plan)
        parts = self.parts
        mover = Mover(self.rank, self.own.device, parts.legs, parts.batches, call, channel)
        places: list[Tensor | None] = []
        end = self._round(part, "end", start)

        def run() -> None:
            for tensor in state:
                places.append(torch.empty_like(tensor) if fills and tensor is not None else None)
            views = parts.view(places)
            held = [None] * len(state) if fills else parts.arrange(state)
            for _ in mover.start(held, views):
                pass
            self.own.synchronize()
            if fills:
                check_equal_memory(state, places, parts.names)
            channel.meet()

        with end:
            failure = self._try(run)
            if failure is not None:
                announced = Decision(self._failed(version, failure, start))
                decision, end.is_over = end.try_say(announced) or announced, True
            else:
                decision = self._vote(end, take)
        if decision.error is not None:
            raise decision.error from failure
        take()
        for place, tensor in zip(places, state, strict=True):
            if place is not None and tensor is not None:
                tensor.copy_(place)
        if not self.rank:
            self._forget(version)

    def _try(self, work: Callable[[], object]) -> Exception | None:
        """Return the error of work, without the frames that hold tensors and connections."""
        try:
            work()
        except Exception as error:
            return error.with_traceback(None)
        return None

    def _start(self, part: Store, wait: timedelta) -> Round:
        """Wait until all ranks of both sides are here, and know whether they are connected."""
        connection, round = self.connection, self._round(part, "start", None)
        if connection.starts != self.starts:
            connection.close()
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
            round.arrive({"connection": connection.name}, same=True, deadline=deadline)
            if round.decide(judge, deadline).check(self.rank).value:
                connection.close()
        return round

    def _connect(self, part: Store, start: Round, wait: timedelta) -> Any:  # noqa: ANN401
        """Return the group of both sides, made anew if a side has none. Collective over both."""
        connection = self.connection
        if connection.group is None:
            connection.store = store = GroupStore(part.part("group"), wait)

            def create(creation: Creation) -> dist.ProcessGroupGloo:
                return create_gloo_group(store, self.rank, self.plan.num_ranks, creation.attempt)

            round, describe = self._round(part, "connected", start), self.plan.describe
            connection.group = commit(
                round,
                "the exchange",
                wait,
                create,
                close_gloo_group,
                connects=True,
                describe=describe,
            )
            connection.name, connection.starts = part.path, self.starts
            part.try_within(TIMES.store, partial(store.delete, store.take()))
        return connection.group

    def _explain(self, error: MeshkitError | None) -> Decision:
        """Return the decision with the sides of the ranks, which the error numbers together."""
        if error is not None:
            size, first = self.plan.num_ranks, self.plan.trainer_ranks
            trainer, sampler = format_range(0, first - 1), format_range(first, size - 1)
            line = f"The trainer has ranks {trainer} here, and the sampler {sampler}."
            error.evidence += (line, INTACT)
        return Decision(error)

    def _vote(self, end: Round, take: Callable[[RankTimeoutError], None]) -> Decision:
        """Return whether all ranks of both sides have sent and received all.

        They have met before, so none is late. If the store is lost meanwhile, other ranks of this
        side may have read that the version has arrived: then they must not take it.
        """
        describe = self.plan.describe
        done = all_done(end.summary, seconds=TIMES.store, describe=describe)

        def judge(seen: Arrivals) -> Decision | None:
            decision = done(seen)
            return None if decision is None else self._explain(decision.error)

        try:
            end.arrive({})
            return end.decide(judge, Deadline.after(TIMES.store))
        except RankTimeoutError as lost:
            take(lost)
            raise

    def _take(
        self, taking: Round | None, call: str, version: int, lost: RankTimeoutError | None = None
    ) -> None:
        """Return once all ranks of this side know that a version has arrived. Collective."""

        def check() -> None:
            if lost is not None:
                raise lost

        limit = timedelta(seconds=3 * TIMES.store)
        self.own.confirm(call, {"version": version}, check, limit, taking)

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

    def _forget(self, version: int) -> None:
        """Delete what the exchanges before a version have left: all ranks have left them. Local.

        The failed ones before the last one are still there.
        """
        for earlier in range(version - 1, 0, -1):
            part = self.store.part(f"exchanges/{earlier}")
            if not self._round(part, "start", None).forget():
                return
            for name in ("connected", "end"):
                self._round(part, name, None).forget()

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
