"""A mesh for all that is to be measured, the sweep over it, and its progress on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import torch

from ..core.grid.layout import Layout
from ..core.text import count_noun
from ..launch.agreement.proposal import Proposal
from ..launch.current_job import require_job
from ..launch.job import init
from ..live.build_mesh import build_mesh
from ..live.setup.hosts import gather_hosts
from .interrupt import Interruption
from .results.measurement import Case
from .results.run import BenchmarkRun, modes, plan_cases, total_passes
from .results.targets import Target
from .sweep import Sweep, SweepOptions

INTERVAL = 10.0  # seconds between two lines of progress
DISAGREEMENT = "ranks disagree about what to measure; nothing was measured."


@dataclass(frozen=True)
class Request:
    """A requested benchmark, equal on every rank."""

    axes: Mapping[str, int]  # axis name to size, as for ``build_mesh``
    order: str | None
    operations: tuple[str, ...]  # names in ``OPERATIONS``
    targets: tuple[Target, ...]
    sizes: tuple[int, ...]  # bytes of the total array
    options: SweepOptions
    device: str | None = None  # device of the tensors; None takes the accelerator, else the cpu
    stop_file: str | None = None  # if it exists, Ctrl-C was pressed where the ranks were started

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


def run_benchmark(request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Join the job, build the mesh, measure it until Ctrl-C, and close it. Collective."""
    targets, options = request.targets, request.options
    groups = [axes for target in targets for axes in target.groups if len(axes) > 1]
    with Interruption(request.stop_file) as interruption:
        world = init(device=request.device, timeout=options.timeout)
        device = world.device or torch.device("cpu")
        distinct = list(dict.fromkeys(groups))
        with build_mesh(request.axes, order=request.order, groups=distinct or None) as mesh:
            names = agree_on_hosts(request)
            began = time.monotonic()
            hosts = {rank: names[rank] for rank in mesh.peers().tolist()}
            cases = plan_cases(layout, request.operations, targets, request.sizes)
            on_case: Callable[[Case], None] = _ignore
            if world.rank == 0:
                calls = options.warm_up + options.iters
                on_case = Progress(layout, cases, options.max_alone, calls, sys.stderr)
            sweep = Sweep(mesh, device, hosts, options, lambda: bool(interruption), on_case)
            measurements = sweep.run(cases)
    return world.rank, BenchmarkRun(
        sizes=layout.sizes,
        launcher=world.launcher,
        device=device.type,
        backend=str(world.backend),
        torch=torch.__version__,
        hosts=hosts,
        warm_up=options.warm_up,
        iters=options.iters,
        measurements=tuple(measurements),
        planned=sum(len(modes(layout, case.target)) for case in cases),
        seconds=time.monotonic() - began,
    )


def agree_on_hosts(request: Request) -> list[str]:
    """Return the host of each rank, after all ranks have made the same request. Collective."""
    matter = Proposal("meshkit bench", request.fields, DISAGREEMENT)
    return gather_hosts(
        matter, require_job(), "for example meshkit bench dp=2 -n 2, which starts ranks."
    )


def _ignore(case: Case) -> None:
    """Report no progress, on ranks other than 0."""


class Progress:
    """Writer of progress lines, on one rank."""

    def __init__(
        self,
        layout: Layout,
        cases: Sequence[Case],
        max_alone: int | None,
        calls: int,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream: TextIO | None = stream
        self._clock = clock
        self._written = -math.inf
        self._done, self._num_cases = 0, len(cases)
        rows = count_noun(sum(len(modes(layout, case.target)) for case in cases), "row")
        passes = count_noun(total_passes(layout, cases, max_alone), "pass")
        self._write(f"{rows} in {passes}, one after the other, each of up to {calls} calls\n")

    def __call__(self, case: Case) -> None:
        """Write a line after the first case, and then every ``INTERVAL`` seconds."""
        done, now = self._done, self._clock()
        self._done += 1
        if done and now - self._written >= INTERVAL:
            self._written = now
            self._write(f"{100 * done // self._num_cases} %: {case}\n")

    def _write(self, text: str) -> None:
        """Write, as long as the stream accepts it: a failure here must not cost the results."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                self._stream = None
