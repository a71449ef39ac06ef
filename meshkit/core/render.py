"""Pictures of a grid of ranks, as plain ASCII text.

One line a row; the last axis that is longer than 1 runs across, the others down::

    dp=4 sp=2 tp=1
          sp=0  sp=1
    dp=0     0     1
    dp=1     2     3
    dp=2     4   [5]
    dp=3     6     7

Every number that stands alone is a rank, and each rank stands there once.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

SHOWN = 4096  # ranks drawn in full; a larger grid is drawn by its edges
EDGE = 4  # rows and columns kept on each side of a gap
GAP = "..."


def draw(
    axes: tuple[str, ...], grid: NDArray[np.int64], *, mark: int | None = None, width: int = 80
) -> str:
    """The grid as text.

    Args:
        axes: names of the grid's axes, the outermost first.
        grid: the ranks, one array axis for each name.
        mark: a rank to put in brackets, or None.
        width: columns to fit into. At least 40 are used; a rank is never cut.

    Returns:
        Lines without a final newline. Axes of size 1 stand in the first line only. A grid of more
        than 4096 ranks is drawn by its edges, with ``...`` for the rest; ``mark`` is always shown.

    Example:
        >>> print(draw(("dp", "sp"), np.arange(6).reshape(3, 2), mark=4))
        dp=3 sp=2
              sp=0  sp=1
        dp=0     0     1
        dp=1     2     3
        dp=2   [4]     5
    """
    places = np.argwhere(grid.ravel() == mark) if mark is not None else np.empty((0, 1))
    here = int(places[0, 0]) if len(places) else None
    flat = grid.ravel()
    return draw_at(axes, grid.shape, lambda place: int(flat[place]), here=here, width=width)


def draw_at(
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    at: Callable[[int], int],
    *,
    here: int | None = None,
    width: int = 80,
) -> str:
    """:func:`draw` for a grid of any size: only what is drawn is asked for.

    Args:
        axes: names of the axes, the outermost first.
        shape: their sizes.
        at: position, in row-major order, to rank.
        here: the position to put in brackets, or None.
        width: columns to fit into.
    """
    width = max(width, 40)
    sizes = [f"{axis}={size}" for axis, size in zip(axes, shape, strict=True)]
    title = textwrap.wrap(" ".join(_cut(size, width) for size in sizes), width)
    long_axes = [i for i, size in enumerate(shape) if size > 1]
    down, across = long_axes[:-1], long_axes[-1:]
    columns = math.prod(shape[i] for i in across)
    row, column = divmod(here or 0, columns)
    total = math.prod(shape)
    rows = kept(total // columns, row, total)
    shown = kept(columns, column, total)
    cells = [
        [_cell(None if r is None or c is None else r * columns + c, at, here) for c in shown]
        for r in rows
    ]
    names, lengths = [axes[i] for i in down], tuple(shape[i] for i in down)
    labels = [row_label(names, lengths, r, width) for r in rows]
    header = [GAP if c is None else f"{axes[i]}={c}" for i in across for c in shown]
    return "\n".join(title + table_lines(header, labels, cells, width))


def table_lines(
    header: list[str], labels: list[str], cells: list[list[str]], width: int
) -> list[str]:
    """The rows of the picture, with the header where the columns fit side by side."""
    lead = max(map(len, labels))
    pad = max(len(cell) for line in cells for cell in line)
    wide = max([pad, *map(len, header)])
    if header and lead + (wide + 2) * len(header) <= width:
        return [_line("", header, lead, wide)] + [
            _line(label, line, lead, wide) for label, line in zip(labels, cells, strict=True)
        ]
    wrapped = [_wrap(la, li, lead, pad, width) for la, li in zip(labels, cells, strict=True)]
    return [line for lines in wrapped for line in lines]


def kept(count: int, here: int, total: int) -> list[int | None]:
    """Indices to draw; None is a gap."""
    if total <= SHOWN or count <= 2 * EDGE + 1:
        return list(range(count))
    near = {*range(EDGE), here, *range(count - EDGE, count)}
    kept: list[int | None] = []
    for index in sorted(near):
        if kept and kept[-1] is not None and index - kept[-1] > 1:
            kept.append(None)
        kept.append(index)
    return kept


def row_label(down: list[str], shape: tuple[int, ...], row: int | None, width: int) -> str:
    """The coordinate of a row along the axes that run down; a gap for None."""
    if row is None:
        return GAP
    places = np.unravel_index(row, shape) if shape else ()
    label = " ".join(f"{axis}={int(i)}" for axis, i in zip(down, places, strict=True))
    return _cut(label, width // 2)


def _cut(text: str, width: int) -> str:
    """The end of a text that is too long: that is where the number stands."""
    return text if len(text) <= width else "~" + text[1 - width :]


def _cell(place: int | None, at: Callable[[int], int], here: int | None) -> str:
    if place is None:
        return GAP
    return f"[{at(place)}]" if place == here else str(at(place))


def _line(label: str, cells: Iterable[str], lead: int, wide: int) -> str:
    return label.ljust(lead) + "".join(cell.rjust(wide + 2) for cell in cells)


def _wrap(label: str, cells: list[str], lead: int, pad: int, width: int) -> list[str]:
    """One row over several lines, where its cells do not fit side by side."""
    step = max(1, (width - lead) // (pad + 2))
    chunks = [cells[start : start + step] for start in range(0, len(cells), step)]
    return [_line(label if i == 0 else "", chunk, lead, pad) for i, chunk in enumerate(chunks)]
