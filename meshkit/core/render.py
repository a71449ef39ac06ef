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

import textwrap
from collections.abc import Iterable

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
    width = max(width, 40)
    sizes = [f"{axis}={size}" for axis, size in zip(axes, grid.shape, strict=True)]
    title = textwrap.wrap(" ".join(_cut(size, width) for size in sizes), width)
    long_axes = [i for i, size in enumerate(grid.shape) if size > 1]
    down, across = long_axes[:-1], long_axes[-1:]
    table = grid.reshape(-1, *[grid.shape[i] for i in across] or [1])  # (num_rows, num_columns)
    names = [axes[i] for i in across] or [""]
    row_shape = tuple(grid.shape[i] for i in down)
    return "\n".join(
        title + _table(table, names[0], [axes[i] for i in down], row_shape, mark, width)
    )


def _table(
    table: NDArray[np.int64],
    across: str,
    down: list[str],
    row_shape: tuple[int, ...],
    mark: int | None,
    width: int,
) -> list[str]:
    """The rows of the picture, with a header where the columns fit side by side."""
    here = np.argwhere(table == mark)[0] if mark is not None and mark in table else (0, 0)
    rows = _kept(table.shape[0], int(here[0]), table.size)
    columns = _kept(table.shape[1], int(here[1]), table.size)
    labels = [_label(down, row_shape, row, width) for row in rows]
    lead = max(map(len, labels))
    cells = [[_cell(table, row, column, mark) for column in columns] for row in rows]
    header = [GAP if c is None else f"{across}={c}" for c in columns] if across else []
    pad = max(len(cell) for line in cells for cell in line)
    wide = max([pad, *map(len, header)])
    if header and lead + (wide + 2) * len(columns) <= width:
        return [_line("", header, lead, wide)] + [
            _line(label, line, lead, wide) for label, line in zip(labels, cells, strict=True)
        ]
    wrapped = [_wrap(la, li, lead, pad, width) for la, li in zip(labels, cells, strict=True)]
    return [line for lines in wrapped for line in lines]


def _kept(count: int, here: int, total: int) -> list[int | None]:
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


def _label(down: list[str], shape: tuple[int, ...], row: int | None, width: int) -> str:
    if row is None:
        return GAP
    places = np.unravel_index(row, shape) if shape else ()
    label = " ".join(f"{axis}={int(i)}" for axis, i in zip(down, places, strict=True))
    return _cut(label, width // 2)


def _cut(text: str, width: int) -> str:
    """The end of a text that is too long: that is where the number stands."""
    return text if len(text) <= width else "~" + text[1 - width :]


def _cell(table: NDArray[np.int64], row: int | None, column: int | None, mark: int | None) -> str:
    if row is None or column is None:
        return GAP
    rank = int(table[row, column])
    return f"[{rank}]" if rank == mark else str(rank)


def _line(label: str, cells: Iterable[str], lead: int, wide: int) -> str:
    return label.ljust(lead) + "".join(cell.rjust(wide + 2) for cell in cells)


def _wrap(label: str, cells: list[str], lead: int, pad: int, width: int) -> list[str]:
    """One row over several lines, where its cells do not fit side by side."""
    step = max(1, (width - lead) // (pad + 2))
    chunks = [cells[start : start + step] for start in range(0, len(cells), step)]
    return [_line(label if i == 0 else "", chunk, lead, pad) for i, chunk in enumerate(chunks)]
