"""A sweep over operations, groups and sizes, each measured alone and in company.

::

    check         every group once, at the same time; every element is compared
    alone         group after group, of many a sample; the others wait at the gate
    concurrent    every group at once, as in training
    overlap       every group of both axes at once

The gate is one gather of a few bytes over the whole mesh. It starts ranks together, and it is where
they hear of a Ctrl-C. Groups that come through early leave the wires to those that are still at it:
the spread over groups shows how far apart they are.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..core.bandwidth import ITEM
from ..core.errors import CollectiveError, MeshkitError, told
from ..core.measured import modes
from ..core.measurement import ALONE, Case, Measurement, measurement, sizes_of
from ..core.plan import Axes
from ..core.report.verification import Seconds
from ..core.turns import sampled
from ..live.groups.all_gather import all_gather
from ..live.mesh import Mesh
from .calls import Prepared, checkable, lacking, prepared, run
from .graph import REPLAYS, captured, seconds_by_graph
from .measure import seconds, settle

LEAST = 2  # calls that are always counted
SHARE = 0.25  # of the deadline that one measurement may take, so that those at the gate can wait
Calls = tuple[int, int]  # to warm up, and counted
FULL = re.compile(r"can't allocate memory|out of memory", re.I)
NEITHER = -1.0  # in place of a number of wrong elements: the backend has no such operation


class LeftError(Exception):
    """Every rank leaves the sweep at this gate: one of them was asked to stop."""


@dataclass(frozen=True)
class Terms:
    """How to measure.

    Attributes:
        warm_up: calls before those that count.
        iters: calls that count. Of either fewer, where they would take more than a quarter of
            ``timeout``; but no less than two count.
        timeout: seconds that a collective may take.
        alone: how many groups of a target are measured alone at the most; None means all.
        graph: whether calls are captured in a CUDA graph; ``iters`` are then those of one replay.
    """

    warm_up: int
    iters: int
    timeout: float
    alone: int | None = None
    graph: bool = False

    @property
    def counted(self) -> int | None:
        """How many times count where calls are in a graph; None where each call does."""
        return REPLAYS if self.graph else None

    @property
    def seconds(self) -> Callable[[Callable[[], None], int, int, torch.device], list[float]]:
        """What takes the time of a call: ``measure.seconds``, or its like with a graph."""
        return seconds_by_graph if self.graph else seconds

    @property
    def most(self) -> int:
        """How many calls a pass makes where there is time for all, those to warm up among them."""
        return self.made(self.warm_up, max(LEAST, self.iters))

    @property
    def least(self) -> int:
        """How many it makes, however slow they are: each may take a whole deadline."""
        return self.made(0, LEAST)

    @property
    def checks(self) -> int:
        """How many the check makes: one, and with a graph one before it and one replay."""
        return 3 if self.graph else 1

    def made(self, warm_up: int, counted: int) -> int:
        """How many calls of a pass run; what a graph holds runs once in each of its replays."""
        return max(warm_up, 1) + counted * (REPLAYS + 1) if self.graph else warm_up + counted

    def calls(self, slowest: float) -> Calls:
        """How many calls there is time for, to warm up and counted.

        Args:
            slowest: seconds of one.
        """
        room = int(SHARE * self.timeout / max(slowest, 1e-9))
        counted = min(self.iters, room // (REPLAYS + 1) if self.graph else room)
        return min(self.warm_up, room), max(LEAST, counted)


@dataclass(frozen=True)
class Sweep:
    """A mesh to be measured.

    Attributes:
        mesh: with groups for all that is measured.
        device: where tensors lie.
        hosts: rank to its machine.
        terms: how.
        stop: whether somebody has asked to stop.
        told: is given each case before it is measured.
    """

    mesh: Mesh
    device: torch.device
    hosts: Mapping[int, str]
    terms: Terms
    stop: Callable[[], bool]
    told: Callable[[Case], None]

    def run(self, cases: Sequence[Case]) -> list[Measurement]:
        """Measure all cases, or those before a Ctrl-C. Collective over the mesh.

        Every rank gets the same. Costs, a case, up to five small collectives over the mesh, and
        one more a group that is measured alone.

        Raises:
            CollectiveError: where a collective failed or did not come through in time, with who is
                behind, and what was measured.
            MeshkitError: where the arrays do not fit into memory.
        """
        found: list[Measurement] = []
        at = ""
        try:
            with self.mesh.guard(timeout=self.terms.timeout), suppress(LeftError):
                for case in cases:
                    self.told(case)
                    at = str(case)
                    with _memory(case, self.mesh.rank):
                        self._measure(case, found)
        except CollectiveError as error:
            head, mark, fix = str(error).rpartition("\n  Fix: ")
            text = f"{head}\n  It was one of the collectives that measure {at}.{mark}{fix}"
            facts = {"missing_ranks": error.missing_ranks, "behind": error.behind}
            raise CollectiveError(text, **facts) from error.__cause__
        return found

    def _measure(self, case: Case, found: list[Measurement]) -> None:
        """Check a case, then measure it in every way."""
        layout = self.mesh.layout
        wrong, slowest, lacks = self._check(case)
        if lacks is not None:
            sizes, ways = sizes_of(layout, case.target), modes(layout, case.target)
            found.extend(Measurement(case, mode, sizes, lacks=lacks) for mode in ways)
            return
        calls = self.terms.calls(slowest)
        ready = self._prepared(prepared, case)
        for mode in modes(layout, case.target):
            if mode == ALONE:
                took = self._alone(case.target.span, ready, calls)
            else:
                took = self._at_once(ready, calls)
            one = measurement(layout, case, mode, self._told_all(took), wrong)
            found.append(replace(one, per_replay=calls[1] if self.terms.graph else None))

    def _check(self, case: Case) -> tuple[int, float, str | None]:
        """Wrong elements on all ranks, seconds of the slowest, what the backend lacks."""
        self._gate()
        ready, lacks = self._prepared(checkable, case), None
        began = time.perf_counter()
        try:
            run(ready)
            settle(self.device)
        except RuntimeError as error:
            lacks = lacking(error)
        took = time.perf_counter() - began
        wrong = NEITHER if lacks else self._wrong(ready)
        rows = self._told_all([wrong, took])
        return int(rows[:, 0].sum()), float(rows[:, 1].max()), lacks

    def _wrong(self, ready: Sequence[Prepared]) -> int:
        """Elements that this rank got wrong, in a replay too where calls are to be in a graph."""
        found = sum(call.wrong(self.mesh.rank) for call in ready)
        if self.terms.graph:
            graph = captured(partial(run, ready), 0, 1, self.device)
            for call in ready:
                call.renew()
            graph.replay()
            settle(self.device)
            found += sum(call.wrong(self.mesh.rank) for call in ready)
        return found

    def _prepared(self, make: Callable[..., Prepared], case: Case) -> list[Prepared]:
        items, mesh = case.bytes // ITEM, self.mesh
        return [
            make(case.op, mesh.peers(*axes).tolist(), items, mesh.group(*axes), self.device)
            for axes in case.target.groups
        ]

    def _at_once(self, ready: Sequence[Prepared], calls: Calls) -> list[float]:
        self._gate()
        return self.terms.seconds(partial(run, ready), *calls, self.device)

    def _alone(self, axes: Axes, ready: Sequence[Prepared], calls: Calls) -> list[float]:
        """The same, while all other groups wait; nan on ranks whose group has no turn."""
        rows = self.mesh.layout.groups(*axes)
        took = [math.nan] * (self.terms.counted or calls[1])
        for group in sampled(rows, self.hosts, self.terms.alone):
            self._gate()
            if self.mesh.rank in rows[group]:
                took = self.terms.seconds(partial(run, ready), *calls, self.device)
        return took

    def _gate(self) -> None:
        """Wait for all ranks.

        Raises:
            LeftError: on every rank, where one of them was asked to stop.
        """
        settle(self.device)
        if self._told_all([float(self.stop())]).any():
            raise LeftError

    def _told_all(self, values: Sequence[float]) -> Seconds:
        """Return some numbers of every rank, (num_ranks, numbers), by position. Collective."""
        own = torch.tensor(values, dtype=torch.float64, device=self.device)
        return torch.stack(all_gather(own, self.mesh.group())).cpu().numpy()


@contextmanager
def _memory(case: Case, rank: int) -> Iterator[None]:
    """Say what did not fit into memory, and what asks for less.

    Raises:
        MeshkitError: in place of the allocator's own error.
    """
    try:
        yield
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        if isinstance(error, MeshkitError) or not FULL.search(line):
            raise
        what = f"{case} on rank {rank}: the arrays do not fit into memory."
        raise MeshkitError(told(what, line, fix=f"--sizes {max(case.bytes // 4, 1)}.")) from error
