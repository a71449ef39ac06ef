"""A sweep over operations, groups and sizes, each measured alone and under contention.

::

    check         every group once, at the same time; every element is compared
    alone         group after group, a sample of many; the others wait at the barrier
    concurrent    every group at once, as in training
    overlap       every group of both axes at once

The barrier is one all_gather of a few bytes over the whole mesh. It starts ranks together and
spreads a Ctrl-C. A group that leaves it early does not disturb those that are still in it: the
spread over groups shows how far apart they are.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import torch

from ..core.arrays import Seconds
from ..core.errors import CollectiveError, MeshkitError
from ..core.grid.group_plan import Axes
from ..live.groups import all_gather
from ..live.mesh import Mesh
from .collectives import PreparedCall, checked_call, run_calls, timed_call, unsupported_reason
from .results.collectives import ITEM_BYTES
from .results.measurement import Case, Measurement, group_sizes, summarize
from .results.run import MIN_CALLS, modes
from .results.targets import ALONE, sample_groups
from .stopwatch import synchronize, time_calls

SHARE = 0.25  # of the timeout for one measurement, so that ranks at the barrier can wait for it
OUT_OF_MEMORY = re.compile(r"can't allocate memory|out of memory", re.I)
UNSUPPORTED = -1.0  # in place of a number of wrong elements
NumCalls = tuple[int, int]  # warm-up calls, timed calls


class StopSweep(Exception):
    """Every rank leaves the sweep at this barrier, because one of them was interrupted."""


@dataclass(frozen=True)
class SweepOptions:
    """How to measure."""

    warm_up: int  # calls before the timed ones
    iters: int  # timed calls, 2 or more; fewer if they would exceed ``SHARE`` of ``timeout``
    timeout: float  # seconds that a collective may take
    max_alone: int | None = None  # groups of a target that are measured alone at most; None: all

    def num_calls(self, slowest: float) -> NumCalls:
        """Return the warm-up and timed calls that fit into a quarter of the timeout."""
        limit = int(SHARE * self.timeout / max(slowest, 1e-9))
        return min(self.warm_up, limit), max(MIN_CALLS, min(self.iters, limit))


@dataclass(frozen=True)
class Sweep:
    """A mesh to be measured."""

    mesh: Mesh  # with groups for all targets
    device: torch.device
    hosts: Mapping[int, str]  # rank to its host name
    options: SweepOptions
    stop: Callable[[], bool]  # whether this rank was interrupted
    on_case: Callable[[Case], None]  # called with each case before it is measured

    def run(self, cases: Sequence[Case]) -> list[Measurement]:
        """Measure all cases, or those before a Ctrl-C; the same on every rank. Collective."""
        measurements: list[Measurement] = []
        current = ""
        try:
            with self.mesh.guard(timeout=self.options.timeout), suppress(StopSweep):
                for case in cases:
                    self.on_case(case)
                    current = str(case)
                    with _memory_errors(case, self.mesh.rank):
                        self._measure(case, measurements)
        except CollectiveError as error:
            error.evidence += (f"It was one of the collectives that measure {current}.",)
            raise
        return measurements

    def _measure(self, case: Case, measurements: list[Measurement]) -> None:
        """Check a case, then append its measurement in every mode."""
        layout = self.mesh.layout
        wrong, slowest, unsupported = self._check(case)
        if unsupported is not None:
            sizes = group_sizes(layout, case.target)
            measurements.extend(
                Measurement(case, mode, sizes, unsupported=unsupported)
                for mode in modes(layout, case.target)
            )
            return
        num_calls = self.options.num_calls(slowest)
        prepared = self._prepare(timed_call, case)
        for mode in modes(layout, case.target):
            if mode == ALONE:
                seconds = self._time_alone(case.target.span, prepared, num_calls)
            else:
                seconds = self._time(prepared, num_calls)
            measurements.append(summarize(layout, case, mode, self._all_gather(seconds), wrong))

    def _check(self, case: Case) -> tuple[int, float, str | None]:
        """Return wrong elements of all ranks, seconds of the slowest, and why it is unsupported."""
        self._barrier()
        prepared, unsupported = self._prepare(checked_call, case), None
        began = time.perf_counter()
        try:
            run_calls(prepared)
            synchronize(self.device)
        except RuntimeError as error:
            unsupported = unsupported_reason(error)
        seconds = time.perf_counter() - began
        rank = self.mesh.rank
        wrong = UNSUPPORTED if unsupported else sum(call.num_wrong(rank) for call in prepared)
        rows = self._all_gather([wrong, seconds])  # (num_ranks, 2)
        return int(rows[:, 0].sum()), float(rows[:, 1].max()), unsupported

    def _prepare(self, make: Callable[..., PreparedCall], case: Case) -> list[PreparedCall]:
        items, mesh = case.bytes // ITEM_BYTES, self.mesh
        return [
            make(case.op, mesh.peers(*axes).tolist(), items, mesh.group(*axes), self.device)
            for axes in case.target.groups
        ]

    def _time(self, prepared: Sequence[PreparedCall], num_calls: NumCalls) -> list[float]:
        self._barrier()
        return time_calls(partial(run_calls, prepared), *num_calls, self.device)

    def _time_alone(
        self, axes: Axes, prepared: Sequence[PreparedCall], num_calls: NumCalls
    ) -> list[float]:
        """Time a sample of the groups, one after the other; nan on the ranks of all others."""
        groups = self.mesh.layout.groups(*axes)  # (num_groups, group_size)
        seconds = [math.nan] * num_calls[1]
        for group in sample_groups(groups, self.hosts, self.options.max_alone):
            self._barrier()
            if self.mesh.rank in groups[group]:
                seconds = time_calls(partial(run_calls, prepared), *num_calls, self.device)
        return seconds

    def _barrier(self) -> None:
        """Wait for all ranks."""
        synchronize(self.device)
        if self._all_gather([float(self.stop())]).any():
            raise StopSweep

    def _all_gather(self, values: Sequence[float]) -> Seconds:
        """Return the values of every rank, (num_ranks, values), by position. Collective."""
        own = torch.tensor(values, dtype=torch.float64, device=self.device)
        return torch.stack(all_gather(own, self.mesh.group())).cpu().numpy()


@contextmanager
def _memory_errors(case: Case, rank: int) -> Iterator[None]:
    """Report arrays that do not fit into memory, with a smaller size."""
    try:
        yield
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        if isinstance(error, MeshkitError) or not OUT_OF_MEMORY.search(line):
            raise
        summary = f"{case} on rank {rank}: the arrays do not fit into memory."
        fix = f"--sizes {max(case.bytes // 4, 1)}."
        raise MeshkitError(summary, line, fix=fix) from error
