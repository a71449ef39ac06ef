"""A mesh for all that is to be measured, and the sweep over it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..core.call import Call
from ..core.layout import Layout
from ..core.measured import Measured, cases, modes
from ..core.measurement import Case
from ..core.targets import Target
from ..launch.join import init
from ..launch.meet import Matter
from ..launch.record import known
from ..live.build import build_mesh
from ..live.topology import checked_in
from .interruption import Interruption
from .progress import Progress
from .sweep import Sweep, Terms

ABOUT = "ranks disagree about what is measured; nothing was."


@dataclass(frozen=True)
class Request:
    """What is asked for, the same on every rank.

    Attributes:
        axes: axis name to size, as for ``build_mesh``.
        order: as for ``build_mesh``.
        operations: of ``core.operations.OPERATIONS``.
        targets: over which groups.
        sizes: bytes of the total array.
        terms: how to measure.
        device: where to compute; None takes the accelerator, else the cpu.
        stop: a file that stands for a Ctrl-C in the process that started the ranks, or None.
    """

    axes: Mapping[str, int]
    order: str | None
    operations: tuple[str, ...]
    targets: tuple[Target, ...]
    sizes: tuple[int, ...]
    terms: Terms
    device: str | None = None
    stop: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """What must be equal on every rank, as it is typed."""
        return {
            "--ops": ",".join(self.operations),
            "--axes": ",".join(target.name for target in self.targets),
            "--sizes": ",".join(map(str, self.sizes)),
            "--iters": str(self.terms.iters),
            "--warm-up": str(self.terms.warm_up),
            "--alone": str(self.terms.alone or "all"),
            "--graph": str(self.terms.graph),
        }


def bench(request: Request, layout: Layout) -> tuple[int, Measured]:
    """Join the job, build the mesh and measure it. Collective; the mesh is closed at the end.

    A Ctrl-C, once the job is joined, ends it between two measurements, on all ranks. Rank 0
    says on stderr how far it has come.

    Args:
        request: what to measure.
        layout: the grid that ``request.axes`` make.

    Returns:
        This rank, and what was found, the same on every rank.

    Raises:
        DisagreementError: where ranks ask for different measurements, before the first one.
        MeshkitError: as ``init``, ``build_mesh`` and ``mesh.guard``.
    """
    targets, timeout = request.targets, request.terms.timeout
    groups = list(dict.fromkeys(axes for one in targets for axes in one.groups if len(axes) > 1))
    with Interruption(request.stop) as stop:
        world = init(device=request.device, timeout=timeout)
        device = world.device or torch.device("cpu")
        with build_mesh(request.axes, order=request.order, groups=groups or None) as mesh:
            names = agreed_hosts(request)
            began = time.monotonic()
            hosts = {rank: names[rank] for rank in mesh.peers().tolist()}
            todo = cases(layout, request.operations, targets, request.sizes)
            tell = _progress(layout, todo, request.terms) if world.rank == 0 else None
            sweep = Sweep(mesh, device, hosts, request.terms, lambda: bool(stop), tell or _silent)
            found = sweep.run(todo)
            if tell is not None:
                tell.end()
    return world.rank, Measured(
        sizes=layout.sizes,
        launcher=world.launcher,
        device=device.type,
        backend=str(world.backend),
        torch=torch.__version__,
        hosts=hosts,
        warm_up=request.terms.warm_up,
        iters=request.terms.iters,
        graph=request.terms.graph,
        found=tuple(found),
        planned=sum(len(modes(layout, case.target)) for case in todo),
        seconds=time.monotonic() - began,
    )


def agreed_hosts(request: Request) -> list[str]:
    """The host of each rank, once all have asked for the same measurements. Collective.

    The mesh itself is not compared here: build_mesh does that.

    Raises:
        DisagreementError: the same on every rank, with who asked for what.
        RankTimeoutError: where ranks did not come.
    """
    matter = Matter(Call("meshkit bench"), request.options, ABOUT)
    return checked_in(matter, known(), "meshkit bench dp=2 -n 2, say, which starts the ranks.")


def _progress(layout: Layout, todo: Sequence[Case], terms: Terms) -> Progress:
    """What rank 0 says, and that it begins."""
    tell = Progress(layout, todo, terms.alone, terms.most, sys.stderr)
    tell.begin()
    return tell


def _silent(case: Case) -> None:
    """What ranks other than 0 say."""
