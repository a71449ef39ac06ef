"""``meshkit bench``: measure the collectives of a mesh, each axis alone and as in training."""

from __future__ import annotations

import re
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench.results import (
    DEFAULT_ALONE,
    MAX_BYTES,
    OPERATIONS,
    BenchmarkRun,
    default_targets,
    num_barriers,
    parse_targets,
    plan_cases,
    results_table,
    run_to_json,
    sweep_sizes,
)
from ..core.errors import SpawnError, SpecError
from ..core.layout import Layout
from ..core.sizes import infer_sizes, ordered_sizes
from ..launch.detect import detect
from .main import Command, Result
from .options import read_axis_sizes, read_count, read_integer
from .ranks import ENDING, add_mesh, check_launched, spawn_ranks, torch_errors

if TYPE_CHECKING:
    from ..bench.measure import Request

SIZES = "1K:16M:16"
FACTOR = 4
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # powers of two, as nccl-tests reads them


def read_size(text: str) -> int:
    """Read a number of bytes, with K, M or G for 2^10, 2^20 and 2^30."""
    match = re.fullmatch(r"([0-9]{1,13})([KMG]?)", text.upper(), re.ASCII)
    if match is None or not 1 <= (size := int(match[1]) << UNITS[match[2]]) <= MAX_BYTES:
        raise ArgumentTypeError(f"{text!r} is not 1 byte to 1024G, such as 1024, 64K or 16M")
    return size


def read_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of a sweep: one size, or the least and the most with a factor between."""
    least, most, factor, *rest = [*text.split(":"), "", ""]
    if rest[2:] or not re.fullmatch("[0-9]{0,6}", factor, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M")
    try:
        return sweep_sizes(read_size(least), read_size(most or least), int(factor or FACTOR))
    except SpecError as error:
        raise ArgumentTypeError(f"{text!r} has no sizes from LEAST to MOST by FACTOR") from error


def read_operations(text: str) -> tuple[str, ...]:
    """Read operations that are separated by commas."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in OPERATIONS:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(OPERATIONS)}")
    return names


def read_max_alone(text: str) -> int | None:
    """Read the number of groups that are measured alone at most; None for all."""
    return None if text == "all" else read_count(text)


def run_bench(args: Namespace) -> Result:
    """Measure a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    sizes = read_axis_sizes(args.words)
    nested = ordered_sizes(sizes, args.order)
    if args.n is None:
        check_launched(sizes)
        world = detect()
        ranks = infer_sizes(nested, world.world_size, world.size_evidence)
    else:
        ranks = infer_sizes(nested, args.n, f"-n {args.n}")
    layout = Layout(ranks=None, **ranks)
    targets = default_targets(layout) if args.axes is None else parse_targets(layout, args.axes)
    if not targets:
        summary = "every axis has 1 rank, so no data moves."
        raise SpecError(summary, fix="for example meshkit bench dp=2 -n 2.")

    from ..bench.measure import Request, SweepOptions

    options = SweepOptions(args.warm_up, args.iters, args.timeout, args.alone)
    request = Request(sizes, args.order, args.ops, targets, args.bytes, options)
    measure_ranks = measure_under_launcher if args.n is None else measure_locally
    rank, results = measure_ranks(args.device, args.n, request, layout)
    ok, draw = not results.wrong, partial(results_table, results)
    if rank:
        return Result(ok=ok, interrupted=results.interrupted)
    return Result(partial(run_to_json, results), draw, ok, results.interrupted)


def measure(device: str | None, request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Return this rank and the results. Collective."""
    from ..bench.measure import run_benchmark

    with torch_errors(f"the measurement on rank {detect().rank}"):
        return run_benchmark(request, layout, device)


def measure_under_launcher(
    device: str | None, n: int | None, request: Request, layout: Layout
) -> tuple[int, BenchmarkRun]:
    """Measure as one rank of a launcher, then shut the job down."""
    from ..launch.join import shutdown

    try:
        return measure(device, request, layout)
    finally:
        shutdown()


def measure_locally(
    device: str | None, n: int, request: Request, layout: Layout
) -> tuple[int, BenchmarkRun]:
    """Return the results of ``n`` ranks started here. Ctrl-C ends all after the current case."""
    from ..bench.measure import Interruption

    cases = plan_cases(layout, request.operations, request.targets, request.sizes)
    barriers = num_barriers(layout, cases, request.options.max_alone)
    limit = barriers * request.options.timeout + ENDING
    smaller = f"--sizes {max(request.sizes[-1] // 4, 1)}"
    with tempfile.TemporaryDirectory(prefix="meshkit-") as folder:
        stop_file = str(Path(folder) / "stop")
        work = replace(request, stop_file=stop_file), layout
        with Interruption(stop_file) as interruption:
            try:
                return spawn_ranks(measure, n, device, work, timeout=limit, smaller=smaller)[0]
            except (SpawnError, EOFError, OSError):  # Ctrl-C also ends ranks that start
                if interruption:
                    raise KeyboardInterrupt from None
                raise


def _add_bench(parser: ArgumentParser) -> None:
    add_mesh(parser)
    add = parser.add_argument
    help = f"bytes of the total array, LEAST:MOST[:FACTOR] (default {SIZES}; FACTOR {FACTOR})"
    add("--sizes", dest="bytes", type=read_sizes, default=SIZES, metavar="SIZES", help=help)
    default = ",".join(OPERATIONS)
    help = f"operations, separated by commas (default: {default})"
    add("--ops", type=read_operations, default=default, help=help)
    help = (
        "the groups to measure, separated by commas: dp, 'dp sp' for both axes in one group, dp+sp "
        "for both at once, world for all (default: each axis, each two, all, and those that "
        "overlap in training)"
    )
    add("--axes", type=lambda text: tuple(text.split(",")), metavar="TARGETS", help=help)
    help = "timed calls for each row, fewer if they are slow (default 20)"
    at_least_2 = partial(read_integer, least=2)  # one call has no spread
    add("--iters", type=at_least_2, default=20, metavar="CALLS", help=help)
    help = "calls before the timed ones (default 3)"
    add("--warm-up", type=partial(read_integer, least=0), default=3, metavar="CALLS", help=help)
    help = (
        "the number of groups of a target that are measured alone, one after the other, spread "
        f"over nodes; or all (default {DEFAULT_ALONE}, or fewer if there are fewer)"
    )
    add("--alone", type=read_max_alone, default=DEFAULT_ALONE, metavar="GROUPS", help=help)


BENCH = Command(
    "bench",
    "measure every collective on a mesh of real ranks",
    _add_bench,
    run_bench,
    ("dp=2 tp=2 -n 4 --sizes 1K:64K --iters 5", "dp=2 -n 2 --ops all_reduce --sizes 64K"),
)
