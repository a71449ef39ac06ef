"""Measure the collectives of a mesh, each target alone and under contention.

::

    check         every group once, at the same time; every element is compared
    alone         group after group, a sample of many; the others wait at the barrier
    concurrent    every group at once, as in training
    overlap       every group of both axes at once

The calls are made in rounds of all targets and sizes, so that a load of some seconds falls on the
calls of all groups. Without a number of calls, rounds are added until ``BUDGET`` is spent, and
sizes for which ``MIN_JUDGED`` rounds do not fit are left out: first the large ones that are too
slow, then those between the smallest and the largest. Every exchange carries the seconds since the
start, and their maximum decides: all ranks decide alike.

A round by time is as long as ``ROUNDS`` of them allow: a rank whose core is busy runs freely for
some milliseconds, then starves, so only a round of several turns of the scheduler shows it. After
``BUDGET`` the targets that are doubtful get more rounds.

The barrier is one all_gather of a few bytes over the whole mesh. A group that leaves it early does
not disturb those that are still in it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from ..errors import CollectiveError, MeshkitError
from ..groups.groups import all_gather
from ..groups.hosts import gather_hosts
from ..groups.status import is_collective_error
from ..launch.init import init
from ..launch.job import require_job
from ..launch.log import Progress, show_progress
from ..layout.group_plan import Axes
from ..layout.layout import Layout
from ..mesh.build_mesh import build_mesh
from ..mesh.mesh import Mesh
from ..text import Seconds, group_by
from .calls import PreparedCall, prepare_call, run_calls, synchronize, time_calls
from .compute import measure_beside
from .results import (
    ALONE,
    ITEM_BYTES,
    MIN_CALLS,
    OPERATIONS,
    BenchmarkRun,
    Beside,
    Case,
    FirstCall,
    Measurement,
    Target,
    modes,
    plan_cases,
    rounds_by_group,
    sample_groups,
    slowest_of_groups,
    split_calls,
    summarize_target,
    total_passes,
)
from .slow import MIN_JUDGED, is_doubtful

BUDGET = 10.0  # seconds of a run without a number of calls
LONGEST = 14.0  # seconds of such a run until it has ``MIN_JUDGED`` rounds
AGAIN = 7.0  # seconds of more rounds of doubtful targets at most, after those of such a run
ALONE_EACH = 3  # rounds of such a run, of which one measures groups alone
ROUNDS = 30  # of such a run, for which the length of a pass leaves time
LEAST_SLICE, MOST_SLICE = 0.01, 0.05  # seconds of one pass of such a run
MAX_CALLS = 100  # in one pass of such a run
SHARE = 0.25  # of the timeout for one measurement
DISAGREEMENT = "ranks disagree about what to measure; nothing was measured."

NumCalls = tuple[int, int]  # warm-up calls, timed calls


def grow_seconds(seconds: Mapping[int, float], size: int) -> float:
    """Return the seconds of a size on the line through the two sizes before; 0 if unknown."""
    if len(seconds) < 2:
        return 0.0
    (less, shorter), (more, longer) = [*seconds.items()][-2:]
    return longer + max(longer - shorter, 0.0) * (size - more) / (more - less)


def seconds_of_pass(left: float, number: int, passes: float) -> float:
    """Return the seconds of a pass of a run by time.

    Args:
        left: seconds of the run that are left.
        number: number of the round, from 0.
        passes: passes of a round.
    """
    rounds = max(ROUNDS - number, 1)
    return min(max(left / (rounds * passes), LEAST_SLICE), MOST_SLICE)


@dataclass(frozen=True)
class SweepOptions:
    """How to measure."""

    warm_up: int  # calls before the timed ones of the first round; later rounds make one at most
    iters: int | None  # timed calls, 2 or more; None: as many as ``BUDGET`` allows
    timeout: float  # seconds that a collective may take
    max_alone: int | None = None  # groups of a target that are measured alone at most; None: all
    overlap_compute: bool = False  # whether collectives are measured beside matrix products too

    @property
    def rounds(self) -> list[int] | None:
        """The timed calls of each round; None if the time decides."""
        return None if self.iters is None else split_calls(self.iters)

    @property
    def longest_wait(self) -> float:
        """The seconds of one measurement, for which ranks at the barrier can wait."""
        return SHARE * self.timeout

    def num_calls(self, number: int, slowest: float, seconds: float) -> NumCalls:
        """Return the warm-up and timed calls of a pass, at most a quarter of the timeout each.

        ``seconds`` is the length of a pass of a run by time.
        """
        slowest = max(slowest, 1e-9)
        limit = int(self.longest_wait / slowest)
        warm_up = self.warm_up if number == 0 else min(self.warm_up, 1)
        if self.rounds is None:
            calls = min(int(seconds / slowest), MAX_CALLS)
            warm_up = warm_up if slowest < LEAST_SLICE else 0  # the check has made two calls
        else:
            calls = self.rounds[number]
        return min(warm_up, limit), max(MIN_CALLS, min(calls, limit))


class CheckedCall(NamedTuple):
    """The checked call of a case."""

    wrong: int  # elements, of all ranks
    slowest: float  # seconds of the call after it, on the slowest rank


class Sweep:
    """The measurement of a mesh that has groups for all targets."""

    def __init__(
        self, mesh: Mesh, device: torch.device, options: SweepOptions, progress: Progress
    ) -> None:
        self.mesh, self.device, self.options = mesh, device, options
        self.longest_wait = options.longest_wait
        self.first_calls: dict[Axes, FirstCall] = {}
        self._progress, self._current = progress, "the barrier"
        self.beside: list[Beside] = []
        self._began, self.elapsed = time.monotonic(), 0.0  # seconds, the same on every rank
        self._checks: dict[Case, CheckedCall] = {}
        self._slice = LEAST_SLICE  # seconds of a pass of a run by time
        # of each round, by target and mode
        self._seconds: dict[tuple[Target, str], dict[Case, list[Seconds]]] = {}

    def run(self, cases: Sequence[Case]) -> list[Measurement]:
        """Measure the cases, in their order, the same on every rank. Collective."""
        try:
            with self.mesh.guard(timeout=self.options.timeout):
                self._connect_all()
                chosen = self._choose(cases)
                passes = sum(map(self._passes_of_round, chosen))
                number, before = 0, 0.0
                while self._has_time(number, before):
                    before = self.elapsed
                    self._slice = seconds_of_pass(BUDGET - before, number, passes)
                    alone = self.options.iters is not None or number % ALONE_EACH == 0
                    for case in chosen:
                        self._measure(number, case, alone=alone)
                    number += 1
                if self.options.iters is None:
                    self._look_again(number)
                rows = self._summarize(chosen)
                if self.options.overlap_compute:
                    self.beside = measure_beside(self, rows)
                return rows
        except CollectiveError as error:
            line = f"It was one of the collectives that measure {self._current}."
            raise error.but(evidence=(*error.evidence, line)) from error.__cause__

    def _look_again(self, number: int) -> None:
        """Add rounds of the targets that are doubtful. Collective."""
        layout = self.mesh.layout
        together = [rounds for (_, mode), rounds in self._seconds.items() if mode != ALONE]
        own = [float(is_doubtful(rounds_by_group(layout, rounds))) for rounds in together]
        flags = self.all_gather(own).max(axis=0)  # ranks may round the factors differently
        pairs = zip(together, flags, strict=True)
        doubtful = [case for rounds, flag in pairs if flag for case in rounds]
        began, before, self._slice = self.elapsed, self.elapsed, LEAST_SLICE
        while doubtful and 2 * self.elapsed - before < began + AGAIN:
            before = self.elapsed
            for case in doubtful:
                self._measure(number, case, alone=False)

    def _summarize(self, chosen: Sequence[Case]) -> list[Measurement]:
        """Return the measurements of the cases that were measured, in the order of the plan."""
        layout, wrong = self.mesh.layout, {case: self._checks[case].wrong for case in chosen}
        rows = {
            (row.case, mode): row
            for (_, mode), rounds in self._seconds.items()
            for row in summarize_target(layout, mode, rounds, wrong)
        }
        return [rows[case, mode] for case in chosen for mode in modes(layout, case.target)]

    def _choose(self, cases: Sequence[Case]) -> list[Case]:
        """Check the cases, and return those of the sizes for which there is time."""
        levels = group_by((case.bytes, case) for case in sorted(cases, key=lambda c: c.bytes))
        seconds: dict[int, float] = {}  # bytes to the least seconds of a round
        for size, level in levels.items():
            if not self._fits(grow_seconds(seconds, size)):
                break
            for case in level:
                self._show(case)
                self._checks[case] = self._check(case)
            seconds[size] = sum(
                self._passes_of_round(case) * MIN_CALLS * self._checks[case].slowest
                for case in level
            )
        smallest, *others = seconds
        chosen = {smallest}
        for size in reversed(others):
            if self._fits(sum(seconds[kept] for kept in (*chosen, size))):
                chosen.add(size)
        return [case for case in cases if case.bytes in chosen]

    def _fits(self, seconds: float) -> bool:
        """Return whether there is time for enough rounds of so many seconds."""
        enough = self.elapsed + MIN_JUDGED * seconds <= BUDGET
        return self.options.iters is not None or enough

    def _passes_of_round(self, case: Case) -> float:
        """Return the passes of a round of a case, with a share of those alone."""
        passes = total_passes(self.mesh.layout, [case], self.options.max_alone)
        others = sum(mode != ALONE for mode in modes(self.mesh.layout, case.target))
        return others + (passes - others) / ALONE_EACH

    def _has_time(self, number: int, before: float) -> bool:
        """Return whether there is another round: one as long as the last one must end in time."""
        if self.options.rounds:
            return number < len(self.options.rounds)
        last = self.elapsed - before if number else 0.0
        return self.elapsed + last <= (BUDGET if number >= MIN_JUDGED else LONGEST)

    def _show(self, case: Case, number: int = 0) -> None:
        self.announce(str(case), f", {self._seconds_left(number):.0f} s left")

    def announce(self, work: str, more: str = "") -> None:
        """Show what is measured next, for the line of progress and the error of a collective."""
        self._current = work
        self._progress.show(f"{work}{more}")

    def _measure(self, number: int, case: Case, *, alone: bool) -> None:
        """Make the calls of one round of a case in every mode, or in all but alone."""
        self._show(case, number)
        num_calls = self.options.num_calls(number, self._slowest(case), self._slice)
        prepared = self.prepare(case, checked=False)
        for mode in modes(self.mesh.layout, case.target):
            if mode == ALONE and not alone:
                continue
            if mode == ALONE:
                seconds = self._time_alone(case.target.span, prepared, num_calls)
            else:
                seconds = self._time(prepared, num_calls)
            of_target = self._seconds.setdefault((case.target, mode), {})
            of_target.setdefault(case, []).append(self.all_gather(seconds))

    def _slowest(self, case: Case) -> float:
        """Return the mean call of the last round on the slowest rank, at first the checked one."""
        mode = modes(self.mesh.layout, case.target)[-1]
        rounds = self._seconds.get((case.target, mode), {}).get(case)
        return float(rounds[-1].mean(axis=1).max()) if rounds else self._checks[case].slowest

    def _seconds_left(self, number: int) -> float:
        """Return the expected seconds until the end of the run."""
        rounds = self.options.rounds
        if rounds is None:
            budget = BUDGET if self.elapsed < BUDGET else BUDGET + AGAIN
            return max(budget - self.elapsed, 0.0)
        return self.elapsed * (len(rounds) - number) / max(number, 1)

    def _connect_all(self) -> None:
        """Note the first call of the group of all ranks, which is the first barrier."""
        free, began = self._free_memory(), time.perf_counter()
        self.barrier()
        seconds, used = time.perf_counter() - began, free - self._free_memory()
        everything = tuple(axis for axis in self.mesh.layout.axes if self.mesh.size(axis) > 1)
        self._note_first_call(everything, self.all_gather([seconds, used]))

    def _note_first_call(self, axes: Axes, rows: Seconds) -> None:
        """Keep the seconds and bytes, (num_ranks, 2), of the first call of some groups."""
        seconds = slowest_of_groups(self.mesh.layout, axes, rows[:, :1])[:, 0]
        memory = tuple(map(int, rows[:, 1])) if self.device.type == "cuda" else None
        self.first_calls.setdefault(axes, FirstCall(axes, tuple(seconds.tolist()), memory))

    def _free_memory(self) -> int:
        """Return the free bytes of a CUDA device; 0 on other devices."""
        return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0

    def _check(self, case: Case) -> CheckedCall:
        """Call each group twice: compare every element of the first, and time the second."""
        self.barrier()
        prepared = self.prepare(case, checked=True)
        others = ",".join(op for op in OPERATIONS if op != case.op)
        with _reporting(case, self.mesh.rank, "the backend does not have it", f"--ops {others}."):
            first = self._call_once(prepared)
        wrong = sum(call.num_wrong(self.mesh.rank) for call in prepared)
        rows = self.all_gather([*first, wrong])  # (num_ranks, 3)
        if len(case.target.groups) == 1:
            self._note_first_call(case.target.span, rows)
        seconds = self.all_gather(self._call_once(prepared))[:, 0]
        return CheckedCall(int(rows[:, 2].sum()), float(seconds.max()))

    def _call_once(self, prepared: Sequence[PreparedCall]) -> tuple[float, float]:
        """Return the seconds of a call on this rank, and the bytes that it took on its device."""
        free, began = self._free_memory(), time.perf_counter()
        run_calls(prepared)
        synchronize(self.device)
        return time.perf_counter() - began, free - self._free_memory()

    def prepare(self, case: Case, *, checked: bool) -> list[PreparedCall]:
        """Return the calls of a case on this rank, one for each of its groups. Local."""
        items = case.bytes // ITEM_BYTES
        groups = [(self.mesh.peers(*a).tolist(), self.mesh.group(*a)) for a in case.target.groups]
        fault, fix = "the arrays do not fit into memory", f"--sizes {max(case.bytes // 4, 1)}."
        with _reporting(case, self.mesh.rank, fault, fix):
            return [
                prepare_call(case.op, members, items, group, self.device, checked=checked)
                for members, group in groups
            ]

    def _time(self, prepared: Sequence[PreparedCall], num_calls: NumCalls) -> list[float]:
        self.barrier()
        return time_calls(partial(run_calls, prepared), *num_calls, self.device)

    def _time_alone(
        self, axes: Axes, prepared: Sequence[PreparedCall], num_calls: NumCalls
    ) -> list[float]:
        """Time a sample of the groups, one after the other; nan on the ranks of all others."""
        groups = self.mesh.layout.groups(*axes)  # (num_groups, group_size)
        seconds = [math.nan] * num_calls[1]
        for group in sample_groups(len(groups), self.options.max_alone):
            self.barrier()
            if self.mesh.rank in groups[group]:
                seconds = time_calls(partial(run_calls, prepared), *num_calls, self.device)
        return seconds

    def barrier(self) -> None:
        """Wait for all ranks."""
        synchronize(self.device)
        self.all_gather([])

    def all_gather(self, values: Sequence[float]) -> Seconds:
        """Return the values of every rank, (num_ranks, values), by position. Collective."""
        row = [time.monotonic() - self._began, *values]
        own = torch.tensor(row, dtype=torch.float64, device=self.device)
        rows: Seconds = torch.stack(all_gather(own, self.mesh.group())).cpu().numpy()
        self.elapsed = float(rows[:, 0].max())
        return rows[:, 1:]


@contextmanager
def _reporting(case: Case, rank: int, fault: str, fix: str) -> Iterator[None]:
    """Report an error of torch in the block, unless it is that of a collective that failed."""
    try:
        yield
    except RuntimeError as error:
        is_plain = type(error) in (RuntimeError, NotImplementedError, torch.OutOfMemoryError)
        if not is_plain or is_collective_error(error):
            raise
        line = str(error).partition("\n")[0]
        raise MeshkitError(f"{case} on rank {rank}: {fault}.", line, fix=fix) from error


@dataclass(frozen=True)
class BenchRequest:
    """A requested benchmark, equal on every rank."""

    axes: Mapping[str, int]  # axis name to size, as for ``build_mesh``
    order: str | None
    operations: tuple[str, ...]  # names in ``OPERATIONS``
    targets: tuple[Target, ...]
    sizes: tuple[int, ...]  # bytes of the total array
    options: SweepOptions

    @property
    def fields(self) -> dict[str, str]:
        """The values that must be equal on every rank, by command-line option."""
        return {
            "--ops": ",".join(self.operations),
            "--axes": ",".join(target.name for target in self.targets),
            "--sizes": ",".join(map(str, self.sizes)),
            "--iters": str(self.options.iters or "by time"),
            "--warm-up": str(self.options.warm_up),
            "--alone": str(self.options.max_alone or "all"),
            "--overlap-compute": str(self.options.overlap_compute),
        }


def run_benchmark(
    request: BenchRequest, layout: Layout, device: str | None = None
) -> tuple[int, BenchmarkRun]:
    """Join the job, build the mesh, measure all cases, and close the mesh. Collective."""
    targets, options = request.targets, request.options
    groups = dict.fromkeys(axes for target in targets for axes in target.groups if len(axes) > 1)
    world = init(device=device, timeout=options.timeout)
    with build_mesh(request.axes, order=request.order, groups=[*groups] or None) as mesh:
        fix = "for example meshkit bench dp=2 -n 2, which starts ranks."
        hosts = gather_hosts(require_job(), "meshkit bench", request.fields, DISAGREEMENT, fix)
        began = time.monotonic()
        cases = plan_cases(layout, request.operations, targets, request.sizes)
        progress = Progress("meshkit bench", None if world.rank else sys.stderr)
        progress.write_line(describe_plan(cases, options))
        place = world.device or torch.device("cpu")
        sweep = Sweep(mesh, place, options, progress)
        with show_progress(progress):
            measurements = sweep.run(cases)
    return world.rank, BenchmarkRun(
        sizes=layout.sizes,
        launcher=world.launcher,
        device=place.type,
        backend=str(world.backend),
        torch=torch.__version__,
        hosts=tuple(hosts),
        warm_up=options.warm_up,
        iters=options.iters,
        first_calls=tuple(sweep.first_calls.values()),
        measurements=tuple(measurements),
        seconds=time.monotonic() - began,
        beside=tuple(sweep.beside),
    )


def describe_plan(cases: Sequence[Case], options: SweepOptions) -> str:
    """Return the line that is shown before the first call."""
    operations = ", ".join(dict.fromkeys(case.op for case in cases))
    targets = ", ".join(dict.fromkeys(case.target.name for case in cases))
    sizes = sorted({case.bytes for case in cases})
    span = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    calls = f"{options.iters} calls each" if options.iters else f"about {BUDGET:.0f} s"
    return f"meshkit bench: {operations} over {targets}, {span} bytes: {calls}"
