"""The part of the README that figures are in: made of ``results.json`` alone.

A line for each goal. Where one is set at several numbers of ranks, the line is that of the number
at which it is met by the least, or missed by the most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshkit.bench.results.measurement import Spread

from .ledger import Phase
from .machine import Machine
from .plots import PLOTS
from .rows import Goal, Row, figure_text, ratio_text

BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
FOLDER = "benchmarks/results"
HEAD = ("what", "ranks", "meshkit", "peer", "its figure", "meshkit / peer (quartiles)", "goal", "")
Report = Mapping[str, Any]  # what results.json holds


def results(report: Report) -> str:
    """The machine and a table in Markdown, with a final newline."""
    rows = [row_of(saved) for every in report["rows"].values() for saved in every]
    lines = [HEAD, ["---"] * len(HEAD), *map(cells, worst(rows))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    quick = "\n\nA quick run: few repetitions, small scales." if report["quick"] else ""
    return f"{machine(report)}{quick}\n\n{table}\n"


def part(report: Report) -> str:
    """What stands in the README, its markers included."""
    said = (
        f"One run of `python -m benchmarks`: medians; all rows are in "
        f"[`results.txt`]({FOLDER}/results.txt)."
    )
    plots = "\n".join(f"![{name}]({FOLDER}/{name}.png)" for name in PLOTS)
    return f"{BEGIN}\n{said}\n\n{results(report)}\n{plots}\n{END}"


def put(readme: str, report: Report) -> str:
    """The README with that part in place of the one it has.

    Raises:
        ValueError: where it has not each marker once, the first before the second.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ValueError(f"it needs the lines {BEGIN} and {END}, each once, in this order")
    return f"{before}{part(report)}{after}"


def write(folder: Path, readme: Path, every: Sequence[str]) -> str:
    """Put the part of the results in a folder into a README, in place.

    Args:
        folder: where the results are.
        readme: the file.
        every: the benchmarks that must have been run.

    Returns:
        What was done, in words.

    Raises:
        ValueError: where the results are not those of a whole run, see :func:`whole`, or where a
            plot or a marker is missing; the README is as it was.
    """
    wanted = ["results.json", *(f"{name}.png" for name in PLOTS)]
    if lacking := [name for name in wanted if not (folder / name).is_file()]:
        raise ValueError(f"{folder} has no {', '.join(lacking)}: python -m benchmarks")
    report = whole(folder / "results.json", every)
    try:
        text = put(readme.read_text(), report)
    except ValueError as error:
        raise ValueError(f"{readme}: {error}") from None
    readme.write_text(text)
    return f"{readme}: written from {folder / 'results.json'}"


def whole(file: Path, every: Sequence[str]) -> Report:
    """What a run of all benchmarks, beside all their peers, has written.

    Raises:
        ValueError: where it is not what a run writes, or lacks a benchmark, its rows or a peer, or
            where the run was a quick one.
    """
    try:
        report: Report = json.loads(file.read_text())
        results(report)
        lacking = [name for name in every if not report["rows"].get(name)]
        peers = [row for rows in report["rows"].values() for row in rows if row["lacks"]]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{file} is not what a run writes: python -m benchmarks") from None
    if lacking:
        raise ValueError(f"{file} has no rows of {', '.join(lacking)}: python -m benchmarks")
    if peers:
        what, lacks = peers[0]["what"], peers[0]["lacks"]
        raise ValueError(f"{file} lacks {len(peers)} rows of peers, first {what!r}: {lacks}")
    if report["quick"]:
        raise ValueError(f"{file} is of a quick run: python -m benchmarks")
    return report


# --- one line ------------------------------------------------------------------------------------


def machine(report: Report) -> str:
    """What it ran on."""
    return str(Machine(**report["machine"])).replace("\n", "; ") + "."


def row_of(saved: Mapping[str, Any]) -> Row:
    """A row as it was written down."""
    fields = {name: value for name, value in saved.items() if name != "met"}
    for name, kind in (("ratio", Spread), ("goal", Goal)):
        fields[name] = fields[name] and kind(**fields[name])
    for name in ("phases", "their_phases"):
        fields[name] = tuple(Phase(**one) for one in fields[name])
    return Row(**fields)


def worst(rows: Sequence[Row]) -> list[Row]:
    """Of each work and peer with a goal the row that is the farthest from it."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in (row for row in rows if row.excess is not None):
        key = (row.what, row.peer, str(row.goal))
        if key not in found or (row.excess or 0) > (found[key].excess or 0):
            found[key] = row
    return list(found.values())


def cells(row: Row) -> list[str]:
    """The cells of a line."""
    ratio = "" if row.ratio is None else ratio_text(row.ratio)
    ours, theirs = (
        f"{figure_text(figure)} {row.unit}" if figure is not None else ""
        for figure in (row.ours, row.theirs)
    )
    met = "met" if row.met else f"missed by {missed(row)}"
    return [row.what, f"{row.scale:,}", ours, row.peer, theirs, ratio, str(row.goal), met]


def missed(row: Row) -> str:
    """By how much the goal of a row is missed."""
    return f"{100 * ((row.excess or 0) - 1):.0f} %"
