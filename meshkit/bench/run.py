"""Build a mesh for all requested measurements, run the sweep, and write progress to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..core.grid.layout import Layout
from ..core.text import count_noun
from ..launch.job import require_job
from ..launch.join import init
from ..launch.output.progress import Progress, show_progress
from ..live.build_mesh import build_mesh
from ..live.hosts import gather_hosts
from .interrupt import Interruption
from .results.measurement import Case
from .results.run import BenchmarkRun, modes, plan_cases, total_passes
from .results.targets import Target
from .sweep import Sweep, SweepOptions

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
    """Join the job, build the mesh, measure all cases or those before Ctrl-C, and close the mesh.

    Collective.
    """
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
            progress = Progress("meshkit bench", None if world.rank else sys.stderr)
            calls = options.warm_up + options.iters
            on_case = CaseProgress(layout, cases, options.max_alone, calls, progress)
            sweep = Sweep(mesh, device, hosts, options, lambda: bool(interruption), on_case)
            with show_progress(progress):
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
    fix = "for example meshkit bench dp=2 -n 2, which starts ranks."
    return gather_hosts(require_job(), "meshkit bench", request.fields, DISAGREEMENT, fix)


class CaseProgress:
    """Progress of a sweep, on one rank."""

    def __init__(
        self,
        layout: Layout,
        cases: Sequence[Case],
        max_alone: int | None,
        calls: int,
        progress: Progress,
    ) -> None:
        self._progress = progress
        self._num_done, self._num_cases = 0, len(cases)
        rows = count_noun(sum(len(modes(layout, case.target)) for case in cases), "row")
        passes = count_noun(total_passes(layout, cases, max_alone), "pass")
        line = f"{rows} in {passes}, one after the other, each of up to {calls} calls"
        progress.write_line(line)

    def __call__(self, case: Case) -> None:
        """Show the case that begins."""
        percent = 100 * self._num_done // self._num_cases
        self._num_done += 1
        self._progress.show(f"{percent} %: {case}")
