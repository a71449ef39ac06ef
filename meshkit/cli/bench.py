"""The command that measures the groups of a mesh of real ranks."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from typing import TYPE_CHECKING

from ..bench import report, results
from ..errors import SpecError
from ..launch.detect import detect
from ..layout.layout import Layout
from . import options
from .main import Command, Result
from .ranks import (
    ENDING,
    add_mesh,
    read_launched_layout,
    run_under_launcher,
    spawn_ranks,
    torch_errors,
)

if TYPE_CHECKING:
    from ..bench.measure import BenchRequest

BENCH_SIZES = "1K:16M:16"
FACTOR = 4  # between two sizes
DEFAULT_OPERATIONS = ("all_reduce",)
ALL_ITERS = 20  # calls of each row with --all
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # powers of two, as nccl-tests reads them


def read_size(text: str) -> int:
    """Read a number of bytes, with K, M or G for 2^10, 2^20 and 2^30."""
    match = re.fullmatch(r"([0-9]{1,13})([KMG]?)", text.upper(), re.ASCII)
    if match is None or not 1 <= (size := int(match[1]) << UNITS[match[2]]) <= results.MAX_BYTES:
        raise ArgumentTypeError(f"{text!r} is not 1 byte to 1024G, such as 1024, 64K or 16M")
    return size


def read_sweep_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of a sweep: one size, or the least and the most with a factor between."""
    least, most, factor, *rest = [*text.split(":"), "", ""]
    if rest[2:] or not re.fullmatch("[0-9]{0,6}", factor, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M")
    try:
        return results.sweep_sizes(
            read_size(least), read_size(most or least), int(factor or FACTOR)
        )
    except SpecError as error:
        raise ArgumentTypeError(f"{text!r} has no sizes from LEAST to MOST by FACTOR") from error


def read_operations(text: str) -> tuple[str, ...]:
    """Read operations that are separated by commas."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in results.OPERATIONS:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(results.OPERATIONS)}")
    return names


def read_max_alone(text: str) -> int | None:
    """Read the number of groups that are measured alone at most; None for all."""
    return None if text == "all" else options.read_count(text)


def run_bench(args: Namespace) -> Result:
    """Measure a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    layout = read_launched_layout(args)
    targets = results.default_targets(layout)
    if args.axes is not None:
        targets = results.parse_targets(layout, args.axes)
    if not targets:
        summary = "every axis has 1 rank, so no data moves."
        raise SpecError(summary, fix="for example meshkit bench dp=2 -n 2.")

    from ..bench.measure import LONGEST, BenchRequest, SweepOptions

    operations = args.ops or (tuple(results.OPERATIONS) if args.all else DEFAULT_OPERATIONS)
    iters = args.iters or (ALL_ITERS if args.all else None)
    sweep = SweepOptions(args.warm_up, iters, args.timeout, args.alone)
    sizes = options.read_axis_sizes(args.words)
    request = BenchRequest(sizes, args.order, operations, targets, args.bytes, sweep)
    if args.n is None:
        rank, run = run_under_launcher("", measure, args.device, request, layout)
    else:
        cases = results.plan_cases(layout, operations, targets, args.bytes)
        rounds = len(sweep.rounds or ["another one begins only if it ends in time"])
        waits = results.num_barriers(layout, cases, args.alone, rounds)
        limit = waits * args.timeout + LONGEST + ENDING
        smaller = f"--sizes {max(args.bytes[-1] // 4, 1)}"
        given = request, layout
        by_rank = spawn_ranks(measure, args.n, args.device, given, timeout=limit, smaller=smaller)
        rank, run = by_rank[0]
    ok = not run.wrong
    if rank:
        return Result(ok=ok)
    draw = partial(report.draw_rows if args.all else report.draw_screen, run)
    return Result(partial(report.run_to_json, run), draw, ok)


def measure(
    device: str | None, request: BenchRequest, layout: Layout
) -> tuple[int, results.BenchmarkRun]:
    """Return this rank and the results. Collective."""
    from ..bench.measure import run_benchmark

    with torch_errors(f"the measurement on rank {detect().rank}"):
        return run_benchmark(request, layout, device)


def _add_bench(parser: ArgumentParser) -> None:
    add_mesh(parser)
    add = parser.add_argument
    help = f"bytes of the total array, LEAST:MOST[:FACTOR] (default {BENCH_SIZES}; FACTOR {FACTOR})"
    add(
        "--sizes",
        dest="bytes",
        type=read_sweep_sizes,
        default=BENCH_SIZES,
        metavar="SIZES",
        help=help,
    )
    help = (
        f"operations, separated by commas, of {','.join(results.OPERATIONS)} "
        f"(default {','.join(DEFAULT_OPERATIONS)})"
    )
    add("--ops", type=read_operations, help=help)
    help = f"show every row: all operations, sizes and modes, {ALL_ITERS} calls each"
    add("--all", action="store_true", help=help)
    help = (
        "the groups to measure, separated by commas: dp, 'dp sp' for both axes in one group, dp+sp "
        "for both at once, world for all (default: each axis, each two, all, and those that "
        "overlap in training)"
    )
    add("--axes", type=lambda text: tuple(text.split(",")), metavar="TARGETS", help=help)
    help = "timed calls for each row, fewer if they are slow (default: as many as fit into 10 s)"
    at_least_2 = partial(options.read_integer, least=2)  # one call has no spread
    add("--iters", type=at_least_2, metavar="CALLS", help=help)
    help = "calls before the timed ones (default 3)"
    add(
        "--warm-up",
        type=partial(options.read_integer, least=0),
        default=3,
        metavar="CALLS",
        help=help,
    )
    help = (
        "the number of groups of a target that are measured alone, one after the other; or all "
        f"(default {results.DEFAULT_ALONE}, or fewer if there are fewer)"
    )
    add("--alone", type=read_max_alone, default=results.DEFAULT_ALONE, metavar="GROUPS", help=help)


BENCH = Command(
    "bench",
    "measure every collective on a mesh of real ranks",
    _add_bench,
    run_bench,
    ("dp=2 tp=2 -n 4 --sizes 1K:64K --iters 5", "dp=2 -n 2 --ops all_reduce --sizes 64K"),
)
