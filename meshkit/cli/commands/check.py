"""``meshkit check``: build a mesh of real ranks, check each of its groups, and report the times."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from ...core.call import drop_none
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.grid.sizes import infer_sizes, ordered_sizes
from ...core.report.verification import CheckReport
from ..command import Command, Result
from ..local_ranks import (
    ENDING,
    add_mesh,
    check_launched,
    choose_shared_device,
    rank_0_progress,
    spawn_ranks,
    torch_errors,
)
from ..options.grid import add_groups, read_axis_sizes

STAGES = 3  # that may take --timeout each: joining, building, one collective


def run(args: Namespace) -> Result:
    """Check a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    sizes = read_axis_sizes(args.words)
    nested = ordered_sizes(sizes, args.order)
    request = {**sizes, **drop_none(order=args.order, groups=args.groups)}
    if args.n is None:
        check_launched(sizes)
        report = _check_under_launcher(request, args.device, args.timeout)
    else:
        GroupPlan.of(
            Layout(ranks=None, **infer_sizes(nested, args.n, f"-n {args.n}")), args.groups or ()
        )
        report = _check_locally(args.n, request, args.device, args.timeout)
    return Result(report.as_dict, report.draw) if report.rank == 0 else Result()


def check_mesh(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Join the job, build the mesh, check its groups, and close it. Collective."""
    from ...launch.join import init
    from ...live.build_mesh import build_mesh

    began = time.monotonic()
    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    task = f"the check on rank {world.rank} of {world.world_size}"
    with torch_errors(task), build_mesh(**request) as mesh:
        built = time.monotonic()
        verification = mesh.verify(timeout=timeout)
        ended = time.monotonic()
    kind = world.device.type if world.device is not None else "cpu"
    job = world.launcher, kind, str(world.backend)
    sizes = mesh.layout.sizes
    return CheckReport(world.rank, sizes, *job, verification, built - began, ended - built)


def check_on_shared_device(
    request: Mapping[str, Any], device: str | None, timeout: float
) -> CheckReport:
    """Check with several ranks on this machine: on the cpu if there are too few devices."""
    return check_mesh(request, choose_shared_device(device), timeout)


def _check_under_launcher(
    request: Mapping[str, Any], device: str | None, timeout: float
) -> CheckReport:
    """Check as one rank of a launcher, then shut the job down."""
    from ...launch.join import shutdown

    try:
        with rank_0_progress("meshkit check"):
            return check_mesh(request, device, timeout)
    finally:
        shutdown()


def _check_locally(
    n: int, request: Mapping[str, Any], device: str | None, timeout: float
) -> CheckReport:
    """Return the report of rank 0 of ``n`` ranks started here."""
    given = request, device, timeout
    limit, title = STAGES * timeout + ENDING, "meshkit check"
    return spawn_ranks(check_on_shared_device, n, given, device=device, timeout=limit, title=title)[
        0
    ]


def _add_options(parser: ArgumentParser) -> None:
    add_mesh(parser)
    add_groups(parser)


CHECK = Command(
    "check",
    "build a mesh of real ranks, and check every group",
    _add_options,
    run,
    ("dp=2 tp=2 -n 4 --device cpu", "dp=-1 tp=2 -n 4 --groups 'dp tp'"),
)
