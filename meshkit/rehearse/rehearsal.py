"""Rehearse a job of any size: play some of its ranks on one machine, and compare what they do.

A rank runs the program of the job in a world of the real size, over groups that record and return
at once (:mod:`meshkit.rehearse.recording`). Rank 0 is played first: its mesh decides which ranks
stand for the others. :mod:`meshkit.rehearse.stage` forks the ranks.
"""

from __future__ import annotations

import random
import runpy
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..call import parse_integer, quotes_call
from ..errors import SpecError
from ..launch.log import Progress
from ..launch.spawn import check_arguments_fit, pickle_job
from ..launch.times import Time, parse_timeout
from ..launch.worker import Surroundings, context_for
from ..layout.layout import Layout
from ..layout.topology import Topology
from ..plan.step_time import MACHINES
from .mismatches import find_mismatches, uncounted_groups, uneven_data
from .rank import PORT, RehearsalRequest
from .record import MESSAGES, Names, Trace, corner_ranks, derive_layout, standing_corner
from .report import RehearsalReport
from .stage import Stage

MAX_ALL = 256  # ranks that ranks="all" plays
WITNESSES = 16
MAX_PASSES = 4  # of all ranks, until what they read is what all have passed
DEVICES = ("cpu", "meta")


@quotes_call("rehearse")
def rehearse(
    fn: Callable[..., object],
    world_size: int,
    args: Sequence[object] = (),
    *,
    nodes: int | None = None,
    ranks: str | Sequence[int] = "corners",
    device: str = "cpu",
    timeout: Time | None = 300,
    links: str = "h100",
    progress: bool = False,
) -> RehearsalReport:
    """Play ranks of a job of any size on this machine, and report whether their operations match.

    Local. Each played rank runs ``fn(*args)`` in a process of its own, in a world of the real size
    whose groups record every operation and return at once. Received values are plausible: those of
    the rank itself, or small ones that others have passed, for which all ranks are played again.
    ``init``, ``build_mesh``, ``init_process_group`` and DeviceMesh work as in the job. Ranks see
    the environment, the working folder and ``sys.path`` of the caller, and the variables of
    torchrun. Rank 0 prints to stderr, and the other ranks print nothing. No rank is left when this
    function returns or raises.

    Args:
        fn: a function that another process can import, as for :func:`meshkit.spawn`.
        world_size: the number of ranks of the job.
        args: its arguments.
        nodes: the number of nodes that the ranks divide over; None is one node.
        ranks: the ranks to play. ``"corners"``: the first, second and last index along each axis,
            those that exchange messages with them, and 16 random ranks, which must do the same as
            the corner that stands for them. ``"all"``, up to 256 ranks. Or a list.
        device: ``"cpu"``, or ``"meta"`` for models of any size: tensors have no values.
        timeout: how long the rehearsal may take, in seconds or as a timedelta.
        links: the machine whose links give seconds: ``"a100"``, ``"h100"``, ``"h200"``, ``"b200"``.
        progress: show a line on stderr while ranks are played.

    Returns:
        The report. ``print`` shows it, and ``raise_if_mismatched`` raises if a check failed.

    Raises:
        SpecError: if an argument is invalid. An error of a rank is a row of the report.

    Cost: as much as the program takes on one rank, for each played rank; as many ranks run at a
    time as there are cores. 60 to 90 ranks are played at corners of a mesh of four axes.

    Example:
        ``rehearse(train_step, 8192, nodes=1024).raise_if_mismatched()``
    """
    size, node_count = parse_integer(world_size), 1 if nodes is None else parse_integer(nodes)
    if size is None or size < 1:
        raise SpecError(f"world_size is {world_size!r}.", fix="an int of 1 or more.")
    if node_count is None or node_count < 1:
        raise SpecError(f"nodes is {nodes!r}.", fix="an int of 1 or more.")
    topology = Topology.even(size, nodes=node_count)
    limit = parse_timeout("timeout", timeout)
    if device not in DEVICES:
        raise SpecError(f"device is {device!r}.", fix="device='cpu', or device='meta'.")
    if links not in MACHINES:
        raise SpecError(f"links is {links!r}.", fix=f"one of {', '.join(MACHINES)}.")
    chosen = _parse_ranks(ranks, size)
    check_arguments_fit(fn, args, size)
    own = Surroundings.of_rank(0, size, "", PORT)
    request = RehearsalRequest(pickle_job(fn, args), size, node_count, device, own)
    shown = Progress("rehearse", sys.stderr if progress else None)
    began = time.monotonic()
    deadline = began + (limit.total_seconds() if limit else float("inf"))
    with Stage(context_for(fn), request, deadline, shown) as stage:
        return _rehearse_until_settled(stage, chosen, topology, links, began)


def _parse_ranks(ranks: object, world_size: int) -> list[int] | None:
    """Return the ranks of a list, ascending; None for corners."""
    if isinstance(ranks, str):
        if ranks == "all" and world_size > MAX_ALL:
            line = f"ranks='all' plays at most {MAX_ALL} ranks; the job has {world_size}."
            raise SpecError(line, fix="ranks='corners', or a list of ranks.")
        if ranks not in ("all", "corners"):
            raise SpecError(f"ranks is {ranks!r}.", fix="'corners', 'all' or a list of ranks.")
        return [*range(world_size)] if ranks == "all" else None
    numbers = [parse_integer(rank) for rank in ranks] if isinstance(ranks, Iterable) else []
    valid = sorted({rank for rank in numbers if rank is not None and 0 <= rank < world_size})
    if not numbers or len(valid) != len(numbers):
        fix = f"a list of different ranks from 0 to {world_size - 1}."
        raise SpecError(f"ranks is {ranks!r}.", fix=fix)
    return valid


def _rehearse_until_settled(
    stage: Stage, chosen: list[int] | None, topology: Topology, links: str, began: float
) -> RehearsalReport:
    """Play the ranks, and again if ranks have read values that others pass otherwise.

    Each pass receives what the ranks have passed to the collectives of the pass before.
    """
    for _ in range(MAX_PASSES):
        start = time.monotonic()
        report = _rehearse(stage, chosen, topology, links, began)
        traces = report.traces.values()
        reads = any({"own", "made up"} & {*t.reads} if report.ok else t.reads for t in traces)
        if not reads or not stage.start_again(report.ok):
            return report
        if time.monotonic() + 2 * (time.monotonic() - start) > stage.deadline:
            break
    line = "ranks have read other values in each pass, so that mismatches may follow from them."
    return replace(report, warnings=(*report.warnings, line))


def _rehearse(
    stage: Stage, chosen: list[int] | None, topology: Topology, links: str, began: float
) -> RehearsalReport:
    """Play the ranks and check them."""
    size = topology.world_size
    first = chosen[0] if chosen else 0
    stage.play([first])
    trace = stage.traces.get(first, Trace(first))
    names = Names(_layouts(trace, size))
    witnesses: list[int] = []
    if chosen is not None:
        stage.play(chosen)
    else:
        layout = names.layouts[0]
        corners = corner_ranks(layout)
        stage.play(corners)
        others = [rank for rank in range(size) if rank not in corners]
        drawn = random.Random(size).sample(others, min(WITNESSES, len(others)))
        axes = _play_peers(stage, names)
        witnesses = [rank for rank in sorted(drawn) if rank not in stage.traces]
        stage.play(witnesses)
    warnings: list[str] = []
    traces = stage.traces
    played = [rank for rank in traces if rank not in witnesses]
    for rank in witnesses if played else ():
        corner = standing_corner(layout, rank, played, axes)
        if difference := stage.differ(rank, corner, names):
            stage.play(_neighbors(layout, rank))
            warnings.append(
                f"{names.rank(rank)} does not do the same as {names.rank(corner)}, which stands "
                f"for it: {difference}."
            )
    mismatches = find_mismatches(traces, names)
    odd = {rank for mismatch in mismatches for rank in mismatch.ranks}
    matching = {rank: trace for rank, trace in traces.items() if rank not in odd}
    warnings += uncounted_groups(matching, names) + uneven_data(matching, names)
    return RehearsalReport(
        size,
        topology,
        names,
        dict(sorted(traces.items())),
        tuple(mismatches),
        tuple(warnings),
        dict(sorted(stage.raised.items())),
        dict(stage.lines),
        witnesses=tuple(rank for rank in witnesses if rank in traces),
        links=links,
        device=stage.request.device,
        seconds=time.monotonic() - began,
    )


def _layouts(trace: Trace, world_size: int) -> list[Layout]:
    """Return the meshes of a program, the one that names ranks first."""
    sizes = [*{tuple(sizes.items()): sizes for sizes in trace.layouts}.values()]
    layouts = [Layout.of(each) for each in sizes]
    whole = [each for each in layouts if each.num_ranks == world_size]
    whole.append(Layout.of(derive_layout(world_size, trace.groups)))  # torchtitan splits one axis
    main = max(whole, key=lambda each: sum(size > 1 for size in each.shape))
    return [main, *(each for each in layouts if each is not main)]


def _play_peers(stage: Stage, names: Names) -> set[str]:
    """Play the ranks whose messages corners get or need; return the axes of a pipeline.

    A peer that does something else than its corner is a stage of its own. One rank of each new
    stage is played with its own peers, until no new stage appears.
    """
    layout, axes, played = names.layouts[0], set[str](), [*stage.traces]
    peers = sorted({*_peers(stage.traces.values()), *stage.wanted})
    while new := [rank for rank in peers if rank not in played]:
        stage.play(new)
        stages: dict[tuple[tuple[str, int], ...], int] = {}
        for rank in sorted(new, key=lambda rank: _distance_to_second(layout, rank)):
            corner = standing_corner(layout, rank, played, axes)
            if stage.differ(rank, corner, names):
                own, other = layout.coordinate(rank), layout.coordinate(corner)
                index = tuple((axis, own[axis]) for axis in own if own[axis] != other[axis])
                stages.setdefault(index, rank)
        axes |= {axis for index in stages for axis, _ in index}
        played += new
        peers = _peers(stage.traces[rank] for rank in stages.values())
    return axes


def _distance_to_second(layout: Layout, rank: int) -> int:
    """Return along how many axes a rank is not the second one, which stands for most ranks."""
    indices = layout.coordinate(rank).values()
    return sum(i != min(1, size - 1) for i, size in zip(indices, layout.shape, strict=True))


def _peers(traces: Iterable[Trace]) -> list[int]:
    """Return the ranks with which ranks exchange messages."""
    messages = (op for trace in traces for op in trace.operations if op.name in MESSAGES)
    return sorted({op.peer for op in messages if op.peer >= 0})


def _neighbors(layout: Layout, rank: int) -> list[int]:
    """Return the first and the next rank in each group of one axis of a rank."""
    found: set[int] = set()
    for axis in layout.axes:
        peers = layout.peers(rank, axis).tolist()
        found |= {peers[0], peers[(peers.index(rank) + 1) % len(peers)]}
    return sorted(found)


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a script as ``python path arguments`` does. The function that a command rehearses."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")
