"""``meshkit check``: build a mesh of real ranks, prove each of its groups, and say what it took."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ..core.axes import infer
from ..core.call import Call, given
from ..core.errors import SpawnError, SpecError, UnknownAxisError
from ..core.factor import nested_sizes
from ..core.layout import Layout
from ..core.plan import GroupPlan
from ..core.runs import runs
from ..core.verification import Checked, Verification
from ..core.words import count, pairs
from ..launch.environment import detect
from . import Answer, Command
from .grid import add_groups, sizes_of
from .grid_asked import add_mesh, check_company
from .local import ENDING, failed, in_words, shared_device
from .typed import typed

STAGES = 3  # that may take --timeout each: joining, building, one collective


@dataclass(frozen=True)
class Report:
    """What one rank knows when every group has been proved; but for ``rank`` all know the same.

    Attributes:
        rank: who says so.
        sizes: axis name to size, the outermost first.
        launcher: who started the ranks.
        device: what kind they compute on.
        backend: what the groups run on.
        found: what the check of the groups took.
        built: seconds for joining the job and building the mesh.
        checked: seconds for all checks.
    """

    rank: int
    sizes: Mapping[str, int]
    launcher: str
    device: str
    backend: str
    found: Verification
    built: float
    checked: float


def run(asked: Namespace) -> Answer:
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
    call = typed(asked, sizes)
    nested = nested_sizes(call, sizes, asked.order)
    request = {**sizes, **given(order=asked.order, groups=asked.groups)}
    fits = partial(_check_fits, call, nested, asked.groups or ())
    if asked.n is None:
        check_company(call, sizes)
        report = _here(request, asked.device, asked.timeout, fits)
    else:
        fits(asked.n, f"-n {asked.n}")
        report = _started(asked.n, request, asked.device, asked.timeout)
    return _answer(report, as_json=asked.json)


def checked(request: Mapping[str, Any], device: str | None, timeout: float) -> Report:
    """Join the job, build the mesh, prove its groups, close it. Collective.

    Args:
        request: the arguments of ``build_mesh``.
        device: where to compute; None takes the accelerator, else the cpu.
        timeout: seconds that ranks wait for each other, and that one collective may take.
    """
    from ..launch.join import init
    from ..live.build import build_mesh

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
    return Report(world.rank, mesh.layout.sizes, *about, found, built - began, ended - built)


def checked_beside(request: Mapping[str, Any], device: str | None, timeout: float) -> Report:
    """:func:`checked` for ranks that share a machine: on the cpu where it has too few devices."""
    return checked(request, shared_device(device), timeout)


def _here(
    request: Mapping[str, Any],
    device: str | None,
    timeout: float,
    fits: Callable[[int, str], None],
) -> Report:
    """:func:`checked`, and then the job is left. A mesh that does not fit is told as typed."""
    from ..launch.join import shutdown

    try:
        return checked(request, device, timeout)
    except (SpecError, UnknownAxisError):  # of build_mesh, which has told the other ranks
        world = detect()
        fits(world.world_size, world.size_evidence)
        raise
    finally:
        shutdown()


def _started(n: int, request: Mapping[str, Any], device: str | None, timeout: float) -> Report:
    """The report of ``n`` ranks started here: that of rank 0.

    Raises:
        SpawnError: with the words of the rank that failed first, and no traceback.
    """
    from ..launch.spawn import spawn

    limit = STAGES * timeout + ENDING
    try:
        return spawn(checked_beside, n, (request, device, timeout), timeout=limit)[0]
    except SpawnError as error:
        raise failed(n, error, device) from error


def _check_fits(
    call: Call, nested: Mapping[str, int], groups: Sequence[str], ranks: int, evidence: str
) -> None:
    """Refuse sizes and groups that do not fit a number of ranks. Raises as :func:`run`."""
    GroupPlan.of(Layout(ranks=None, **infer(call, nested, ranks, evidence)), groups, call=call)


def _answer(report: Report, *, as_json: bool) -> Answer:
    """What to print, on rank 0 only."""
    if report.rank:
        return Answer("")
    return Answer(_as_json(report) if as_json else as_text(report))


def as_text(report: Report) -> str:
    """A report as a person reads it: a line for each set of groups, then the sum.

    Example:
        >>> one = Checked(("dp",), 1, 2, 0.0004, (0, 1), 0.0005)
        >>> found = Verification((one,), 1, 0.0001, "dp=1 tp=0")
        >>> print(as_text(Report(0, {"dp": 2, "tp": 1}, "spawn", "cpu", "gloo", found, 0.5, 0.25)))
        dp=2 tp=1: 2 ranks, launcher spawn, device cpu, backend gloo; joined and built in 0.50 s
        OK  dp  1 group of 2   2 members met in 0.400 ms, at most 0.500 ms on ranks 0-1
        OK  tp  2 groups of 1  nothing to meet
        OK: 1 group checked in 0.25 s; rank 1 (dp=1 tp=0) came last, by 0.100 ms
    """
    found, total = report.found, math.prod(report.sizes.values())
    head = f"{pairs(report.sizes)}: {count(total, 'rank')}, launcher {report.launcher}, "
    head += f"device {report.device}, backend {report.backend}; "
    head += f"joined and built in {report.built:.2f} s"
    rows = [(" ".join(one.axes), one.num_groups, one.group_size, _met(one)) for one in found.groups]
    rows += [(a, total, 1, "nothing to meet") for a, size in report.sizes.items() if size == 1]
    cells = [(name, f"{count(n, 'group')} of {size}", said) for name, n, size, said in rows]
    wide = [max((len(cell[i]) for cell in cells), default=0) for i in (0, 1)]
    lines = [f"OK  {name:{wide[0]}}  {what:{wide[1]}}  {said}" for name, what, said in cells]
    groups = sum(one.num_groups for one in found.groups)
    last = f"OK: {count(groups, 'group')} checked in {report.checked:.2f} s"
    if found.slowest_rank is not None:
        slowest = f"rank {found.slowest_rank} ({found.coordinate})"
        last += f"; {slowest} came last, by {found.waited * 1e3:.3f} ms"
    return "\n".join([head, *lines, last])


def _met(one: Checked) -> str:
    """How the members of the groups over some axes met."""
    members = count(one.num_groups * one.group_size, "member")
    took = f"{one.seconds * 1e3:.3f} ms, at most {one.slowest_seconds * 1e3:.3f} ms"
    return f"{members} met in {took} on ranks {runs(sorted(one.slowest))}"


def _as_json(report: Report) -> str:
    """A report for a program, in one line; times in seconds."""
    said = asdict(report)
    del said["rank"], said["found"]
    found = asdict(report.found)
    for one in found["groups"]:
        one["members"] = one["num_groups"] * one["group_size"]
    return json.dumps({"ok": True, **said, **found})


def _add(parser: ArgumentParser) -> None:
    add_mesh(parser)
    add_groups(parser)


CHECK = Command("check", "build a mesh of real ranks, and prove every group", _add, run)
