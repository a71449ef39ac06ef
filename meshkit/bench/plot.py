"""Bandwidth by size, as a picture; drawn by matplotlib where that is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import MeshkitError, SpecError, told
from ..core.measured import Measured
from ..core.measurement import Measurement
from ..core.words import pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"alone": "-", "concurrent": "--"}
COLUMNS = 3


def check_plot(path: str) -> None:
    """Refuse a picture that cannot be drawn, before anything is measured. Local; writes nothing.

    Args:
        path: where it will be written.

    Raises:
        MeshkitError: where matplotlib is not installed, with what to type.
        SpecError: for a name that does not end in .png, or a place that cannot be written to.
    """
    if not path.endswith(".png"):
        line = f"--plot {path}: the picture is a PNG."
        raise SpecError(told(line, fix="a name that ends in .png."))
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        line = f"--plot {path}: matplotlib draws it, and is not installed."
        fix = "pip install 'meshkit[plot]'; or leave --plot out."
        raise MeshkitError(told(line, fix=fix)) from error
    folder = Path(path).parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if Path(path).is_dir() else f"{folder} is no place to write to"
        fix = "a file in a folder that exists and may be written."
        raise SpecError(told(f"--plot {path}: {reason}.", fix=fix))


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
        f"{pairs(report.sizes)}, {report.backend} on {report.device}, torch {report.torch}"
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
