"""The grid with a box for each node that holds the node's ranks at their coordinates.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from ..text import count_noun
from .grid_text import ELLIPSIS, row_label, table_lines, visible_indices
from .table import GAP, MIN_WIDTH

MAX_NODES = 16  # nodes that are all drawn; of more, the first and the last ones
EDGE = 2  # nodes drawn at each end
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
        omitted = f"{ELLIPSIS} {count_noun(len(numbers) - 2 * EDGE, 'node')} more {ELLIPSIS}"
        first = drawing.side_by_side(numbers[:EDGE], width)
        lines = [*first, omitted, *drawing.side_by_side(numbers[-EDGE:], width)]
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
