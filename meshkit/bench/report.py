"""The report of a benchmark: one screen, a table of all rows, and JSON. Pure: no torch.

The screen has a line for each target: the latency at the smallest size and the busbw at the
largest, of one group alone and of all groups at once, and the slowest of these.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from ..layout.layout import Layout
from ..text import (
    count_noun,
    format_figure,
    format_sizes,
    format_table,
    name_ranks,
    shorten,
    summarize,
    wrap_lines,
)
from .results import ALONE, BenchmarkRun, Case, Measurement, Target, is_at_once, slowdowns
from .slow import GroupTime

HEADER = ("groups", "first ms", "us", "us all", "GB/s", "GB/s all", "wrong", "slowest group")
SCREEN_LEGEND = (
    "us: the median call of the smallest size; GB/s: busbw of the largest, as nccl-tests; each of "
    "one group alone, and of all at once. The slowest group has its factor to the median of its "
    "peers, and SLOW if that is more than its noise. first ms: the first call of each group. "
    "--all shows every row."
)
BESIDE_HEADER = "beside a product", "bytes", "us", "product us", "in turn us", "both us", "hidden %"
BESIDE_LEGEND = (
    "us: all groups at once. in turn us: the collective, then a matrix product, with nothing "
    "hidden. both us: the collective begun, the product, the wait. hidden %: of the shorter one."
)
MAX_MISSES = 12  # sentences on the screen
FORMATS = {  # column of the table to the format of its numbers
    **dict.fromkeys(("mode", "bytes"), ""),
    **{"us": ".1f", "p99": ".1f", "algbw": ".4f", "busbw": ".4f", "ratio": ".2f"},
    **dict.fromkeys(("wrong", "calls"), ""),
}
LEGEND = (
    "us: the median call, on the slowest rank of its group. GB/s decimal, as nccl-tests: "
    "algbw = bytes / us, busbw = algbw * factor(op, n). ratio: all groups at once over one alone; "
    "for two axes at once, over the slower of the two. calls: timed calls of each group; "
    "fewer if they are slow."
)


def draw_screen(
    run: BenchmarkRun, misses: Sequence[Miss] = (), *, width: int = 80, ascii: bool = False
) -> str:
    """Return a line for each operation and target, the named groups and the outcome."""
    table = format_table(summary_cells(run), HEADER, width=width, ascii=ascii)
    end = _end_lines(run, misses, SCREEN_LEGEND, width)
    beside = _beside_lines(run, width, ascii=ascii)
    return "\n".join([*_title_lines(run, width), "", table, "", *beside, *end])


def draw_rows(
    run: BenchmarkRun, misses: Sequence[Miss] = (), *, width: int = 80, ascii: bool = False
) -> str:
    """Return every row, one table for each operation and target, and the same end."""
    lines = _title_lines(run, width)
    for _, group in groupby(result_rows(run), itemgetter("op", "axes")):
        rows = [*group]
        first, heading = rows[0], name_row(rows[0])
        if first["groups"] < first["num_groups"]:
            num_groups = count_noun(first["num_groups"], "group")
            heading += f"; {first['mode']}: {first['groups']} of {num_groups}"
        lines += ["", *wrap_lines(heading, width)]
        cells = [
            ["-" if row[name] is None else format(row[name], FORMATS[name]) for name in FORMATS]
            for row in rows
        ]
        lines.append(format_table(cells, [*FORMATS], width=width, ascii=ascii))
    lines += ["", *_beside_lines(run, width, ascii=ascii)]
    return "\n".join([*lines, *_end_lines(run, misses, LEGEND, width)])


def name_row(row: Mapping[str, Any]) -> str:
    """Return the operation, target and ranks of a group of a row of ``result_rows``."""
    return f"{row['op']} over {row['axes']}, n = {' and '.join(map(str, row['ranks']))}"


def describe_job(run: BenchmarkRun) -> str:
    """Return the ranks, hosts and software of a run."""
    ranks = count_noun(math.prod(run.sizes.values()), "rank")
    hosts = count_noun(len(set(run.hosts)), "host")
    software = f"launcher {run.launcher}; {run.backend} on {run.device}, torch {run.torch}"
    return f"{ranks} on {hosts}, {software}"


def describe_sizes(run: BenchmarkRun) -> str:
    """Return the operations and sizes that were measured."""
    operations = ", ".join(dict.fromkeys(row.case.op for row in run.measurements))
    sizes = sorted({row.case.bytes for row in run.measurements})
    span = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    return f"{operations} of {span} bytes, float32"


def describe_groups(run: BenchmarkRun, misses: Sequence[Miss]) -> list[str]:
    """Return a sentence for each slow group and for each missed limit, ``MAX_MISSES`` at most."""
    missed = [miss.describe() for miss in misses]
    return [
        *(group.describe() for group in slow_groups(run)),
        *shorten(missed, MAX_MISSES, " miss a limit; --json has all."),
    ]


def describe_outcome(run: BenchmarkRun, misses: Sequence[Miss]) -> str:
    """Return the last line: OK or FAILED, and the counts."""
    slow = len(slow_groups(run))
    counts = [f"{count_noun(slow, 'slow group')}; "] * bool(slow)
    counts += [f"{count_noun(len(misses), 'missed limit')}; "] * bool(misses)
    done, wrong = count_noun(len(run.measurements), "row"), count_noun(run.wrong, "wrong element")
    outcome = "OK" if is_ok(run, misses) else "FAILED"
    return f"{outcome}: {done} in {run.seconds:.1f} s; {''.join(counts)}{wrong}."


def _title_lines(run: BenchmarkRun, width: int) -> list[str]:
    title = f"{format_sizes(run.sizes)}: {describe_job(run)}"
    return [*wrap_lines(title, width), *wrap_lines(describe_sizes(run), width)]


def _end_lines(run: BenchmarkRun, misses: Sequence[Miss], legend: str, width: int) -> list[str]:
    texts = legend, *describe_groups(run, misses), describe_outcome(run, misses)
    return [line for text in texts for line in wrap_lines(text, width)]


def is_ok(run: BenchmarkRun, misses: Sequence[Miss]) -> bool:
    """Return whether no element was wrong and no limit was missed."""
    return not run.wrong and not misses


def summary_cells(run: BenchmarkRun) -> list[list[str]]:
    """Return the cells of the screen: a line for each operation and target."""
    groups = groupby(run.measurements, attrgetter("case.op", "case.target"))
    return [[*_summary_line(run, [*rows])] for _, rows in groups]


def _beside_lines(run: BenchmarkRun, width: int, *, ascii: bool) -> list[str]:
    """Return the table of collectives beside a matrix product, if they were measured."""
    if not run.beside:
        return []
    table = format_table(beside_cells(run), BESIDE_HEADER, width=width, ascii=ascii)
    return [table, "", *wrap_lines(beside_legend(run), width), ""]


def beside_cells(run: BenchmarkRun) -> list[list[str]]:
    """Return the cells of collectives beside a matrix product, a line for each."""
    return [
        [
            _line_name(run, row.case),
            str(row.case.bytes),
            *map(format_us, (row.collective, row.product, row.in_turn, row.both)),
            f"{100 * row.hidden:.0f}",
        ]
        for row in run.beside
    ]


def beside_legend(run: BenchmarkRun) -> str:
    """Return the meaning of the columns of ``beside_cells``."""
    shared = " On the cpu both compete for its cores." * (run.device == "cpu")
    return f"{BESIDE_LEGEND}{shared}"


def _summary_line(run: BenchmarkRun, rows: Sequence[Measurement]) -> Iterator[str]:
    """Yield the cells of an operation and target, from its rows by ascending size."""
    target = rows[0].case.target
    yield _line_name(run, rows[0].case)
    first = [max(call.seconds) for call in run.first_calls if (call.axes,) == target.groups]
    yield format_figure(first[0] * 1e3) if first else "-"
    alone = [row for row in rows if row.mode == ALONE]
    together = [row for row in rows if row.mode != ALONE]
    for part in (alone, together):
        yield format_us(part[0].median) if part else "-"
    for part in (alone, together):
        yield format_figure(part[-1].busbw) if part and part[-1].busbw else "-"
    yield str(sum({row.case: row.wrong for row in rows}.values()))
    judged = [(row, time) for row in together for time in row.by_group if row.num_groups > 1]
    slowest = max(judged, key=lambda pair: (pair[1].is_slow, pair[1].factor), default=None)
    yield name_group(run, *slowest).summary if slowest else "-"


def _line_name(run: BenchmarkRun, case: Case) -> str:
    several = len({row.case.op for row in run.measurements}) > 1
    return f"{case.op} {case.target.name}" if several else case.target.name


def result_rows(run: BenchmarkRun) -> list[dict[str, Any]]:
    """Return a row for each measurement, with times in microseconds."""
    return [
        {
            "op": row.case.op,
            "axes": row.case.target.name,
            "ranks": list(row.sizes),
            "mode": row.mode,
            "bytes": row.case.bytes,
            "us": row.median * 1e6,
            "p99": row.p99 * 1e6,
            "algbw": row.algbw,
            "busbw": row.busbw,
            "ratio": ratio,
            "wrong": row.wrong,
            "calls": row.calls,
            "rounds": row.rounds,
            "groups": row.groups,
            "num_groups": row.num_groups,
            "group_us": _spread([time.median * 1e6 for time in row.by_group]),
            "by_group": [_group_json(name_group(run, row, time)) for time in row.by_group],
        }
        for row, ratio in zip(run.measurements, slowdowns(run.measurements), strict=True)
    ]


def run_to_json(run: BenchmarkRun, misses: Sequence[Miss] = ()) -> dict[str, Any]:
    """Return the whole run as dictionaries, lists, numbers and strings."""
    first_calls = [
        {
            "axes": " ".join(call.axes),
            "ms": _spread([seconds * 1e3 for seconds in call.seconds]),
            "memory": call.memory and max(call.memory),
        }
        for call in run.first_calls
    ]
    return {
        "ok": is_ok(run, misses),
        **asdict(replace(run, measurements=(), first_calls=(), beside=())),
        "first_calls": first_calls,
        "slow": [
            {"op": group.row.case.op, "axes": group.row.case.target.name, **_group_json(group)}
            for group in slow_groups(run)
        ],
        "missed": [miss.as_dict() for miss in misses],
        "beside": [
            {
                "op": row.case.op,
                "axes": row.case.target.name,
                "bytes": row.case.bytes,
                "us": row.collective * 1e6,
                "product_us": row.product * 1e6,
                "in_turn_us": row.in_turn * 1e6,
                "both_us": row.both * 1e6,
                "hidden": row.hidden,
            }
            for row in run.beside
        ],
        "measurements": result_rows(run),
        "wrong": run.wrong,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median and the most of values of groups."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def _group_json(group: NamedGroup) -> dict[str, Any]:
    """Return a group with its times in microseconds."""
    time = group.time
    return {
        "group": group.coordinate,
        "ranks": list(group.ranks),
        "hosts": list(group.hosts),
        "us": time.median * 1e6,
        "low": time.low * 1e6,
        "high": time.high * 1e6,
        "factor": time.factor,
        "slow": time.is_slow,
    }


@dataclass(frozen=True)
class NamedGroup:
    """A group of a target in one row of a run."""

    row: Measurement
    time: GroupTime
    coordinate: str  # on the axes outside the target: sp=1
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # each once

    def __str__(self) -> str:
        return f"{self.row.case.target.name} at {self.coordinate} ({name_ranks(self.ranks)})"

    @property
    def summary(self) -> str:
        """The coordinate, hosts and factor of the group."""
        mark = " SLOW" * self.time.is_slow
        return f"{self.coordinate} on {summarize(self.hosts)}: {self.time.factor:.2f}{mark}"

    def describe(self) -> str:
        """Return the sentence about a slow group."""
        case, time = self.row.case, self.time
        return (
            f"SLOW: {self} on {summarize(self.hosts)}: {case.op} of {case.bytes} bytes "
            f"takes {format_us(time.median)} us, {time.factor:.2f} times the median of its peers."
        )


@dataclass(frozen=True)
class Miss:
    """A group that misses a limit in one row of a run."""

    option: str  # "min-busbw", "max-latency" or "against"
    group: NamedGroup
    figure: float  # of the group: GB/s of a busbw, or microseconds
    limit: float  # in the same unit; the microseconds of the saved run

    @property
    def factor(self) -> float:
        """The figure over the limit."""
        return self.figure / self.limit

    def describe(self) -> str:
        """Return the sentence about the group."""
        case, figure = self.group.row.case, format_figure(self.figure)
        group = f"{self.group} on {summarize(self.group.hosts)}: {case.op} of {case.bytes} bytes"
        limit = format_figure(self.limit)
        if self.option == "min-busbw":
            return f"BELOW: {group} has a busbw of {figure} GB/s, under --min-busbw {limit}."
        if self.option == "max-latency":
            return f"ABOVE: {group} takes {figure} us, over --max-latency {limit}."
        times = f"{self.factor:.2f} times the {limit} us of the saved run"
        return f"SLOWER: {group} takes {figure} us, {times}."

    def as_dict(self) -> dict[str, Any]:
        """Return the miss in JSON types."""
        case, group = self.group.row.case, _group_json(self.group)
        row = {"op": case.op, "axes": case.target.name, "bytes": case.bytes}
        return {"option": self.option, **row, **group, "figure": self.figure, "limit": self.limit}


def format_us(seconds: float) -> str:
    """Return seconds as microseconds with three digits."""
    return format_figure(seconds * 1e6)


def name_group(run: BenchmarkRun, row: Measurement, time: GroupTime) -> NamedGroup:
    """Return a measured group with its coordinate, ranks and hosts."""
    layout, span = Layout.of(run.sizes), row.case.target.span
    ranks = layout.groups(*span)[time.index].tolist()
    coordinate = layout.coordinate(ranks[0])
    others = ((axis, i) for axis, i in coordinate.items() if axis not in span)
    outside = {axis: i for axis, i in others if run.sizes[axis] > 1}
    hosts = tuple(dict.fromkeys(run.hosts[rank] for rank in ranks))
    return NamedGroup(row, time, format_sizes(outside) or "all", tuple(sorted(ranks)), hosts)


def rows_at_once(run: BenchmarkRun) -> list[Measurement]:
    """Return the rows with all groups of a target at once."""
    return [row for row in run.measurements if is_at_once(row.mode, row.num_groups)]


def slow_groups(run: BenchmarkRun) -> list[NamedGroup]:
    """Return each slow group of each operation and target once: its row with the largest factor."""
    slowest: dict[tuple[str, Target, int], NamedGroup] = {}
    for row in rows_at_once(run):
        for time in row.by_group:
            key = row.case.op, row.case.target, time.index
            if time.is_slow and not (key in slowest and slowest[key].time.factor >= time.factor):
                slowest[key] = name_group(run, row, time)
    return list(slowest.values())
