"""The report of a run: ``results.json``, the table of all rows, the section of the docs.

The section has one line for each peer of each benchmark: the row in which meshkit does worst. A
goal that holds at several numbers of ranks counts once, by the row that is farthest from it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Any

from meshkit.text import format_table

from .harness import ITSELF, Goal, Ratio, Row, figure_text

PACKAGES = ("meshkit", "torch", "numpy", "einops", "megatron-core", "deepspeed", "spmd_types")
BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
FOLDER = "benchmarks/results"
HEAD = ("what", "ranks", "meshkit", "peer", "its figure", "meshkit / peer (quartiles)", "goal", "")
PAGE_HEAD = ("worst row", "ranks", "meshkit", "peer", "meshkit / peer", "its best row")

Machine = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]  # benchmark -> its rows


def this_machine() -> Machine:
    """Return the hardware and the versions that the figures depend on."""
    installed = {package.name: package.version for package in metadata.distributions()}
    return {
        "cores": os.cpu_count() or 1,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: installed.get(name, "not installed") for name in PACKAGES},
    }


def format_machine(machine: Machine) -> str:
    """Return the machine as one sentence."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    hardware = f"{machine['cores']} cores of {machine['processor']}, {machine['system']}"
    return f"{hardware}, Python {machine['python']}; {packages}."


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def write(rows: Rows, machine: Machine, folder: Path, quick: bool) -> str:
    """Write ``results.json`` and ``results.txt`` into a folder; return the text."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = {name: [asdict(row) | {"met": row.met} for row in rows[name]] for name in rows}
    results = {"quick": quick, "machine": machine, "rows": saved}
    every_row = [row for some in rows.values() for row in some]
    text = f"{format_machine(machine)}\nmedian (quartiles)\n\n{rows_table(every_row)}"
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "results.txt").write_text(text + "\n")
    return text


def read(file: Path) -> tuple[Rows, Machine, bool]:
    """Return the rows, the machine and ``quick`` of a ``results.json``."""
    results = json.loads(file.read_text())
    for row in (row for rows in results["rows"].values() for row in rows):
        row["ratio"] = row["ratio"] and Ratio(**row["ratio"])
        row["goal"] = row["goal"] and Goal(**row["goal"])
        del row["met"]
    rows = {name: [Row(**row) for row in rows] for name, rows in results["rows"].items()}
    return rows, results["machine"], results["quick"]


def rows_table(rows: Sequence[Row]) -> str:
    """Return the rows as a text table."""
    return format_table([cells(row) for row in rows], HEAD, width=300, ascii=True)


def update_page(page: Path, folder: Path, benchmarks: Sequence[str]) -> None:
    """Replace the benchmark section of a page by the results in a folder.

    Raises:
        ValueError: if the run was quick or lacks a benchmark or a peer, or if the page lacks a
            marker. The page is then unchanged.
        OSError: if ``results.json`` cannot be read.
    """
    rows, machine, quick = read(folder / "results.json")
    lacking = [name for name in benchmarks if not rows.get(name)]
    lacking += [row.missing for some in rows.values() for row in some if row.missing]
    if quick or lacking:
        reason = f"lacks {', '.join(lacking)}" if lacking else "is a quick run"
        raise ValueError(f"{folder / 'results.json'} {reason}: run python -m benchmarks")
    put_section(page, BEGIN, END, section(rows, machine))


def put_section(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two markers of a page.

    Raises:
        ValueError: if the page lacks a marker.
    """
    before, found, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends or begin in rest or end in before + after:
        raise ValueError(f"{page.name} needs the lines {begin} and {end}, each once, in this order")
    page.write_text(f"{before}{begin}{text}{end}{after}")


def section(rows: Rows, machine: Machine) -> str:
    """Return the benchmark section in Markdown, between its markers."""
    goals = farthest_rows([row for some in rows.values() for row in some])
    missed = sum(row.met is False for row in goals)
    lines = [line for some in rows.values() for line in worst_rows(some)]
    parts = [
        f"One run of `python -m benchmarks`; {missed} of {len(goals)} goals were missed. All rows, "
        f"with their goals, are in `{FOLDER}/results.txt`.",
        format_machine(machine),
        markdown_table([PAGE_HEAD, *lines]),
    ]
    return "\n" + "\n\n".join(parts) + "\n"


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table in Markdown; the first line is the head."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


def worst_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Return, for each peer, the cells of the row in which meshkit does worst, and the best ratio.

    Rows without a ratio or a goal are left out, as are those of meshkit beside itself.
    """
    peers: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        if row.ratio and row.goal and row.peer != ITSELF:
            sign = 1 if row.goal.sense == "<=" else -1  # a throughput is better if it is larger
            peers.setdefault(row.peer, []).append((sign * row.ratio.median, row))
    lines = []
    for peer, pairs in peers.items():
        (best, _), (worst, row) = (choose(pairs, key=itemgetter(0)) for choose in (min, max))
        ours, ratios = (
            f"{figure_text(row.ours)} {row.unit}",
            map(figure_text, map(abs, (worst, best))),
        )
        lines.append([row.what, f"{row.scale:,}", ours, peer, *ratios])
    return lines


def farthest_rows(rows: Sequence[Row]) -> list[Row]:
    """Return, for each work, peer and goal, the row that is farthest from the goal."""
    farthest: dict[tuple[str, str, str], Row] = {}
    for row in (row for row in rows if row.excess is not None):
        key = (row.what, row.peer, str(row.goal))
        if key not in farthest or (row.excess or 0) > (farthest[key].excess or 0):
            farthest[key] = row
    return list(farthest.values())


def cells(row: Row) -> list[str]:
    """Return the cells of a row in both tables."""
    ours, theirs = (
        f"{figure_text(figure)} {row.unit}" if figure is not None else ""
        for figure in (row.ours, row.theirs)
    )
    result = row.missing or ""
    if row.excess is not None:
        result = "met" if row.met else f"missed by {100 * (row.excess - 1):.0f} %"
    texts = [str(value or "") for value in (row.ratio, row.goal)]
    return [row.what, f"{row.scale:,}", ours, row.peer, theirs, *texts, result]
