"""Bandwidth by array size, as a PNG drawn by matplotlib, an optional dependency."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core.errors import MeshkitError, SpecError
from ..core.text import format_sizes
from .results.measurement import Measurement
from .results.run import BenchmarkRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"alone": "-", "concurrent": "--"}
COLUMNS = 3


def check_plot(path: str) -> None:
    """Check that the picture can be drawn, before anything is measured. Local; leaves no file."""
    file, library = _file_problem(path), _library_problem()
    problems = [problem for problem in (file, library) if problem is not None]
    if problems:
        (first, _), *others = problems
        fix = "; and ".join(fix for _, fix in problems)
        kind = SpecError if file is not None else MeshkitError
        evidence = (f"Also, {other}." for other, _ in others)
        raise kind(f"the picture cannot be drawn: {first}.", *evidence, fix=f"{fix}.")


Problem = tuple[str, str]  # and its fix


def _file_problem(path: str) -> Problem | None:
    """Return why a file cannot be written, or None. The file is not changed."""
    if not path.endswith(".png"):
        return "its name does not end in .png", "a name that ends in .png"
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK  # does not wait for the reader of a pipe
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL))
            os.unlink(path)
            return None
        with suppress(FileNotFoundError):  # a peer that checks too has just removed its own
            os.close(os.open(path, flags))
    except OSError as error:
        problem = f"the file cannot be written: {error.strerror}"
        return problem, "a file in an existing folder with write access"
    return None


def _library_problem() -> Problem | None:
    """Return why matplotlib cannot draw, or None."""
    try:
        import matplotlib
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except Exception as error:  # a broken installation raises anything
        if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
            return "matplotlib is not installed", "pip install matplotlib; or leave out --plot"
        line = str(error).partition("\n")[0]
        problem = f"matplotlib fails: {type(error).__name__}: {line.rstrip('.')}"
        return problem, "pip install --force-reinstall matplotlib; or leave out --plot"
    return None


def plot(run: BenchmarkRun, path: str) -> None:
    """Draw busbw against bytes, with a panel per operation and a line per target and mode."""
    from matplotlib.figure import Figure

    shown = [row for row in run.measurements if row.busbw is not None]
    operations = list(dict.fromkeys(row.case.op for row in shown)) or ["nothing"]
    columns = min(COLUMNS, len(operations))
    rows = -(-len(operations) // columns)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, op in zip(panels, operations, strict=False):
        _panel(panel, op, [row for row in shown if row.case.op == op])
    for panel in panels[len(operations) :]:
        panel.set_axis_off()
    figure.suptitle(f"{format_sizes(run.sizes)}, {run.backend} on {run.device}, torch {run.torch}")
    figure.savefig(path, format="png", dpi=100)


def _panel(panel: Axes, op: str, measurements: list[Measurement]) -> None:
    """Draw one operation: a color per target, solid if alone, dashed with all groups at once."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in measurements:
        points = series.setdefault((row.case.target.name, row.mode), [])
        points.append((row.case.bytes, row.busbw or 0.0))
    colors = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(name for name, _ in series))}
    for (name, mode), points in series.items():
        label, style = f"{name} {mode}", STYLES[mode]
        x, y = zip(*points, strict=True)
        panel.plot(x, y, style, color=colors[name], marker="o", markersize=3, label=label)
    panel.set(title=op, xlabel="bytes", ylabel="busbw, GB/s", xscale="log", yscale="log")
    if series:
        panel.legend(fontsize="small")
