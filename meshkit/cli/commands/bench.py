"""``meshkit bench``: measure the collectives of a mesh, each axis alone and as in training."""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...bench.results.collectives import OPERATIONS
from ...bench.results.json_format import run_to_json
from ...bench.results.run import BenchmarkRun, num_barriers, plan_cases
from ...bench.results.table import results_table
from ...bench.results.targets import DEFAULT_ALONE, Target, default_targets, parse_targets
from ...core.errors import SpawnError, SpecError, format_error
from ...core.grid.sizes import infer_sizes
from ...core.grid.factor import ordered_sizes
from ...core.grid.layout import Layout
from ...launch.launchers.detect import detect
from .. import terminal
from ..command import Command, Result, to_ascii
from ..local_ranks import ENDING, failed, in_words, shared_device
from ..options.bench import (
    FACTOR,
    SIZES,
    as_size,
    check_memory,
    read_operations,
    read_sizes,
    read_turns,
    sizes_as_typed,
    turns_as_typed,
)
from ..options.command_line import command_line
from ..options.grid import integer, sizes_of
from ..options.mesh import add_mesh, check_company

if TYPE_CHECKING:
    from ...bench.run import Request


def run(asked: Namespace) -> Result:
    """Measure a mesh of ``n`` ranks started here, or of this rank and its peers. Collective.

    Args:
        asked: ``sizes``, ``n``, ``order``, ``device`` and ``timeout`` of the mesh; ``bytes``,
            ``ops``, ``axes``, ``iters``, ``warm_up``, ``alone``, ``plot`` and ``json``.

    Returns:
        What was found; nothing to print on ranks other than 0. Not ok where an element was wrong.

    Raises:
        SpecError: if sizes, order and ranks do not fit together, or a picture cannot be written,
            before a rank is started.
        UnknownAxisError: for an axis in ``axes`` that the mesh does not have.
        LaunchError: where this rank could not join.
        RankTimeoutError: where ranks did not arrive; or, as CollectiveError, did not come through a
            collective.
        SpawnError: any of these, where the ranks were started here.
    """
    sizes = sizes_of(asked.sizes, "meshkit bench")
    asked.line = command_line(asked, sizes)
    layout = _layout(sizes, asked)
    targets = _targets(layout, asked.axes)
    check_memory(asked.bytes, asked.n or detect().local_world_size or 1)
    if asked.plot is not None:
        from ...bench.plot import check_plot

        check_plot(asked.plot)
    request = _request(asked, sizes, targets)
    rank, results = (
        _here(request, layout) if asked.n is None else _started(asked.n, request, layout)
    )
    if rank:
        return Result("", ok=not results.wrong, interrupted=results.interrupted)
    drawn = _drawn(asked.plot, results)
    if asked.json:
        text = json.dumps(run_to_json(results))
    else:
        text = results_table(results, terminal.width(), ascii=not terminal.lines())
    return Result(text, ok=drawn and not results.wrong, interrupted=results.interrupted)


def measured_beside(request: Request, layout: Layout) -> tuple[int, BenchmarkRun] | None:
    """Return rank 0 and its results, on the cpu if this machine has too few devices."""
    from ...bench.run import run_benchmark

    with in_words(f"the measurement on rank {detect().rank}"):
        rank, results = run_benchmark(
            replace(request, device=shared_device(request.device)), layout
        )
    return None if rank else (rank, results)


def _layout(sizes: Mapping[str, int], asked: Namespace) -> Layout:
    """The grid that is asked for."""
    nested = ordered_sizes(sizes, asked.order)
    if asked.n is not None:
        return Layout(ranks=None, **infer_sizes(nested, asked.n, f"-n {asked.n}"))
    check_company(sizes)
    world = detect()
    return Layout(ranks=None, **infer_sizes(nested, world.world_size, world.size_evidence))


def _targets(layout: Layout, names: Sequence[str] | None) -> tuple[Target, ...]:
    """Return the requested targets, or the default ones.

    Raises:
        SpecError: if no group has two ranks, or a target has one.
        UnknownAxisError: if an axis does not exist.
    """
    if names is not None:
        return parse_targets(layout, names)
    if not (targets := default_targets(layout)):
        line = "every axis has 1 rank, so no data moves."
        raise SpecError(line, fix="for example meshkit bench dp=2 -n 2.")
    return targets


def _request(asked: Namespace, sizes: Mapping[str, int], targets: tuple[Target, ...]) -> Request:
    from ...bench.run import Request
    from ...bench.sweep import SweepOptions

    max_alone = read_turns(asked.alone)
    options = SweepOptions(asked.warm_up, asked.iters, asked.timeout, max_alone)
    operations = asked.ops or tuple(OPERATIONS)
    bytes_ = read_sizes(asked.bytes)
    return Request(sizes, asked.order, operations, targets, bytes_, options, asked.device)


def _here(request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Measure on this rank under its launcher, then shut the job down."""
    from ...bench.run import run_benchmark
    from ...launch.job import shutdown

    try:
        with in_words(f"the measurement on rank {detect().rank}"):
            return run_benchmark(request, layout)
    finally:
        shutdown()


def _started(n: int, request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """What ``n`` ranks started here found. Ctrl-C ends them together, after what they are at.

    Raises:
        SpawnError: with the words of the rank that failed first, and no traceback.
        KeyboardInterrupt: where Ctrl-C came before they could heed it.
    """
    from ...bench.interrupt import Interruption
    from ...launch.spawn.spawn import spawn
    from ...live.preload import preload_mesh

    preload_mesh()

    cases = plan_cases(layout, request.operations, request.targets, request.sizes)
    barriers = num_barriers(layout, cases, request.options.max_alone)
    limit = barriers * request.options.timeout + ENDING
    less = f"--sizes {as_size(max(request.sizes[-1] // 4, 1))}"
    with tempfile.TemporaryDirectory(prefix="meshkit-") as folder:
        stop = str(Path(folder) / "stop")
        with Interruption(stop) as interruption:
            try:
                given = replace(request, stop_file=stop), layout
                found = spawn(measured_beside, n, given, timeout=limit)
            except SpawnError as error:
                if any(isinstance(one, KeyboardInterrupt) for one in error.errors.values()):
                    raise KeyboardInterrupt from error
                raise failed(n, error, request.device, less) from error
            except (EOFError, OSError):  # what starts processes heard it too
                if interruption:
                    raise KeyboardInterrupt from None
                raise
    return next(one for one in found if one is not None)


def _drawn(path: str | None, results: BenchmarkRun) -> bool:
    """Draw the picture, if one is asked for; where that fails, say so, as the figures remain."""
    if path is None:
        return True
    from ...bench.plot import plot

    try:
        plot(results, path)
    except Exception as error:  # of matplotlib: anything
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        line = f"meshkit bench: --plot {path}: the picture could not be written."
        print(
            to_ascii(format_error(line, str(why), fix="--json, and draw what that says.")),
            file=sys.stderr,
        )
        return False
    return True


def _split(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(text.split(","))


def _add(parser: ArgumentParser) -> None:
    add_mesh(parser)
    sizes = f"bytes of the total array, LEAST:MOST[:FACTOR] (default {SIZES}; factor {FACTOR})"
    parser.add_argument(
        "--sizes", dest="bytes", type=sizes_as_typed, default=SIZES, metavar="SIZES", help=sizes
    )
    ops = f"operations, with commas between (default: {','.join(OPERATIONS)})"
    parser.add_argument("--ops", type=read_operations, help=ops)
    axes = "over which groups: dp, 'dp sp' for both axes in one, dp+sp for both at once, "
    axes += "world for all; commas between (default: each axis, each two, all, and those that "
    axes += "overlap in training)"
    parser.add_argument("--axes", type=_split, metavar="TARGETS", help=axes)
    iters = "calls that are counted for each row, fewer where they are slow (default 20)"
    two = partial(integer, least=2)  # one call has no spread
    parser.add_argument("--iters", type=two, default=20, metavar="CALLS", help=iters)
    warm = "calls before them (default 3)"
    some = partial(integer, least=0)
    parser.add_argument("--warm-up", type=some, default=3, metavar="CALLS", help=warm)
    alone = (
        "groups of a target that are measured alone, one after the other, spread over nodes; or "
    )
    alone += f"all (default {DEFAULT_ALONE}, or as many as there are)"
    parser.add_argument(
        "--alone", type=turns_as_typed, default=str(DEFAULT_ALONE), metavar="GROUPS", help=alone
    )
    plot = "also draw bandwidth by size into this PNG; needs matplotlib"
    parser.add_argument("--plot", metavar="FILE", help=plot)


BENCH = Command("bench", "measure every collective on a mesh of real ranks", _add, run)
