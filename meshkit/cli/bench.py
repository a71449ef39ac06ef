"""``meshkit bench``: measure the collectives of a mesh, each axis alone and as in training."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.axes import infer
from ..core.bandwidth import OPERATIONS, sweep_sizes
from ..core.errors import SpawnError, SpecError, told
from ..core.factor import nested_sizes
from ..core.layout import Layout
from ..core.measured import Measured
from ..core.measured_json import as_fields
from ..core.measured_table import table
from ..core.targets import Target, every_target, typed_targets
from ..launch.environment import detect
from . import Answer, Command, plain, terminal
from .grid import integer, sizes_of
from .grid_asked import add_mesh, check_company
from .local import failed, in_words, shared_device
from .typed import Typed, typed

if TYPE_CHECKING:
    from ..bench.bench import Request

SIZES = "1K:16M:16"
FACTOR = 4
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # binary, as nccl-tests reads them


def run(asked: Namespace) -> Answer:
    """Measure a mesh of ``n`` ranks started here, or of this rank and its peers. Collective.

    Args:
        asked: ``sizes``, ``n``, ``order``, ``device`` and ``timeout`` of the mesh; ``bytes``,
            ``ops``, ``axes``, ``iters``, ``warm_up``, ``plot`` and ``json``.

    Returns:
        What was found; nothing to print on ranks other than 0. Not ok where an element was wrong.

    Raises:
        SpecError: where sizes, order and ranks do not fit together, or a picture cannot be
            written, before a rank is started.
        UnknownAxisError: for an axis in ``axes`` that the mesh does not have.
        LaunchError: where this rank could not join.
        RankTimeoutError: where ranks did not arrive; or, as CollectiveError, did not come through a
            collective.
        SpawnError: any of these, where the ranks were started here.
    """
    sizes = sizes_of(asked.sizes, "meshkit bench")
    call = typed(asked, sizes)
    layout = _layout(call, sizes, asked)
    targets = _targets(call, layout, asked.axes)
    if asked.plot is not None:
        from ..bench.plot import check_plot

        check_plot(asked.plot)
    request = _request(asked, sizes, targets)
    rank, report = _here(request, layout) if asked.n is None else _started(asked.n, request, layout)
    if rank:
        return Answer("", ok=not report.wrong, interrupted=report.interrupted)
    drawn = _drawn(asked.plot, report)
    text = json.dumps(as_fields(report)) if asked.json else table(report, terminal.width())
    return Answer(text, ok=drawn and not report.wrong, interrupted=report.interrupted)


def measured_beside(request: Request, layout: Layout) -> tuple[int, Measured] | None:
    """What rank 0 of ranks that share a machine found: on the cpu where it has too few devices."""
    from ..bench.bench import bench

    with in_words(f"the measurement on rank {detect().rank}"):
        rank, report = bench(replace(request, device=shared_device(request.device)), layout)
    return None if rank else (rank, report)


def _layout(call: Typed, sizes: Mapping[str, int], asked: Namespace) -> Layout:
    """The grid that is asked for."""
    nested = nested_sizes(call, sizes, asked.order)
    if asked.n is not None:
        return Layout(ranks=None, **infer(call, nested, asked.n, f"-n {asked.n}"))
    check_company(call, sizes)
    world = detect()
    return Layout(ranks=None, **infer(call, nested, world.world_size, world.size_evidence))


def _targets(call: Typed, layout: Layout, names: Sequence[str] | None) -> tuple[Target, ...]:
    """The targets that are asked for: those typed, or all.

    Raises:
        SpecError: where no group has two ranks, or a target has one.
        UnknownAxisError: for an axis that there is not.
    """
    if names is not None:
        return typed_targets(layout, names, call)
    if not (found := every_target(layout)):
        line = f"{call}: every axis has 1 rank: nothing travels."
        raise SpecError(told(line, fix="meshkit bench dp=2 -n 2, say."))
    return found


def _request(asked: Namespace, sizes: Mapping[str, int], targets: tuple[Target, ...]) -> Request:
    from ..bench.bench import Request
    from ..bench.sweep import Terms

    terms = Terms(asked.warm_up, asked.iters, asked.timeout)
    operations = asked.ops or OPERATIONS
    return Request(sizes, asked.order, operations, targets, asked.bytes, terms, asked.device)


def _here(request: Request, layout: Layout) -> tuple[int, Measured]:
    """What this rank under its launcher found, and then the job is left."""
    from ..bench.bench import bench
    from ..launch.join import shutdown

    try:
        with in_words(f"the measurement on rank {detect().rank}"):
            return bench(request, layout)
    finally:
        shutdown()


def _started(n: int, request: Request, layout: Layout) -> tuple[int, Measured]:
    """What ``n`` ranks started here found. Ctrl-C ends them together, after what they are at.

    Raises:
        SpawnError: with the words of the rank that failed first, and no traceback.
        KeyboardInterrupt: where Ctrl-C came before they could heed it.
    """
    from ..bench.interruption import Interruption
    from ..launch.spawn import spawn

    with tempfile.TemporaryDirectory(prefix="meshkit-") as folder:
        stop = str(Path(folder) / "stop")
        with Interruption(stop) as interruption:
            try:
                found = spawn(measured_beside, n, (replace(request, stop=stop), layout))
            except SpawnError as error:
                if any(isinstance(one, KeyboardInterrupt) for one in error.errors.values()):
                    raise KeyboardInterrupt from error
                raise failed(n, error) from error
            except (EOFError, OSError):  # what starts processes heard it too
                if interruption:
                    raise KeyboardInterrupt from None
                raise
    return next(one for one in found if one is not None)


def _drawn(path: str | None, report: Measured) -> bool:
    """Draw the picture, if one is asked for; where that fails, say so, as the figures remain."""
    if path is None:
        return True
    from ..bench.plot import plot

    try:
        plot(report, path)
    except OSError as error:
        line = f"meshkit bench: --plot {path}: the picture could not be written: {error.strerror}."
        print(plain(line), file=sys.stderr)
        return False
    return True


def read_size(text: str) -> int:
    """Bytes as typed: a number, with K, M or G for 2^10, 2^20 and 2^30.

    Raises:
        ArgumentTypeError: where it is none.

    Example:
        >>> read_size("64K"), read_size("100")
        (65536, 100)
    """
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)", text.upper(), re.ASCII)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1024, 64K or 16M")
    return int(found[1]) << UNITS[found[2]]


def read_sizes(text: str) -> tuple[int, ...]:
    """The sizes of a sweep as typed: one, or the least and the most, and the factor between.

    Raises:
        ArgumentTypeError: where there are none.

    Example:
        >>> read_sizes("1K:64K"), read_sizes("1M"), read_sizes("1K:4K:2")
        ((1024, 4096, 16384, 65536), (1048576,), (1024, 2048, 4096))
    """
    parts = text.split(":")
    if len(parts) > 3 or (len(parts) == 3 and not re.fullmatch("[0-9]{1,6}", parts[2], re.ASCII)):
        raise ArgumentTypeError(f"{text!r} is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M")
    least, most = read_size(parts[0]), read_size(parts[-1] if len(parts) == 1 else parts[1])
    try:
        return sweep_sizes(least, most, int(parts[2]) if len(parts) == 3 else FACTOR)
    except SpecError as error:
        raise ArgumentTypeError(f"{text!r} holds no sizes from 1 byte to 1024G") from error


def read_operations(text: str) -> tuple[str, ...]:
    """Operations as typed, with commas between.

    Raises:
        ArgumentTypeError: for one that there is not.

    Example:
        >>> read_operations("broadcast,all_reduce")
        ('broadcast', 'all_reduce')
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in OPERATIONS:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(OPERATIONS)}")
    return names


def _split(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(text.split(","))


def _add(parser: ArgumentParser) -> None:
    add_mesh(parser)
    sizes = f"bytes of the total array, LEAST:MOST[:FACTOR] (default {SIZES}; factor {FACTOR})"
    default = read_sizes(SIZES)
    parser.add_argument(
        "--sizes", dest="bytes", type=read_sizes, default=default, metavar="SIZES", help=sizes
    )
    ops = f"operations, with commas between (default: {','.join(OPERATIONS)})"
    parser.add_argument("--ops", type=read_operations, help=ops)
    axes = "over which groups: dp, 'dp sp' for both axes in one, dp+sp for both at once; commas "
    axes += "between (default: each axis, each two, all, and those that overlap in training)"
    parser.add_argument("--axes", type=_split, metavar="TARGETS", help=axes)
    iters = "calls that are counted for each row, fewer where they are slow (default 20)"
    two = partial(integer, least=2)  # one call has no spread
    parser.add_argument("--iters", type=two, default=20, metavar="CALLS", help=iters)
    warm = "calls before them (default 3)"
    some = partial(integer, least=0)
    parser.add_argument("--warm-up", type=some, default=3, metavar="CALLS", help=warm)
    plot = "also draw bandwidth by size into this PNG; needs matplotlib"
    parser.add_argument("--plot", metavar="FILE", help=plot)


BENCH = Command("bench", "measure every collective on a mesh of real ranks", _add, run)
