"""The command that measures the groups of a mesh of real ranks."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..bench import report, results
from ..bench.limits import SAVE_AGAIN, Limits, find_misses, parse_saved, resolve_limits
from ..bench.page import draw_run
from ..bench.slow import MIN_JUDGED
from ..errors import SpecError
from ..launch.detect import detect
from ..layout.layout import Layout
from . import options
from .main import Command, Result
from .ranks import (
    ENDING,
    add_mesh,
    announcing_refusal,
    check_device,
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
    known = {options.letters(name): name for name in results.OPERATIONS}  # allreduce, all-reduce
    names = text.split(",")
    for name in names:
        if options.letters(name) not in known:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(results.OPERATIONS)}")
    return tuple(dict.fromkeys(known[options.letters(name)] for name in names))


def read_max_alone(text: str) -> int | None:
    """Read the number of groups that are measured alone at most; None for all."""
    return None if text == "all" else options.read_count(text)


def read_limits(text: str, unit: str, most: float) -> list[tuple[str, float]]:
    """Read numbers for targets, separated by commas: ``tp=200,dp=30``."""
    limits = []
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        if not equals:
            raise ArgumentTypeError(f"{text!r} is not TARGET=NUMBER, such as dp=30")
        limits.append((name, options.parse_number(number, unit, most)))
    return limits


@dataclass(frozen=True)
class BenchPlan:
    """A benchmark as typed: all that can be known before a rank starts."""

    args: Namespace
    layout: Layout
    request: BenchRequest
    limits: Limits

    def run(self) -> Result:
        """Measure ranks started here, or this rank and its peers. Collective."""
        args, request, layout = self.args, self.request, self.layout
        if args.n is None:
            return self.judge(*run_under_launcher("", measure, args.device, request, layout))
        smaller = f"--sizes {max(request.sizes[-1] // 4, 1)}"
        given, limit = (request, layout), self._time_limit()
        ranks = partial(spawn_ranks, timeout=limit, smaller=smaller)
        return self.judge(*ranks(measure, args.n, args.device, given)[0])

    def judge(self, rank: int, run: results.BenchmarkRun) -> Result:
        """Return the result on a rank, with the limits that were missed. Rank 0 writes the file."""
        args = self.args
        if self.limits.saved is not None:
            self.limits.saved.check_device(run)
        misses = find_misses(run, self.limits)
        ok = report.is_ok(run, misses)
        if rank:
            return Result(ok=ok)
        if args.save is not None:
            options.write_file("result", args.save, json.dumps(report.run_to_json(run, misses)))
        if args.html is not None:
            options.write_file("page", args.html, draw_run(run, misses))
        draw = partial(report.draw_rows if args.all else report.draw_screen, run, misses)
        return Result(partial(report.run_to_json, run, misses), draw, ok)

    def _time_limit(self) -> float:
        """Return the seconds after which ranks that are started here are ended."""
        from ..bench.measure import AGAIN, LONGEST

        request, sweep = self.request, self.request.options
        cases = results.plan_cases(self.layout, request.operations, request.targets, request.sizes)
        rounds = len(sweep.rounds or ["another one begins only if it ends in time"])
        waits = results.num_barriers(
            self.layout, cases, sweep.max_alone, rounds, overlap_compute=sweep.overlap_compute
        )
        return waits * sweep.timeout + LONGEST + AGAIN + ENDING


def run_bench(args: Namespace) -> Result:
    """Measure a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    return plan_bench(args).run()


def plan_bench(args: Namespace) -> BenchPlan:
    """Return the benchmark of the options, or raise if anything in them is wrong. Local."""
    layout, saved = read_launched_layout(args), None
    operations = tuple(results.OPERATIONS) if args.all else DEFAULT_OPERATIONS
    targets, sizes = results.default_targets(layout), read_sweep_sizes(BENCH_SIZES)
    # by time, a size that has become too slow would be left out
    iters = ALL_ITERS if args.all or args.save or args.against else None
    if args.against is not None:
        with announcing_refusal(args):
            text = options.read_json_file("against", args.against, SAVE_AGAIN)
            saved = parse_saved(layout, text)
        operations, targets, sizes = saved.operations, saved.targets, saved.sizes
    operations, sizes, iters = args.ops or operations, args.bytes or sizes, args.iters or iters
    if args.axes is not None:
        targets = results.parse_targets(layout, args.axes)
    if not targets:
        summary = "every axis has 1 rank, so no data moves."
        raise SpecError(summary, fix="for example meshkit bench dp=2 -n 2.")
    if saved is not None:
        saved.check_measures(results.plan_cases(layout, operations, targets, sizes))
    for option in ("save", "against"):
        needed = MIN_JUDGED * results.MIN_CALLS
        if getattr(args, option) is not None and iters is not None and iters < needed:
            summary = f"--{option} needs {needed} calls, in {MIN_JUDGED} rounds, to know the noise."
            raise SpecError(summary, fix=f"--iters {needed}, or leave it out.")
    for option in ("save", "html"):
        if getattr(args, option) is not None and not detect().rank:
            with announcing_refusal(args):
                options.check_output_file(option, getattr(args, option))
    limits = Limits(
        resolve_limits(layout, targets, "--min-busbw", args.min_busbw or ()),
        resolve_limits(layout, targets, "--max-latency", args.max_latency or ()),
        saved,
    )

    from ..bench.measure import BenchRequest, SweepOptions

    check_device(args.device)
    sweep = SweepOptions(args.warm_up, iters, args.timeout, args.alone, args.overlap_compute)
    axes = options.read_axis_sizes(args.words)
    request = BenchRequest(axes, args.order, operations, targets, sizes, sweep)
    return BenchPlan(args, layout, request, limits)


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
    help = "also measure how much of each collective hides behind a matrix product"
    add("--overlap-compute", action="store_true", help=help)
    help = "also write a page with time and busbw over size for each target"
    add("--html", metavar="FILE", help=help)
    add_limits(parser)


def add_limits(parser: ArgumentParser) -> None:
    """Add the options whose limits decide the exit status, and ``--save``."""
    for flag, unit, most, help in (
        ("--min-busbw", "GB/s", 1e6, "fail if a group has less at the largest size: tp=200,dp=30"),
        ("--max-latency", "us", 1e9, "fail if a group takes longer at the smallest size: dp=30"),
    ):
        read = partial(read_limits, unit=unit, most=most)
        metavar = f"TARGET={unit.upper()}"
        parser.add_argument(flag, type=read, action="extend", metavar=metavar, help=help)
    help = f"write the result into a file, which is replaced ({ALL_ITERS} calls each)"
    parser.add_argument("--save", metavar="FILE", help=help)
    help = (
        "measure what a file of --save has, and fail if a group takes longer than in the file, by "
        "more than its noise"
    )
    parser.add_argument("--against", metavar="FILE", help=help)


BENCH = Command(
    "bench",
    "measure the groups of a mesh of real ranks, and name slow ones",
    _add_bench,
    run_bench,
    ("dp=2 tp=2 -n 4 --sizes 1K:64K --iters 5", "dp=2 -n 2 --ops all_reduce --sizes 64K"),
)
