"""Grids of ranks as plain ASCII text.

The last axis longer than 1 runs across, all others run down::

    dp=4 sp=2 tp=1
          sp=0  sp=1
    dp=0     0     1
    dp=1     2     3
    dp=2     4   [5]
    dp=3     6     7

Every number that stands alone is a rank. Each rank appears once.

The grid with a box for each node that holds the node's ranks at their coordinates.

::

    ┌ node 0 ──────────┐  ┌ node 1 ──────────┐
    │       sp=0  sp=1 │  │       sp=0  sp=1 │
    │ dp=0     0     1 │  │ dp=2     4     5 │
    │ dp=1     2     3 │  │ dp=3     6     7 │
    └──────────────────┘  └──────────────────┘

Every number that stands alone is a rank.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .text import GAP, MIN_WIDTH, Ints, count_noun

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


MAX_NODES = 16  # nodes that are all drawn; of more, the first and the last ones
EDGE_NODE_BOXES = 2  # nodes drawn at each end
UNICODE, ASCII = tuple("┌─┐│└┘"), tuple("+-+|++")


def draw_node_boxes(
    axes: tuple[str, ...], grid: Ints, nodes: Ints, *, width: int = 80, ascii: bool = False
) -> str:
    """Return the grid by node, of more than 16 the first and last two. ``nodes``: (num_ranks,)."""
    width, numbers = max(width, MIN_WIDTH), np.unique(nodes)
    drawing = _Drawing(axes, grid, nodes, ASCII if ascii else UNICODE)
    if len(numbers) <= MAX_NODES:
        lines = drawing.side_by_side(numbers, width)
    else:
        omitted = (
            f"{ELLIPSIS} {count_noun(len(numbers) - 2 * EDGE_NODE_BOXES, 'node')} more {ELLIPSIS}"
        )
        first = drawing.side_by_side(numbers[:EDGE_NODE_BOXES], width)
        lines = [*first, omitted, *drawing.side_by_side(numbers[-EDGE_NODE_BOXES:], width)]
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class _Drawing:
    """Data shared by all boxes of one picture."""

    axes: tuple[str, ...]
    grid: Ints
    nodes: Ints
    borders: tuple[str, ...]

    def side_by_side(self, numbers: Ints, width: int) -> list[str]:
        """Return the boxes of nodes in rows, as many in a row as fit into the width."""
        lines: list[str] = []
        row: list[list[str]] = []
        for box in (self.box(int(node), width) for node in numbers):
            if row and sum(len(other[0] + GAP) for other in row) + len(box[0]) > width:
                lines += _join(row)
                row = []
            row.append(box)
        return lines + (_join(row) if row else [])

    def box(self, node: int, width: int) -> list[str]:
        """Return one node as lines of equal length."""
        content = self._content(np.flatnonzero(self.nodes == node), width - 4)
        title = f" node {node} "
        size = max(len(title), *(len(line) + 2 for line in content))
        left, bar, right, side, low_left, low_right = self.borders
        head = left + title + bar * (size - len(title)) + right
        body = [f"{side} {line:{size - 2}} {side}" for line in content]
        return [head, *body, low_left + bar * size + low_right]

    def _content(self, positions: Ints, width: int) -> list[str]:
        """Return a node's ranks in the grid's rows and columns; ranks of other nodes are blank."""
        axes, shape = self.axes, self.grid.shape
        long_axes = [i for i, size in enumerate(shape) if size > 1]
        down, across = long_axes[:-1], long_axes[-1:]
        num_columns = math.prod(shape[i] for i in across)
        rows = _visible(np.unique(positions // num_columns), len(positions))
        columns = _visible(np.unique(positions % num_columns), len(positions))
        ranks = dict(zip(positions.tolist(), self.grid.ravel()[positions].tolist(), strict=True))
        cells = [
            [
                ELLIPSIS if r is None or c is None else str(ranks.get(r * num_columns + c, ""))
                for c in columns
            ]
            for r in rows
        ]
        down_axes, lengths = [axes[i] for i in down], tuple(shape[i] for i in down)
        labels = [row_label(down_axes, lengths, row, width) for row in rows]
        header = [ELLIPSIS if c is None else f"{axes[i]}={c}" for i in across for c in columns]
        return table_lines(header, labels, cells, width)


def _visible(indices: Ints, num_ranks: int) -> list[int | None]:
    """Return the indices to draw; None stands for a gap."""
    visible = visible_indices(len(indices), 0, num_ranks)
    return [None if i is None else int(indices[i]) for i in visible]


def _join(row: Sequence[list[str]]) -> list[str]:
    height = max(map(len, row))
    padded = [box + [" " * len(box[0])] * (height - len(box)) for box in row]
    return [GAP.join(parts) for parts in zip(*padded, strict=True)]
