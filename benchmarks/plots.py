"""The plots of a run: time against ranks, ours beside the peers', one picture for each work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .rows import INSTALL, ITSELF, Row

COLUMNS = 3  # of pictures in a file


def draw(found: Mapping[str, Sequence[Row]], folder: Path) -> str:
    """Write a PNG for each benchmark that has a work at three scales or more.

    Args:
        found: benchmark to rows.
        folder: where the files go.

    Returns:
        What was written; or what to install, where matplotlib is not there.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        return f"No plots: matplotlib is not installed: {INSTALL}"
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    names = [name for name, rows in found.items() if curves(rows)]
    for name in names:
        works = curves(found[name])
        columns = min(COLUMNS, len(works))
        lines_of = -(-len(works) // columns)
        figure = Figure(figsize=(5.0 * columns, 4.0 * lines_of), layout="constrained")
        for place, (what, lines) in enumerate(works.items(), start=1):
            axes = figure.add_subplot(lines_of, columns, place)
            for who, points in lines.items():
                axes.loglog(*zip(*points, strict=True), marker="o", label=who)
            axes.set(title=what, xlabel="ranks", ylabel=unit_of(found[name], what))
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
        figure.savefig(folder / f"{name}.png", dpi=100)
    return "Plots: " + (", ".join(f"{name}.png" for name in names) or "none")


Lines = dict[str, list[tuple[int, float]]]


def curves(rows: Sequence[Row]) -> dict[str, Lines]:
    """What is drawn: work to who did it to (ranks, figure), for works at three scales or more.

    What is compared with itself has no curve: it is to stay as it is.
    """
    works: dict[str, Lines] = {}
    for row in (row for row in rows if row.peer != ITSELF):
        lines = works.setdefault(row.what, {})
        for who, value in (("meshkit", row.ours), (row.peer, row.theirs)):
            points = lines.setdefault(who, [])
            if value is not None and row.scale not in dict(points):
                points.append((row.scale, value))
    return {
        what: {who: sorted(points) for who, points in lines.items() if points}
        for what, lines in works.items()
        if max(map(len, lines.values())) >= 3
    }


def unit_of(rows: Sequence[Row], what: str) -> str:
    """The unit of a work."""
    return next(row.unit for row in rows if row.what == what)
