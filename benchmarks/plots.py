"""The plots of a run: time against ranks, ours beside the peers', a picture for each work.

What ``meshkit bench`` draws is bandwidth against bytes, on panels of another layout:
:mod:`meshkit.bench.plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .rows import INSTALL, Row

PLOTS = {  # benchmark to the works that its file shows, side by side
    "maps": (
        "rank -> coordinate, all ranks",
        "all groups of every axis",
        "sizes -> my coordinate and my groups",
    ),
    "startup": ("start-up, file store", "start-up, file store, lazy"),
}
LEAST = 3  # numbers of ranks that make a curve
Lines = dict[str, list[tuple[int, float]]]


def draw(found: Mapping[str, Sequence[Row]], folder: Path) -> str:
    """Write a PNG for each benchmark of ``PLOTS`` that was run at three numbers of ranks or more.

    Args:
        found: benchmark to rows.
        folder: where the files go.

    Returns:
        What was written; or what to install, where matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return f"No plots: matplotlib is not installed: {INSTALL}"
    drawn = []
    for name, works in PLOTS.items():
        panels = {what: curves(found.get(name, ()), what) for what in works}
        panels = {what: lines for what, lines in panels.items() if lines}
        if not panels:
            continue
        figure = Figure(figsize=(5.0 * len(panels), 4.0), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False).flat
        for axes, (what, lines) in zip(every, panels.items(), strict=True):
            for who, points in lines.items():
                axes.loglog(*zip(*points, strict=True), marker="o", label=who)
            axes.set(title=what, xlabel="ranks", ylabel="s")
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
        figure.savefig(folder / f"{name}.png", format="png", dpi=100)
        drawn.append(f"{name}.png")
    return f"Plots: {', '.join(drawn) or 'none'}"


def curves(rows: Sequence[Row], what: str) -> Lines:
    """Who did a work to (ranks, figure); nothing where nobody did at three numbers of ranks."""
    lines: Lines = {}
    for row in (row for row in rows if row.what == what):
        for who, value in (("meshkit", row.ours), (row.peer, row.theirs)):
            points = lines.setdefault(who, [])
            if value is not None and row.scale not in dict(points):
                points.append((row.scale, value))
    if max(map(len, lines.values()), default=0) < LEAST:
        return {}
    return {who: sorted(points) for who, points in lines.items() if points}
