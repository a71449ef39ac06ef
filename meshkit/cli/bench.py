"""The sizes, operations and groups of ``meshkit bench``, as typed.

``meshkit bench``: measure the collectives of a mesh, each axis alone and as in training.
"""

from __future__ import annotations

import re
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench.results import (
    DEFAULT_ALONE,
    OPERATIONS,
    BenchmarkRun,
    Target,
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
from .ranks import ENDING, add_mesh, check_launched, choose_shared_device, spawn_ranks, torch_errors

if TYPE_CHECKING:
    from ..bench.measure import Request


SIZES = "1K:16M:16"
FACTOR = 4
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # powers of two, as nccl-tests reads them


def read_size(text: str) -> int:
    """Read a number of bytes, with K, M or G for 2^10, 2^20 and 2^30."""
    match = re.fullmatch(r"([0-9]{1,13})([KMG]?)", text.upper(), re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1024, 64K or 16M")
    return int(match[1]) << UNITS[match[2]]


def format_size(number: int) -> str:
    """Return a number of bytes as :func:`read_size` reads it."""
    if number == 0:
        return "0"
    unit = next(unit for unit in reversed(UNITS) if number % (1 << UNITS[unit]) == 0)
    return f"{number >> UNITS[unit]}{unit}"


def read_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of a sweep: one size, or the least and the most with a factor between."""
    parts = text.split(":")
    if len(parts) > 3 or (len(parts) == 3 and not re.fullmatch("[0-9]{1,6}", parts[2], re.ASCII)):
        raise ArgumentTypeError(f"{text!r} is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M")
    least, most = read_size(parts[0]), read_size(parts[-1] if len(parts) == 1 else parts[1])
    try:
        return sweep_sizes(least, most, int(parts[2]) if len(parts) == 3 else FACTOR)
    except SpecError as error:
        raise ArgumentTypeError(f"{text!r} has no sizes from 1 byte to 1024G") from error


def check_sizes(text: str) -> str:
    """Return the text unchanged, as it is quoted in errors. Raises as :func:`read_sizes`."""
    read_sizes(text)
    return text


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


def check_max_alone(text: str) -> str:
    """Return the text unchanged, as it is quoted in errors. Raises as :func:`read_max_alone`."""
    read_max_alone(text)
    return text


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
    from ..bench.measure import run_benchmark

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
    from ..bench.measure import Request, SweepOptions

    max_alone = read_max_alone(args.alone)
    options = SweepOptions(args.warm_up, args.iters, args.timeout, max_alone)
    operations = args.ops or tuple(OPERATIONS)
    bytes_ = read_sizes(args.bytes)
    return Request(sizes, args.order, operations, targets, bytes_, options, args.device)


def _measure_under_launcher(request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Measure as one rank of a launcher, then shut the job down."""
    from ..bench.measure import run_benchmark
    from ..launch.join import shutdown

    try:
        with torch_errors(f"the measurement on rank {detect().rank}"):
            return run_benchmark(request, layout)
    finally:
        shutdown()


def _measure_locally(n: int, request: Request, layout: Layout) -> tuple[int, BenchmarkRun]:
    """Return the results of ``n`` ranks started here. Ctrl-C ends all after the current case."""
    from ..bench.measure import Interruption

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
