"""Measure the collectives of a mesh, each target alone and under contention.

::

    check         every group once, at the same time; every element is compared
    alone         group after group, a sample of many; the others wait at the barrier
    concurrent    every group at once, as in training
    overlap       every group of both axes at once

The input numbers differ between ranks and between positions in the array: a part that went to the
wrong rank, came from outside the group or lies at the wrong position is a wrong element.

The barrier is one all_gather of a few bytes over the whole mesh. A group that leaves it early does
not disturb those that are still in it.

On the cpu the host's clock measures the calls; on CUDA events on the stream do, so that neither the
launch nor the host's own work counts. Calls are launched one by one, as in nccl-tests without its
option ``-G``. On other accelerators the host's clock measures each call together with a
synchronization. Neither CUDA nor other accelerators have ever been run.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import CollectiveError, MeshkitError
from ..groups.groups import all_gather
from ..groups.hosts import gather_hosts
from ..groups.status import is_collective_error, wait
from ..launch.init import init
from ..launch.job import require_job
from ..launch.log import Progress, show_progress
from ..layout.group_plan import Axes
from ..layout.layout import Layout
from ..mesh.build_mesh import build_mesh
from ..mesh.mesh import Mesh
from ..redistribute.operations import ALL_GATHER, REDUCE_SCATTER
from ..text import Seconds, count_noun
from .results import (
    ALONE,
    ITEM_BYTES,
    MIN_CALLS,
    OPERATIONS,
    BenchmarkRun,
    Case,
    Measurement,
    Target,
    modes,
    plan_cases,
    sample_groups,
    summarize_case,
    total_passes,
)

EXACT = 2**24  # float32 has every whole number up to here
UNSET = -1.0  # a number that no rank puts in
# Numbers of distinct ranks and positions; primes, so that no power of two hides a shift.
DISTINCT = ((31, 251), (31, 31), (7, 17), (3, 5))
SHARE = 0.25  # of the timeout for one measurement, so that ranks at the barrier can wait for it
DISAGREEMENT = "ranks disagree about what to measure; nothing was measured."

NumCalls = tuple[int, int]  # warm-up calls, timed calls
Works = Sequence[dist.Work | None]


def num_distinct(group_size: int) -> tuple[int, int]:
    """Return the numbers of distinct ranks and positions: the most of which a sum is exact."""
    exact = (pair for pair in DISTINCT if group_size * (math.prod(pair) - 1) < EXACT)
    return next(exact, DISTINCT[-1])


def input_pattern(rank: int, group_size: int, items: int, start: int = 0) -> Tensor:
    """Return the input of a rank: (items,) numbers that differ between ranks and positions."""
    ranks, positions = num_distinct(group_size)
    return (positions * (rank % ranks) + torch.arange(start, start + items) % positions).float()


def expected_output(op: str, members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the correct output on one member, for an array of ``items`` in all."""
    size, part = len(members), items // len(members)
    if op in ("all_reduce", "reduce_scatter"):
        ranks, positions = num_distinct(size)
        total = sum(rank % ranks for rank in members)
        sums = (positions * total + size * (torch.arange(items) % positions)).float()
        return sums if op == "all_reduce" else sums.chunk(size)[group_rank]
    if op == "all_gather":
        return torch.cat([input_pattern(rank, size, part) for rank in members])
    if op == "all_to_all":
        return torch.cat([input_pattern(rank, size, part, group_rank * part) for rank in members])
    root = members[0 if op == "broadcast" else group_rank - 1]  # send_recv: the member before
    return input_pattern(root, size, items)


def begin_collective(
    op: str, out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool
) -> Works:
    """Begin a collective. Without ``async_op``, wait for it if the call itself can."""
    options: dict[str, Any] = {"group": group, "async_op": async_op}
    if op == "all_reduce":
        return [dist.all_reduce(out, **options)]
    if op == "broadcast":
        return [dist.broadcast(out, dist.get_global_rank(group, 0), **options)]
    if op != "send_recv":
        calls = {
            "all_gather": ALL_GATHER,
            "reduce_scatter": REDUCE_SCATTER,
            "all_to_all": dist.all_to_all_single,
        }
        return [calls[op](out, source, **options)]
    size, group_rank = group.size(), group.rank()  # in a ring
    if size == 1:  # torch sends nothing to itself
        out.copy_(source)
        return []
    after, before = (dist.get_global_rank(group, (group_rank + i) % size) for i in (1, -1))
    send = dist.P2POp(dist.isend, source, after, group)
    return dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, out, before, group)])


@dataclass(frozen=True)
class PreparedCall:
    """A collective on one group with its tensors, which can be called repeatedly."""

    op: str
    members: Sequence[int]  # ranks of the group, in its order
    items: int  # of the total array
    group: dist.ProcessGroup
    source: Tensor  # input of this rank
    out: Tensor  # output of this rank

    def begin(self, async_op: bool = True) -> Works:
        """Begin the call. Without ``async_op``, wait for it if the call itself can."""
        return begin_collective(self.op, self.out, self.source, self.group, async_op)

    def num_wrong(self, rank: int) -> int:
        """Return the number of wrong elements of this rank after one :func:`checked_call`."""
        group_rank = list(self.members).index(rank)
        expected = expected_output(self.op, self.members, group_rank, self.items)
        return int((self.out.cpu() != expected).sum())


def prepare_call(
    op: str,
    members: Sequence[int],
    items: int,
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    checked: bool,
) -> PreparedCall:
    """Return a call for timing, or one to be called once whose output is then checked. Local."""
    operation, size = OPERATIONS[op], len(members)
    num_source = items // size if operation.source_is_part else items
    num_out = items // size if operation.output_is_part else items
    source, out = torch.zeros(num_source), torch.zeros(num_out)
    if checked:
        source = input_pattern(dist.get_rank(), size, num_source)
        out = source if operation.in_place else torch.full((num_out,), UNSET)
    out = out.to(device, copy=True)
    return PreparedCall(op, members, items, group, source.to(device), out)


def run_calls(calls: Sequence[PreparedCall]) -> None:
    """Begin all calls, then wait for all. Collective over their groups."""
    async_op = len(calls) > 1
    for group, work in [(call.group, work) for call in calls for work in call.begin(async_op)]:
        wait(work, group)


def time_calls(
    call: Callable[[], None], warm_up: int, calls: int, device: torch.device
) -> list[float]:
    """Return the seconds of each call on this rank, made at once after the warm-up calls."""
    for _ in range(warm_up):
        call()
    synchronize(device)
    if device.type != "cuda":
        seconds = []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            synchronize(device)
            seconds.append(time.perf_counter() - began)
        return seconds
    events = [torch.Event(device, enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def synchronize(device: torch.device) -> None:
    """Wait for queued work of an accelerator; a cpu queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


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
    options: SweepOptions
    progress: Progress

    def run(self, cases: Sequence[Case]) -> list[Measurement]:
        """Measure all cases; the same on every rank. Collective."""
        measurements: list[Measurement] = []
        current = ""
        try:
            with self.mesh.guard(timeout=self.options.timeout):
                for number, case in enumerate(cases):
                    current = str(case)
                    self.progress.show(f"{100 * number // len(cases)} %: {current}")
                    self._measure(case, measurements)
        except CollectiveError as error:
            line = f"It was one of the collectives that measure {current}."
            raise error.but(evidence=(*error.evidence, line)) from error.__cause__
        return measurements

    def _measure(self, case: Case, measurements: list[Measurement]) -> None:
        """Check a case, then append its measurement in every mode."""
        layout = self.mesh.layout
        wrong, slowest = self._check(case)
        num_calls = self.options.num_calls(slowest)
        prepared = self._prepare(case, checked=False)
        for mode in modes(layout, case.target):
            if mode == ALONE:
                seconds = self._time_alone(case.target.span, prepared, num_calls)
            else:
                seconds = self._time(prepared, num_calls)
            measurements.append(
                summarize_case(layout, case, mode, self._all_gather(seconds), wrong)
            )

    def _check(self, case: Case) -> tuple[int, float]:
        """Return the wrong elements of all ranks, and the seconds of the slowest."""
        self._barrier()
        prepared = self._prepare(case, checked=True)
        began = time.perf_counter()
        others = ",".join(op for op in OPERATIONS if op != case.op)
        with _reporting(case, self.mesh.rank, "the backend does not have it", f"--ops {others}."):
            run_calls(prepared)
            synchronize(self.device)
        seconds = time.perf_counter() - began
        wrong = sum(call.num_wrong(self.mesh.rank) for call in prepared)
        rows = self._all_gather([wrong, seconds])  # (num_ranks, 2)
        return int(rows[:, 0].sum()), float(rows[:, 1].max())

    def _prepare(self, case: Case, *, checked: bool) -> list[PreparedCall]:
        items = case.bytes // ITEM_BYTES
        groups = [(self.mesh.peers(*a).tolist(), self.mesh.group(*a)) for a in case.target.groups]
        fault, fix = "the arrays do not fit into memory", f"--sizes {max(case.bytes // 4, 1)}."
        with _reporting(case, self.mesh.rank, fault, fix):
            return [
                prepare_call(case.op, members, items, group, self.device, checked=checked)
                for members, group in groups
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
        for group in sample_groups(len(groups), self.options.max_alone):
            self._barrier()
            if self.mesh.rank in groups[group]:
                seconds = time_calls(partial(run_calls, prepared), *num_calls, self.device)
        return seconds

    def _barrier(self) -> None:
        """Wait for all ranks."""
        synchronize(self.device)
        self._all_gather([0.0])

    def _all_gather(self, values: Sequence[float]) -> Seconds:
        """Return the values of every rank, (num_ranks, values), by position. Collective."""
        own = torch.tensor(values, dtype=torch.float64, device=self.device)
        return torch.stack(all_gather(own, self.mesh.group())).cpu().numpy()


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
            "--iters": str(self.options.iters),
            "--warm-up": str(self.options.warm_up),
            "--alone": str(self.options.max_alone or "all"),
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
        rows = count_noun(sum(len(modes(layout, case.target)) for case in cases), "row")
        passes = count_noun(total_passes(layout, cases, options.max_alone), "pass")
        calls = f"each of up to {options.warm_up + options.iters} calls"
        progress = Progress("meshkit bench", None if world.rank else sys.stderr)
        progress.write_line(f"{rows} in {passes}, one after the other, {calls}")
        place = world.device or torch.device("cpu")
        with show_progress(progress):
            measurements = Sweep(mesh, place, options, progress).run(cases)
    return world.rank, BenchmarkRun(
        sizes=layout.sizes,
        launcher=world.launcher,
        device=place.type,
        backend=str(world.backend),
        torch=torch.__version__,
        hosts=tuple(hosts),
        warm_up=options.warm_up,
        iters=options.iters,
        measurements=tuple(measurements),
        seconds=time.monotonic() - began,
    )
