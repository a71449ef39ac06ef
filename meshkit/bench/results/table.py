"""A benchmark run as text, one table for each operation and target.

::

    all_reduce over dp, n = 4
    mode        bytes     us    p99   algbw   busbw  ratio  #wrong  calls
    ----------  -----  -----  -----  ------  ------  -----  ------  -----
    alone        1024  300.0  400.0  0.0034  0.0051              0     20
    concurrent   1024  330.0  600.0  0.0031  0.0047   1.10       0     20
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from ...core.draw.table import GAP, MIN_WIDTH, format_table, wrap_lines
from ...core.text import count_noun, format_sizes, summarize
from .fit import Fit
from .measurement import GroupTime, Measurement, Spread
from .run import BenchmarkRun, Slowest, slowdowns, slowest

HEADER = ["mode", "bytes", "us", "p99", "algbw", "busbw", "ratio", "#wrong", "calls"]
WIDE_HEADER = [*HEADER, "quartiles", "groups", "slowest group, rank"]
NUMBERS = range(HEADER.index("bytes"), WIDE_HEADER.index("slowest group, rank"))
LEGEND = (
    "us: the median call, on the slowest rank of its group. GB/s decimal, as nccl-tests: "
    "algbw = bytes / us, busbw = algbw * factor(op, n). ratio: all groups at once over one alone; "
    "for two axes at once, over the slower of the two. calls: timed calls of each group; "
    "fewer if they are slow."
)
OPTIONAL = ("p99", "calls", "algbw", "ratio")  # left out in this order if columns are few
BANDWIDTHS = "busbw in GB/s at the largest size, all groups of an axis at once"
Row = tuple[Measurement, list[str]]  # and its cells


def results_table(run: BenchmarkRun, width: int = 80, *, ascii: bool = False) -> str:
    """Return the whole run as text. Pure."""
    width = max(width, MIN_WIDTH)
    lines = [*wrap_lines(_setup(run), width), *_tables(run, width, ascii=ascii), ""]
    for slow in slowest(run.measurements):
        lines += wrap_lines(_slow(slow, run), width)
    lines += [*wrap_lines(LEGEND, width), "", *_bandwidths(run, width, ascii=ascii)]
    lines += wrap_lines(_verdict(run), width)
    return "\n".join(line.rstrip() for line in lines)


def _setup(run: BenchmarkRun) -> str:
    num_ranks = count_noun(math.prod(run.sizes.values()), "rank")
    hosts = count_noun(len(set(run.hosts.values())), "host")
    software = f"{run.backend} on {run.device}, torch {run.torch}"
    calls = f"up to {run.iters} calls a row after {run.warm_up} to warm up, float32"
    ranks = f"{num_ranks} on {hosts}, launcher {run.launcher}"
    return f"{format_sizes(run.sizes)}: {ranks}; {software}; {calls}"


def _tables(run: BenchmarkRun, width: int, *, ascii: bool) -> Iterator[str]:
    """Yield a heading, a table and the fits of each operation and target."""
    cells = [
        _cells(*row) for row in zip(run.measurements, slowdowns(run.measurements), strict=True)
    ]
    header, *cells = _aligned([WIDE_HEADER, *cells], width)
    natural = sum(map(len, header)) + 2 * (len(header) - 1)
    rows, fits = zip(run.measurements, cells, strict=True), run.fits
    for (op, target), block in groupby(rows, _operation_and_target):
        measured = list(block)
        first = measured[0][0]
        heading = f"{op} over {target}, n = {' and '.join(map(str, first.sizes))}"
        if first.groups < first.num_groups:
            heading += f"; {first.mode}: {first.groups} of {count_noun(first.num_groups, 'group')}"
        yield from ("", *wrap_lines(heading, width))
        if supported := [row for measurement, row in measured if measurement.timing]:
            yield from format_table(header, supported, width=natural, ascii=ascii).split("\n")
        for measurement, _ in measured:
            if measurement.unsupported is not None:
                case = f"{measurement.mode}, {measurement.case.bytes} bytes"
                yield from wrap_lines(f"{case}: not measured: {measurement.unsupported}", width)
        for fit in fits:
            if (fit.op, fit.target) == (op, target):
                yield from wrap_lines(_fit(fit), width)


def _operation_and_target(row: Row) -> tuple[str, str]:
    return row[0].case.op, row[0].case.target.name


def _cells(row: Measurement, ratio: float | None) -> list[str]:
    """Return the cells of a row in the order of ``WIDE_HEADER``."""
    if row.timing is None:
        return [""] * len(WIDE_HEADER)
    times = [_us(row.timing.median), _us(row.timing.p99)]
    speeds = [_optional(row.algbw, 4), _optional(row.busbw, 4), _optional(ratio, 2)]
    spreads = [_quartiles(row.timing.spread), _range(row.fastest, row.slowest), _slowest(row)]
    numbers = [str(row.case.bytes), *times, *speeds, str(row.wrong), str(row.calls)]
    return [row.mode, *numbers, *spreads]


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Return the columns that fit into a width, aligned; first those after ``HEADER`` are left out.

    The next ones to be left out are those of ``OPTIONAL``.
    """
    columns = [list(column) for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    shown = [*range(len(WIDE_HEADER))]
    for name in (*reversed(WIDE_HEADER[len(HEADER) :]), *OPTIONAL):
        if sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1) > width:
            shown.remove(WIDE_HEADER.index(name))
    padded = [
        [cell.rjust(widths[i]) if i in NUMBERS else cell.ljust(widths[i]) for cell in columns[i]]
        for i in shown
    ]
    return [list(row) for row in zip(*padded, strict=True)]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def _optional(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _quartiles(spread: Spread) -> str:
    return f"{_us(spread.low)}-{_us(spread.high)}"


def _range(fastest: GroupTime | None, slow: GroupTime | None) -> str:
    if fastest is None or slow is None:
        return ""
    return f"{_us(fastest.seconds)}-{_us(slow.seconds)}"


def _slowest(row: Measurement) -> str:
    if row.slowest is None or row.rank is None:
        return ""
    return f"{row.slowest.where}, rank {row.rank.rank} ({row.rank.where})"


def _slow(slow: Slowest, run: BenchmarkRun) -> str:
    """Return the slowest rank and group in a line; a single group is left out."""
    host = run.hosts[slow.rank.rank]
    rank = f"rank {slow.rank.rank} ({slow.rank.where}, host {host})"
    line = f"Slowest, {slow.target} {slow.mode}: {rank} in {slow.rank_rows} of "
    line += count_noun(slow.rows, "row")
    if len(slow.group.ranks) < len(run.hosts):
        ranks = summarize(slow.group.ranks)
        line += f"; group {slow.group.where} (ranks {ranks}) in {slow.group_rows}, "
        line += f"{slow.factor:.2f}x the fastest in the median row"
    return f"{line}."


def _fit(fit: Fit) -> str:
    """Return a line through times, in a line."""
    speed = f"bytes at {1e-9 / fit.beta:.4f} GB/s" if fit.beta else "nothing per byte"
    head = f"fit, {fit.mode}, {count_noun(len(fit.sizes), 'size')}"
    return f"{head}: {_us(fit.alpha)} us + {speed}, within {100 * fit.max_residual:.0f} %"


def _verdict(run: BenchmarkRun) -> str:
    done = f"{len(run.measurements)} of " * run.interrupted + count_noun(run.planned, "row")
    verdict = "Interrupted" if run.interrupted else "FAILED" if run.wrong else "OK"
    return f"{verdict}: {done} in {run.seconds:.1f} s; {count_noun(run.wrong, 'wrong element')}."


def _bandwidths(run: BenchmarkRun, width: int, *, ascii: bool) -> list[str]:
    """Return the bus bandwidth of each operation over each axis, at the largest size."""
    speeds: dict[str, dict[str, str]] = {}
    for row in run.measurements:  # ascending sizes; the mode with all groups at once comes last
        if row.busbw is not None:
            speeds.setdefault(row.case.target.name, {})[row.case.op] = f"{row.busbw:.4f}"
    if not speeds:
        return []
    ops = list(dict.fromkeys(op for column in speeds.values() for op in column))
    lines = wrap_lines(BANDWIDTHS, width)
    columns = [[name, *(column.get(op, "-") for op in ops)] for name, column in speeds.items()]
    while columns:
        shown = _num_fitting(columns, width - max(map(len, ["operation", *ops])))
        header, *rows = zip(["operation", *ops], *columns[:shown], strict=True)
        lines += [*format_table(header, rows, width=width, ascii=ascii).split("\n"), ""]
        columns = columns[shown:]
    return lines


def _num_fitting(columns: Sequence[Sequence[str]], width: int) -> int:
    """Return how many columns fit into a width, at least 1."""
    ends = accumulate(max(map(len, column)) + len(GAP) for column in columns)
    return max(1, sum(end <= width for end in ends))
