"""Bandwidth by size, as a picture; drawn by matplotlib where that is installed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core.errors import MeshkitError, SpecError, told
from ..core.measured import Measured
from ..core.measurement import Measurement
from ..core.words import format_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"alone": "-", "concurrent": "--"}
COLUMNS = 3


def check_plot(path: str) -> None:
    """Refuse a picture that cannot be drawn, before anything is measured. Local; leaves no file.

    Args:
        path: where it will be written.

    Raises:
        SpecError: for a name that does not end in .png, or a place that cannot be written to; it
            says of matplotlib too.
        MeshkitError: where matplotlib is not installed, or does not work, with what to type.
    """
    place, library = _place(path), _library()
    wrong = [one for one in (place, library) if one is not None]
    if wrong:
        (first, _), *others = wrong
        fix = "; and ".join(fix for _, fix in wrong)
        line = f"--plot {path}: {first}."
        text = told(line, *(f"And {other}." for other, _ in others), fix=f"{fix}.")
        raise (SpecError if place is not None else MeshkitError)(text)


Wrong = tuple[str, str]  # what is wrong, and what mends it


def _place(path: str) -> Wrong | None:
    """What is wrong with a file; None where it can be written to. It is as it was before."""
    if not path.endswith(".png"):
        return "the picture is a PNG", "a name that ends in .png"
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK  # a pipe that nobody reads is not waited for
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL))
            os.unlink(path)
            return None
        with suppress(FileNotFoundError):  # a peer that looks too has just taken its own away
            os.close(os.open(path, flags))
    except OSError as error:
        said = f"it cannot be written: {error.strerror}"
        return said, "a file in a folder that exists and may be written"
    return None


def _library() -> Wrong | None:
    """What is wrong with matplotlib; None where it can draw."""
    try:
        import matplotlib
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except Exception as error:  # of a broken one: anything
        if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
            install = "pip install 'meshkit[plot]'"
            return "matplotlib draws it, and is not installed", f"{install}; or leave --plot out"
        line = str(error).partition("\n")[0]
        said = f"matplotlib draws it, and fails: {type(error).__name__}: {line.rstrip('.')}"
        return said, "pip install --force-reinstall matplotlib; or leave --plot out"
    return None


def plot(report: Measured, path: str) -> None:
    """Draw busbw against bytes, a panel an operation, a line a target and way.

    Args:
        report: what was found.
        path: the file, which is replaced.

    Raises:
        OSError: where it cannot be written after all.
    """
    from matplotlib.figure import Figure

    shown = [one for one in report.found if one.busbw is not None]
    operations = list(dict.fromkeys(one.case.op for one in shown)) or ["nothing"]
    columns = min(COLUMNS, len(operations))
    rows = -(-len(operations) // columns)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, op in zip(panels, operations, strict=False):
        _panel(panel, op, [one for one in shown if one.case.op == op])
    for panel in panels[len(operations) :]:
        panel.set_axis_off()
    figure.suptitle(
        f"{format_sizes(report.sizes)}, {report.backend} on {report.device}, torch {report.torch}"
    )
    figure.savefig(path, format="png", dpi=100)


def _panel(panel: Axes, op: str, found: list[Measurement]) -> None:
    """One operation: a colour a target, a full line alone, a broken one with all groups at once."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in found:
        points = series.setdefault((one.case.target.name, one.mode), [])
        points.append((one.case.bytes, one.busbw or 0.0))
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(name for name, _ in series))}
    for (name, mode), points in series.items():
        label, style = f"{name} {mode}", STYLES[mode]
        x, y = zip(*points, strict=True)
        panel.plot(x, y, style, color=colours[name], marker="o", markersize=3, label=label)
    panel.set(title=op, xlabel="bytes", ylabel="busbw, GB/s", xscale="log", yscale="log")
    if series:
        panel.legend(fontsize="small")
