"""``meshkit bench``: measure the collectives of a mesh, each axis alone and as in training."""

from __future__ import annotations

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
from ...core.errors import SpawnError, SpecError
from ...core.grid.layout import Layout
from ...core.grid.sizes import infer_sizes, ordered_sizes
from ...launch.launchers.detect import detect
from ..command import Command, Result
from ..local_ranks import (
    ENDING,
    add_mesh,
    check_launched,
    choose_shared_device,
    spawn_ranks,
    torch_errors,
)
from ..options.bench import (
    FACTOR,
    SIZES,
    check_max_alone,
    check_sizes,
    format_size,
    read_max_alone,
    read_operations,
    read_sizes,
)
from ..options.grid import read_axis_sizes
from ..options.numbers import read_integer

if TYPE_CHECKING:
    from ...bench.run import Request


def run(args: Namespace) -> Result:
    """Measure a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    sizes = read_axis_sizes(args.words)
    layout = _layout(sizes, args)
    targets = _targets(layout, args.axes)
    request = _request(args, sizes, targets)
    if args.n is None:
        rank, results = _measure_under_launcher(request, layout)
    else:
        rank, results = _measure_locally(args.n, request, layout)
    ok = not results.wrong
    if rank:
        return Result(ok=ok, interrupted=results.interrupted)
    draw = partial(results_table, results)
    return Result(partial(run_to_json, results), draw, ok, results.interrupted)


def measure_on_shared_device(request: Request, layout: Layout) -> tuple[int, BenchmarkRun] | None:
    """Return rank 0 and its results, on the cpu if this machine has too few devices."""
    from ...bench.run import run_benchmark

    with torch_errors(f"the measurement on rank {detect().rank}"):
        device = choose_shared_device(request.device)
        rank, results = run_benchmark(replace(request, device=device), layout)
    return None if rank else (rank, results)


def _layout(sizes: Mapping[str, int], args: Namespace) -> Layout:
    """Return the layout of ``n`` ranks, or of the ranks of the launcher."""
    nested = ordered_sizes(sizes, args.order)
    if args.n is not None:
        return Layout(ranks=None, **infer_sizes(nested, args.n, f"-n {args.n}"))
    check_launched(sizes)
    world = detect()
    return Layout(ranks=None, **infer_sizes(nested, world.world_size, world.size_evidence))


def _targets(layout: Layout, names: Sequence[str] | None) -> tuple[Target, ...]:
    """Return the requested targets, or the default ones."""
    if names is not None:
        return parse_targets(layout, names)
    if not (targets := default_targets(layout)):
        summary = "every axis has 1 rank, so no data moves."
        raise SpecError(summary, fix="for example meshkit bench dp=2 -n 2.")
    return targets


def _request(args: Namespace, sizes: Mapping[str, int], targets: tuple[Target, ...]) -> Request:
    from ...bench.run import Request
    from ...bench.sweep import SweepOptions

    max_alone = read_max_alone(args.alone)
    options = SweepOptions(args.warm_up, args.iters, args.timeout, max_alone)
    operations = args.ops or tuple(OPERATIONS)
    bytes_ = read_sizes(args.bytes)
    return Request(sizes, args.order, operations, targets, bytes_, options, args.device)


def _measure_under_launcher(request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Measure as one rank of a launcher, then shut the job down."""
    from ...bench.run import run_benchmark
    from ...launch.join import shutdown

    try:
        with torch_errors(f"the measurement on rank {detect().rank}"):
            return run_benchmark(request, layout)
    finally:
        shutdown()


def _measure_locally(n: int, request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Return the results of ``n`` ranks started here. Ctrl-C ends all after the current case."""
    from ...bench.interrupt import Interruption

    cases = plan_cases(layout, request.operations, request.targets, request.sizes)
    barriers = num_barriers(layout, cases, request.options.max_alone)
    limit = barriers * request.options.timeout + ENDING
    smaller = f"--sizes {format_size(max(request.sizes[-1] // 4, 1))}"
    spawn = partial(spawn_ranks, device=request.device, timeout=limit, smaller=smaller)
    with tempfile.TemporaryDirectory(prefix="meshkit-") as folder:
        stop_file = str(Path(folder) / "stop")
        given = replace(request, stop_file=stop_file), layout
        with Interruption(stop_file) as interruption:
            try:
                results = spawn(measure_on_shared_device, n, given)
            except (SpawnError, EOFError, OSError):  # Ctrl-C also ends ranks that start
                if interruption:
                    raise KeyboardInterrupt from None
                raise
    return next(result for result in results if result is not None)


def _add_options(parser: ArgumentParser) -> None:
    add_mesh(parser)
    help = f"bytes of the total array, LEAST:MOST[:FACTOR] (default {SIZES}; FACTOR {FACTOR})"
    parser.add_argument(
        "--sizes", dest="bytes", type=check_sizes, default=SIZES, metavar="SIZES", help=help
    )
    help = f"operations, separated by commas (default: {','.join(OPERATIONS)})"
    parser.add_argument("--ops", type=read_operations, help=help)
    help = (
        "the groups to measure, separated by commas: dp, 'dp sp' for both axes in one group, dp+sp "
        "for both at once, world for all (default: each axis, each two, all, and those that "
        "overlap in training)"
    )
    parser.add_argument(
        "--axes", type=lambda text: tuple(text.split(",")), metavar="TARGETS", help=help
    )
    help = "timed calls for each row, fewer if they are slow (default 20)"
    at_least_2 = partial(read_integer, least=2)  # one call has no spread
    parser.add_argument("--iters", type=at_least_2, default=20, metavar="CALLS", help=help)
    help = "calls before the timed ones (default 3)"
    at_least_0 = partial(read_integer, least=0)
    parser.add_argument("--warm-up", type=at_least_0, default=3, metavar="CALLS", help=help)
    help = (
        "the number of groups of a target that are measured alone, one after the other, spread "
        f"over nodes; or all (default {DEFAULT_ALONE}, or fewer if there are fewer)"
    )
    default = str(DEFAULT_ALONE)
    parser.add_argument(
        "--alone", type=check_max_alone, default=default, metavar="GROUPS", help=help
    )


BENCH = Command(
    "bench",
    "measure every collective on a mesh of real ranks",
    _add_options,
    run,
    (
        "dp=2 tp=2 -n 4 --sizes 1K:64K --iters 5",
        "dp=2 -n 2 --ops all_reduce --sizes 64K",
    ),
)
