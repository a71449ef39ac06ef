"""A run of measurements as a person reads it: text of a width.

::

    all_reduce over dp, n = 4
      mode            bytes        us       p99    algbw    busbw ratio #wrong calls
      alone            1024     300.0     400.0   0.0034   0.0051            0    20
      concurrent       1024     330.0     600.0   0.0031   0.0047  1.10      0    20
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby

from .fit import Fit
from .measured import Measured, Slowest, ratios, slowest
from .measurement import GroupTime, Measurement
from .timing import Spread
from .words import count_noun, format_sizes, summarize

Row = tuple[Measurement, float | None]
LEGEND = (
    "us: the median call, on the slowest rank of its group. GB/s decimal, as nccl-tests: "
    "algbw = bytes / us, busbw = algbw * factor(op, n). ratio: all groups at once over one alone; "
    "for two axes at once, over the slower of the two. calls: those that count, of each group; "
    "fewer where they are slow."
)


def table(report: Measured, width: int = 80) -> str:
    """The whole run. Pure; 80 columns are used at least, and more show more.

    Args:
        report: what was found.
        width: columns to fit into.

    Returns:
        Lines without a final newline, and without blanks at their ends.
    """
    width = max(width, 80)
    lines = [*_hung(_machine(report), width), *_rows(report, width), ""]
    lines += [line for one in slowest(report.found) for line in _hung(_slow(one, report), width)]
    lines += [*_hung(LEGEND, width), *_hung(_end(report), width)]
    return "\n".join(line.rstrip() for line in lines)


def _machine(report: Measured) -> str:
    ranks = count_noun(math.prod(report.sizes.values()), "rank")
    hosts = count_noun(len(set(report.hosts.values())), "host")
    where = f"{ranks} on {hosts}, launcher {report.launcher}"
    kind = f"{report.backend} on {report.device}, torch {report.torch}"
    calls = f"up to {report.iters} calls a row after {report.warm_up} to warm up, float32"
    graph = ", in a CUDA graph: each replay counts once, by the mean" if report.graph else ""
    return f"{format_sizes(report.sizes)}: {where}; {kind}; {calls}{graph}"


Column = tuple[str, int, Callable[[Row], str]]

COLUMNS: tuple[Column, ...] = (
    ("mode", -10, lambda row: row[0].mode),
    ("bytes", 11, lambda row: str(row[0].case.bytes)),
    ("us", 10, lambda row: _us(row[0].timing.median) if row[0].timing else ""),
    ("p99", 10, lambda row: _us(row[0].timing.p99) if row[0].timing else ""),
    ("algbw", 9, lambda row: _optional(row[0].algbw, 4)),
    ("busbw", 9, lambda row: _optional(row[0].busbw, 4)),
    ("ratio", 6, lambda row: _optional(row[1], 2)),
    ("#wrong", 7, lambda row: str(row[0].wrong)),
    ("calls", 6, lambda row: str(row[0].calls)),
    ("quartiles", 20, lambda row: _quartiles(row[0].timing.spread) if row[0].timing else ""),
    ("groups", 20, lambda row: _between(row[0].fastest, row[0].slowest)),
    ("  slowest group, rank", -42, lambda row: _who(row[0])),
)


def _rows(report: Measured, width: int) -> Iterator[str]:
    """A heading for each operation and target, and its rows."""
    shown = [column for i, column in enumerate(COLUMNS) if 2 + _wide(i) <= width]
    rows, lines = zip(report.found, ratios(report.found), strict=True), report.fits
    for (op, target), some in groupby(rows, lambda r: (r[0].case.op, r[0].case.target.name)):
        block = list(some)
        head = f"{op} over {target}, n = {' and '.join(map(str, block[0][0].sizes))}"
        yield from ("", f"{head}{_sample(block[0][0])}")
        yield "  " + "".join(_cell(name, size) for name, size, _ in shown)
        for row in block:
            if row[0].lacks is not None:
                yield f"  {row[0].mode:<10}{row[0].case.bytes:>11}  not measured: {row[0].lacks}"
            else:
                yield "  " + "".join(_cell(text(row), size) for _, size, text in shown)
        for one in lines:
            if (one.op, one.target) == (op, target):
                yield f"  {_fitted(one)}"


def _sample(one: Measurement) -> str:
    """How many groups were measured alone, where it was not all of them."""
    fewer = one.groups < one.num_groups
    return f"; {one.mode}: {one.groups} of {count_noun(one.num_groups, 'group')}" if fewer else ""


def _wide(last: int) -> int:
    """How wide the columns are up to one."""
    return sum(abs(size) for _, size, _ in COLUMNS[: last + 1])


def _cell(text: str, size: int) -> str:
    """A text in its column: numbers at the right, words at the left."""
    return f"{text:>{size}}" if size > 0 else f"{text:<{-size}}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def _optional(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _quartiles(spread: Spread) -> str:
    return f"{_us(spread.low)}-{_us(spread.high)}"


def _between(fastest: GroupTime | None, slow: GroupTime | None) -> str:
    if fastest is None or slow is None:
        return ""
    return f"{_us(fastest.seconds)}-{_us(slow.seconds)}"


def _who(one: Measurement) -> str:
    if one.slowest is None or one.rank is None:
        return ""
    return f"  {one.slowest.where}, rank {one.rank.rank} ({one.rank.where})"


def _slow(one: Slowest, report: Measured) -> str:
    """Who was slow, in a line; of a single group nothing, as it is the fastest too."""
    where = f"rank {one.rank.rank} ({one.rank.where}, host {report.hosts[one.rank.rank]})"
    rank = f"{where} in {one.rank_rows} of {count_noun(one.rows, 'row')}"
    group = f"group {one.group.where} (ranks {summarize(one.group.ranks)}) in {one.group_rows}, "
    group += f"{one.factor:.2f}x the fastest in the middle row"
    single = len(one.group.ranks) == len(report.hosts)
    return f"Slowest, {one.target} {one.mode}: {rank}{'' if single else f'; {group}'}."


def _fitted(fit: Fit) -> str:
    """A line through times, in a line."""
    rate = f"bytes at {1e-9 / fit.beta:.4f} GB/s" if fit.beta else "nothing by the byte"
    head = f"fit, {fit.mode}, {count_noun(len(fit.sizes), 'size')}"
    return f"{head}: {_us(fit.alpha)} us + {rate}, within {100 * fit.worst:.0f} %"


def _end(report: Measured) -> str:
    """The verdict."""
    rows = f"{len(report.found)} of " * report.interrupted + count_noun(report.planned, "row")
    head = "Interrupted" if report.interrupted else "LOOK HERE" if report.wrong else "OK"
    took = f"{rows} in {report.seconds:.1f} s"
    return f"{head}: {took}; {count_noun(report.wrong, 'wrong element')}."


def _hung(text: str, width: int) -> list[str]:
    """A text in lines, all but the first set in."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
