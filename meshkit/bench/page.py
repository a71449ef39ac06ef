"""The page of a benchmark: the summary of the screen, and a picture of each target. Pure: no torch.

One HTML file that needs no script, no other file and no network. Each target has the time of a
call and the busbw over the size, on logarithmic axes::

    alone          dashed; one group at a time
    all at once    solid; a band from the fastest to the slowest group
    A, B, ...      a slow group, with a mark where it is slow

A line joins the sizes that were measured. The style is that of the page of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from string import ascii_uppercase
from typing import Any

from ..layout.axes import axis_colors
from ..layout.draw import ESCAPES
from ..layout.page_script import STYLE
from ..text import count_noun, format_sizes, group_by, name_ranks, summarize
from .report import (
    BESIDE_HEADER,
    HEADER,
    Miss,
    beside_cells,
    beside_legend,
    describe_groups,
    describe_job,
    describe_outcome,
    describe_sizes,
    is_ok,
    name_row,
    result_rows,
    summary_cells,
)
from .results import ALONE, BenchmarkRun

WIDTH, HEIGHT = 360, 230  # of a picture, in pixels of the page at its smallest
LEFT, RIGHT, TOP, BOTTOM = 52, 18, 22, 24  # margins of a picture
MIN_LABEL = 40  # pixels between two labels of sizes
MAX_TICKS = 6  # labels of the vertical axis
MAX_MARKED = 6  # slow groups of a target that are drawn
TICK_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5), (1,)  # of a decade
LETTER_PLACES = (5, -5), (5, 13), (-12, -5), (-12, 13)  # beside a mark, in turn
SIZE_UNITS = {"G": 2**30, "M": 2**20, "K": 2**10}
TIME_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}  # microseconds
LEGEND = (
    "us and the left pictures: the median call; GB/s and the right pictures: busbw, as nccl-tests. "
    "A line joins the sizes that were measured. The band goes from the fastest to the slowest "
    "group. The slowest group has its factor to the median of its peers, and SLOW if that is more "
    "than its noise."
)
PAGE_STYLE = """
body {padding-bottom: 12px; max-width: 1320px}
table {border-collapse: collapse; margin: 12px 0; font-variant-numeric: tabular-nums}
th, td {padding: 3px 12px 3px 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line)}
th {font-weight: normal; color: var(--faint)}
th:first-child, td:first-child, .summary th:last-child, .summary td:last-child {text-align: left;
  overflow-wrap: anywhere}
a {color: inherit}
section {margin-top: 20px; padding-top: 8px; border-top: 1px solid var(--line)}
h2 {padding-left: 7px; border-left: 12px solid; overflow-wrap: anywhere}
h2 span {color: var(--text)}
.target {display: grid; gap: 6px 18px; align-items: start;
  grid-template-columns: repeat(2, minmax(0, 1fr)) 240px}
.target ul {margin: 22px 0 0; padding: 0; list-style: none; overflow-wrap: anywhere}
li {margin-bottom: 5px; padding-left: 8px; border-left: 4px solid transparent}
:root {--alone: #6a737d; --all: #0066b3; --slow: #c43c00}
@media (prefers-color-scheme: dark) {
  :root:not(.print) {--alone: #98a2ad; --all: #58b0f0; --slow: #ff8a4c}
}
.alone {border-color: var(--alone)}
.all {border-color: var(--all)}
.slow {border-color: var(--slow)}
p {overflow-wrap: anywhere}
.bad {color: var(--slow); font-weight: bold}
svg {display: block; width: 100%; font: 11px system-ui, sans-serif}
svg text {fill: var(--faint)}
svg .grid {stroke: var(--line); stroke-width: 0.6}
svg polyline {fill: none; stroke-width: 2; stroke: var(--all)}
svg polygon {fill: var(--all); opacity: 0.18}
svg circle {fill: var(--all)}
svg polyline.alone {stroke: var(--alone); stroke-dasharray: 5 3}
svg circle.alone {fill: var(--alone)}
svg polyline.slow {stroke: var(--slow); stroke-width: 1.5}
svg circle.slow {fill: var(--slow)}
svg text.slow {fill: var(--slow); font-weight: bold}
@media (max-width: 1000px) {
  .target {grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr))}
  .target ul {margin: 0}
}
@media (max-width: 760px) {
  table, tbody {display: block}
  tr {display: grid; column-gap: 6px; padding: 4px 0; border-bottom: 1px solid var(--line);
    grid-template-columns: repeat(3, minmax(0, 1fr)) repeat(2, minmax(0, 1.35fr)) minmax(0, 0.8fr)}
  .beside tr {grid-template-columns: repeat(6, minmax(0, 1fr))}
  th, td {border: 0; padding: 1px 0; font-size: 12px; overflow-wrap: anywhere}
  th:first-child, td:first-child, .summary th:last-child, .summary td:last-child {
    grid-column: 1 / -1}
  td:first-child {font-weight: bold}
}
@media print {section {break-inside: avoid}}
"""

Row = Mapping[str, Any]  # of ``result_rows``


@dataclass(frozen=True)
class Line:
    """A line of a picture, and the sizes at which it is marked."""

    kind: str  # "alone", "all" or "slow": a class of the style
    name: str
    times: Sequence[tuple[Row, float]]  # a row and the microseconds of a call, by ascending size
    marked: frozenset[int] = frozenset()  # sizes in bytes


def draw_run(run: BenchmarkRun, misses: Sequence[Miss] = ()) -> str:
    """Return the page of a run. Cost: about 8 kB for each operation and target."""
    targets = [[*rows] for _, rows in groupby(result_rows(run), key=itemgetter("op", "axes"))]
    named = "".join(f'<p class="bad">{escape(text)}</p>\n' for text in describe_groups(run, misses))
    kind = "good" if is_ok(run, misses) else "bad"
    colors = axis_colors(run.sizes)
    sections = [
        _draw_target(number, rows, colors.get(rows[0]["axes"], "var(--line)"))
        for number, rows in enumerate(targets)
    ]
    sizes = escape(format_sizes(run.sizes))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>meshkit bench {sizes}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}{PAGE_STYLE}</style></head>
<body><h1>{sizes}</h1>
<p>{escape(describe_job(run))}</p>
<p>{escape(describe_sizes(run))}</p>
<p class="{kind}">{escape(describe_outcome(run, misses))}</p>
{named}{_draw_summary(run)}<p>{escape(LEGEND)}</p>
{_draw_beside(run)}{"".join(sections)}
<script>onload = () => performance.mark("drawn");</script></body></html>
"""


def escape(text: str) -> str:
    """Return a text as HTML."""
    return text.translate(ESCAPES)


def _draw_summary(run: BenchmarkRun) -> str:
    lines = []
    for number, (name, *cells) in enumerate(summary_cells(run)):
        cells[-1] = cells[-1].removeprefix("-")  # no slowest group
        columns = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><td><a href="#t{number}">{escape(name)}</a></td>{columns}</tr>\n')
    return _draw_table("summary", HEADER, lines)


def _draw_beside(run: BenchmarkRun) -> str:
    """Return the table of collectives beside a matrix product, if they were measured."""
    if not run.beside:
        return ""
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in beside_cells(run)]
    table = _draw_table("beside", BESIDE_HEADER, [f"<tr>{row}</tr>\n" for row in rows])
    return f"{table}<p>{escape(beside_legend(run))}</p>\n"


def _draw_table(kind: str, header: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    return f'<table class="{kind}"><tbody><tr>{head}</tr>\n{"".join(lines)}</tbody></table>\n'


def _draw_target(number: int, rows: Sequence[Row], color: str) -> str:
    """Return the pictures of an operation over a target, and the list of their lines."""
    rows = sorted(rows, key=itemgetter("bytes"))
    alone = [(row, row["us"]) for row in rows if row["mode"] == ALONE]
    together = [(row, row["us"]) for row in rows if row["mode"] != ALONE]
    first, slow = rows[0], _slow_lines([row for row, _ in together])
    drawn = [Line("alone", _name_alone(first), alone)] * bool(alone)
    at_once = "both at once" if len(first["ranks"]) > 1 else f"all {first['num_groups']} at once"
    drawn += [Line("all", at_once, together)] * bool(together)
    drawn += slow[:MAX_MARKED]
    wrong = sum({row["bytes"]: row["wrong"] for row in rows}.values())
    items = [(line.kind, line.name) for line in drawn]
    if len(slow) > MAX_MARKED:
        items.append(("slow", f"and {count_noun(len(slow) - MAX_MARKED, 'more slow group')}"))
    if wrong:
        items.append(("bad", count_noun(wrong, "wrong element")))
    listed = "".join(f'<li class="{kind}">{escape(name)}</li>' for kind, name in items)
    charts = [_draw_chart("time of a call", drawn, lambda _, us: us, _format_time)]
    if first["busbw"] is not None:
        chart = _draw_chart(
            "busbw, GB/s",
            drawn,
            lambda row, us: float(row["busbw"] * row["us"] / us),
            lambda value: f"{float(f'{value:.3g}'):g}",
        )
        charts.append(chart)
    heading = escape(name_row(first))
    return f"""<section id="t{number}"><h2 style="border-color: {color}">{heading}</h2>
<div class="target">{"".join(charts)}<ul>{listed}</ul></div></section>
"""


def _name_alone(row: Row) -> str:
    if row["num_groups"] == 1:
        return "the only group"
    if row["groups"] < row["num_groups"]:
        return f"one group alone ({row['groups']} of {row['num_groups']} groups)"
    return "one group alone"


def _slow_lines(rows: Sequence[Row]) -> list[Line]:
    """Return a line for each group that is slow at some size, the slowest first."""
    # coordinate to each row and the group in it
    times = group_by((group["group"], (row, group)) for row in rows for group in row["by_group"])
    slowest: list[tuple[Row, Row]] = []  # of each slow group, where its factor is the largest
    for pairs in times.values():
        if slow := [pair for pair in pairs if pair[1]["slow"]]:
            slowest.append(max(slow, key=lambda pair: pair[1]["factor"]))
    lines: list[Line] = []
    for row, group in sorted(slowest, key=lambda pair: -pair[1]["factor"]):
        letter, pairs = ascii_uppercase[len(lines) % MAX_MARKED], times[group["group"]]
        where = f"{group['group']} ({name_ranks(group['ranks'])}) on {summarize(group['hosts'])}"
        text = f"{letter}: {where}: SLOW, {group['factor']:.2f} times the median of its peers"
        marked = frozenset(other["bytes"] for other, part in pairs if part["slow"])
        points = [(other, part["us"]) for other, part in pairs]
        lines.append(Line("slow", f"{text} at {format_size(row['bytes'])}", points, marked))
    return lines


def format_size(size: int) -> str:
    """Return bytes as they are typed, with three digits: 16M, also for a little less."""
    unit = next((unit for unit, value in SIZE_UNITS.items() if size >= 0.999 * value), "")
    return f"{float(f'{size / SIZE_UNITS.get(unit, 1):.4g}'):g}{unit}"


def _format_time(us: float) -> str:
    unit = next((unit for unit, value in TIME_UNITS.items() if us >= 0.999 * value), "ns")
    return f"{float(f'{us / TIME_UNITS[unit]:.3g}'):g} {unit}"


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from low to high, as many as ``MAX_TICKS`` allows.

    ``high`` is twice ``low`` or more.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [[m * 10.0**d for d in decades for m in steps] for steps in TICK_STEPS]
    choices += [[10.0**d for d in decades if d % every == 0] for every in range(2, len(decades))]
    inside = ([tick for tick in ticks if low <= tick <= high] for ticks in choices)
    return next(ticks for ticks in inside if len(ticks) <= MAX_TICKS)


def _draw_chart(
    title: str,
    lines: Sequence[Line],
    value_of: Callable[[Row, float], float],
    format_value: Callable[[float], str],
) -> str:
    """Return a picture of lines as SVG, with the spread of the groups of the line ``all``."""
    spread = [
        [(row["bytes"], value_of(row, row["group_us"][end])) for row, _ in line.times]
        for line in lines
        for end in ("min", "max")
        if line.kind == "all"
    ]
    points = [[(row["bytes"], value_of(row, us)) for row, us in line.times] for line in lines]
    frame = Frame.around([point for part in (*spread, *points) for point in part])
    elements = [f'<text x="{LEFT}" y="12">{title}</text>', *frame.draw_axes(format_value)]
    if spread:
        outline = frame.path([*spread[0], *reversed(spread[1])])
        elements.append(f'<polygon points="{outline}"/>')
    for number, (line, part) in enumerate(zip(lines, points, strict=True)):
        elements.append(f'<polyline class="{line.kind}" points="{frame.path(part)}"/>')
        dx, dy = LETTER_PLACES[number % len(LETTER_PLACES)]
        for size, value in part:
            x, y, is_marked = frame.x(size), frame.y(value), size in line.marked
            tip = escape(f"{line.name}; {format_size(size)}: {format_value(value)}")
            circle = f'<circle class="{line.kind}" cx="{x}" cy="{y}" r="{4 if is_marked else 2.5}">'
            elements.append(f"{circle}<title>{tip}</title></circle>")
            if is_marked:
                place = f'x="{x + dx:.1f}" y="{y + dy:.1f}"'
                elements.append(f'<text class="slow" {place}>{line.name[0]}</text>')
    body = "\n".join(elements)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{body}</svg>\n'


@dataclass(frozen=True)
class Frame:
    """The axes of a picture."""

    sizes: Sequence[int]  # bytes, ascending
    low: float  # value at the lower edge
    high: float

    @classmethod
    def around(cls, points: Sequence[tuple[int, float]]) -> Frame:
        """Return the frame that holds all points, with a margin above and below."""
        sizes, values = zip(*points, strict=True)
        return cls(sorted({*sizes}), *widen(min(values), max(values)))

    def x(self, size: int) -> float:
        """Return the pixel of a size."""
        least, most = self.sizes[0], self.sizes[-1]
        part = math.log(size / least) / math.log(most / least) if most > least else 0.5
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return the pixel of a value."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM), 1)

    def path(self, points: Sequence[tuple[int, float]]) -> str:
        """Return points as the coordinates of a line of SVG."""
        return " ".join(f"{self.x(size)},{self.y(value)}" for size, value in points)

    def draw_axes(self, format_value: Callable[[float], str]) -> Iterator[str]:
        """Yield a line for each round value, and labels of sizes that do not touch."""
        for tick in log_ticks(self.low, self.high):
            y = self.y(tick)
            yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
            place = f'x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end"'
            yield f"<text {place}>{format_value(tick)}</text>"
        right = math.inf
        for size in reversed(self.sizes):
            if right - self.x(size) >= MIN_LABEL:
                right = self.x(size)
                place = f'x="{right}" y="{HEIGHT - 7}" text-anchor="middle"'
                yield f"<text {place}>{format_size(size)}</text>"


def widen(low: float, high: float) -> tuple[float, float]:
    """Return limits around two values with a margin, a factor of 2 or more from each other."""
    margin = max(1.15, math.sqrt(2 * low / high))
    return low / margin, high * margin
