"""``meshkit check``: build a mesh of real ranks, prove each of its groups, and say what it took."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...core.call import drop_none
from ...core.errors import SpawnError, SpecError, UnknownAxisError
from ...core.grid.sizes import infer_sizes
from ...core.grid.factor import ordered_sizes
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.report.verification import CheckReport
from ...launch.launchers.detect import detect
from ..command import Command, Result
from ..local_ranks import ENDING, failed, in_words, shared_device
from ..options.command_line import command_line
from ..options.grid import add_groups, sizes_of
from ..options.mesh import add_mesh, check_company

STAGES = 3  # that may take --timeout each: joining, building, one collective


def run(asked: Namespace) -> Result:
    """Check a mesh of ``n`` ranks started here, or of this rank and its peers. Collective.

    Args:
        asked: ``sizes``, words such as ``dp=4``; ``n``, how many ranks to start, or None;
            ``order``, ``groups``, ``device``, ``timeout`` and ``json``.

    Returns:
        What was found; nothing to print on ranks other than 0.

    Raises:
        SpecError: where sizes, order and ranks do not fit together, before a rank is started.
        UnknownAxisError: for an axis in ``groups`` that there is not.
        LaunchError: where this rank could not join.
        DisagreementError: where ranks ask for different meshes.
        RankTimeoutError: where ranks did not arrive in time; or, as CollectiveError, did not come
            through a collective.
        MeshkitError: where a group holds other ranks than the mesh says.
        SpawnError: any of these, where the ranks were started here.
    """
    sizes = sizes_of(asked.sizes, "meshkit check")
    asked.line = command_line(asked, sizes)
    nested = ordered_sizes(sizes, asked.order)
    request = {**sizes, **drop_none(order=asked.order, groups=asked.groups)}
    fits = partial(_check_fits, nested, asked.groups or ())
    if asked.n is None:
        check_company(sizes)
        report = _here(request, asked.device, asked.timeout, fits)
    else:
        fits(asked.n, f"-n {asked.n}")
        report = _started(asked.n, request, asked.device, asked.timeout)
    return _answer(report, as_json=asked.json)


def checked(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Join the job, build the mesh, prove its groups, close it. Collective.

    Args:
        request: the arguments of ``build_mesh``.
        device: where to compute; None takes the accelerator, else the cpu.
        timeout: seconds that ranks wait for each other, and that one collective may take.
    """
    from ...launch.job import init
    from ...live.build_mesh import build_mesh

    began = time.monotonic()
    with in_words("joining the job"):
        world = init(device=device, timeout=timeout)
    here = f"the check on rank {world.rank} of {world.world_size}"
    with in_words(here), build_mesh(**request) as mesh:
        built = time.monotonic()
        found = mesh.verify(timeout=timeout)
        ended = time.monotonic()
    kind = world.device.type if world.device is not None else "cpu"
    about = world.launcher, kind, str(world.backend)
    return CheckReport(world.rank, mesh.layout.sizes, *about, found, built - began, ended - built)


def checked_beside(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """:func:`checked` for ranks that share a machine: on the cpu where it has too few devices."""
    return checked(request, shared_device(device), timeout)


def _here(
    request: Mapping[str, Any],
    device: str | None,
    timeout: float,
    fits: Callable[[int, str], None],
) -> CheckReport:
    """:func:`checked`, and then the job is left. A mesh that does not fit is told as typed."""
    from ...launch.job import shutdown

    try:
        return checked(request, device, timeout)
    except (SpecError, UnknownAxisError):  # of build_mesh, which has told the other ranks
        world = detect()
        fits(world.world_size, world.size_evidence)
        raise
    finally:
        shutdown()


def _started(n: int, request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """The report of ``n`` ranks started here: that of rank 0.

    Raises:
        SpawnError: with the words of the rank that failed first, and no traceback.
    """
    from ...launch.spawn.spawn import spawn
    from ...live.preload import preload_mesh

    preload_mesh()
    limit = STAGES * timeout + ENDING
    try:
        return spawn(checked_beside, n, (request, device, timeout), timeout=limit)[0]
    except SpawnError as error:
        raise failed(n, error, device) from error


def _check_fits(
    nested: Mapping[str, int], groups: Sequence[str], ranks: int, evidence: str
) -> None:
    """Refuse sizes and groups that do not fit a number of ranks. Raises as :func:`run`."""
    GroupPlan.of(Layout(ranks=None, **infer_sizes(nested, ranks, evidence)), groups)


def _answer(report: CheckReport, *, as_json: bool) -> Result:
    """What to print, on rank 0 only."""
    if report.rank:
        return Result("")
    return Result(json.dumps(report.as_dict()) if as_json else report.as_text())


def _add(parser: ArgumentParser) -> None:
    add_mesh(parser)
    add_groups(parser)


CHECK = Command("check", "build a mesh of real ranks, and prove every group", _add, run)
