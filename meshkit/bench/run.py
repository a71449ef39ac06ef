"""A mesh for all that is to be measured, and the sweep over it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ..core.grid.layout import Layout
from ..launch.agreement.proposal import Proposal
from ..launch.current_job import require_job
from ..launch.job import init
from ..live.build_mesh import build_mesh
from ..live.setup.hosts import gather_hosts
from .interrupt import Interruption
from .progress import Progress
from .results.measurement import Case
from .results.run import BenchmarkRun, modes, plan_cases
from .results.targets import Target
from .sweep import Sweep, SweepOptions

DISAGREEMENT = "ranks disagree about what to measure; nothing was measured."


@dataclass(frozen=True)
class Request:
    """A requested benchmark, equal on every rank.

    Attributes:
        axes: axis name to size, as for ``build_mesh``.
        order: as for ``build_mesh``.
        operations: names in ``OPERATIONS``.
        targets: the groups.
        sizes: bytes of the total array.
        options: how to measure.
        device: device of the tensors; None takes the accelerator, else the cpu.
        stop_file: path whose existence stands for a Ctrl-C in the process that started the ranks,
            or None.
    """

    axes: Mapping[str, int]
    order: str | None
    operations: tuple[str, ...]
    targets: tuple[Target, ...]
    sizes: tuple[int, ...]
    options: SweepOptions
    device: str | None = None
    stop_file: str | None = None

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
    """Join the job, build the mesh, measure it and close it. Collective.

    After the job is joined, a Ctrl-C ends the run between two measurements, on all ranks. Rank 0
    writes its progress to stderr.
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
    """Return the host name of each rank, after all ranks have made the same request. Collective.

    ``build_mesh`` has compared the mesh itself.
    """
    matter = Proposal("meshkit bench", request.fields, DISAGREEMENT)
    return gather_hosts(
        matter, require_job(), "for example meshkit bench dp=2 -n 2, which starts ranks."
    )


def _ignore(case: Case) -> None:
    """Report no progress, on ranks other than 0."""
