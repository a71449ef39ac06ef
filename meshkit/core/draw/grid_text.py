"""Grids of ranks as plain ASCII text.

The last axis longer than 1 runs across, all others run down::

    dp=4 sp=2 tp=1
          sp=0  sp=1
    dp=0     0     1
    dp=1     2     3
    dp=2     4   [5]
    dp=3     6     7

Every number that stands alone is a rank. Each rank appears once.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable

import numpy as np

from .table import MIN_WIDTH

MAX_FULL = 4096  # ranks of a grid that is drawn in full
EDGE = 4  # rows and columns drawn on each side of a gap
ELLIPSIS = "..."


def draw_positions(
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    rank_at: Callable[[int], int],
    *,
    mark: int | None = None,
    width: int = 80,
) -> str:
    """Return a grid of any size as text; ``rank_at`` is called only for ranks that are drawn."""
    width = max(width, MIN_WIDTH)
    sizes = [f"{axis}={size}" for axis, size in zip(axes, shape, strict=True)]
    title = textwrap.wrap(" ".join(_cut(size, width) for size in sizes), width)
    long_axes = [i for i, size in enumerate(shape) if size > 1]
    down, across = long_axes[:-1], long_axes[-1:]
    num_columns = math.prod(shape[i] for i in across)
    num_ranks = math.prod(shape)
    row, column = divmod(mark or 0, num_columns)
    rows = visible_indices(num_ranks // num_columns, row, num_ranks)
    columns = visible_indices(num_columns, column, num_ranks)
    cells = [
        [
            _cell(None if r is None or c is None else r * num_columns + c, rank_at, mark)
            for c in columns
        ]
        for r in rows
    ]
    down_axes, lengths = [axes[i] for i in down], tuple(shape[i] for i in down)
    labels = [row_label(down_axes, lengths, r, width) for r in rows]
    header = [ELLIPSIS if c is None else f"{axes[i]}={c}" for i in across for c in columns]
    return "\n".join(title + table_lines(header, labels, cells, width))


def table_lines(
    header: list[str], labels: list[str], cells: list[list[str]], width: int
) -> list[str]:
    """Return the rows of the picture, with the header if the columns fit side by side."""
    label_width = max(map(len, labels))
    rank_width = max(len(cell) for line in cells for cell in line)
    cell_width = max([rank_width, *map(len, header)])
    rows = list(zip(labels, cells, strict=True))
    if header and label_width + (cell_width + 2) * len(header) <= width:
        return [
            _line(label, line, label_width, cell_width) for label, line in [("", header), *rows]
        ]
    wrapped = [_wrap(label, line, label_width, rank_width, width) for label, line in rows]
    return [line for lines in wrapped for line in lines]


def visible_indices(count: int, marked: int, num_ranks: int) -> list[int | None]:
    """Return the indices to draw; None stands for a gap."""
    if num_ranks <= MAX_FULL or count <= 2 * EDGE + 1:
        return list(range(count))
    visible: list[int | None] = []
    for index in sorted({*range(EDGE), marked, *range(count - EDGE, count)}):
        if visible and visible[-1] is not None and index - visible[-1] > 1:
            visible.append(None)
        visible.append(index)
    return visible


def row_label(down: list[str], shape: tuple[int, ...], row: int | None, width: int) -> str:
    """Return the coordinate of a row along the axes that run down; an ellipsis for None."""
    if row is None:
        return ELLIPSIS
    indices = np.unravel_index(row, shape) if shape else ()
    label = " ".join(f"{axis}={int(i)}" for axis, i in zip(down, indices, strict=True))
    return _cut(label, width // 2)


def _cut(text: str, width: int) -> str:
    """Return the end of a long text; the number is at the end."""
    return text if len(text) <= width else "~" + text[1 - width :]


def _cell(position: int | None, rank_at: Callable[[int], int], mark: int | None) -> str:
    if position is None:
        return ELLIPSIS
    return f"[{rank_at(position)}]" if position == mark else str(rank_at(position))


def _line(label: str, cells: Iterable[str], label_width: int, cell_width: int) -> str:
    return label.ljust(label_width) + "".join(cell.rjust(cell_width + 2) for cell in cells)


def _wrap(label: str, cells: list[str], label_width: int, cell_width: int, width: int) -> list[str]:
    """Return one row as several lines, because its cells do not fit side by side."""
    step = max(1, (width - label_width) // (cell_width + 2))
    chunks = [cells[start : start + step] for start in range(0, len(cells), step)]
    labels = [label] + [""] * (len(chunks) - 1)
    lines = zip(labels, chunks, strict=True)
    return [_line(text, chunk, label_width, cell_width) for text, chunk in lines]
