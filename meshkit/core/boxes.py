"""The grid by node: a box a node, with the ranks that sit on it at their coordinates.

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

from .draw.grid_text import GAP, kept, row_label, table_lines
from .draw.table import BETWEEN, NARROW
from .layout import Layout
from .seats import Ints
from .words import count_noun

NODES = 16  # nodes drawn one by one; of more, the first and the last ones
EDGE = 2
UNICODE, ASCII = tuple("┌─┐│└┘"), tuple("+-+|++")


def boxes(layout: Layout, nodes: Ints, *, width: int = 80, ascii: bool = False) -> str:
    """The grid by node. Pure; draws 16 nodes at most, the first and the last of more.

    Args:
        layout: the grid.
        nodes: int64 (num_ranks,), the node of the rank at each position.
        width: columns to fit into. At least 40 are used; a rank is never cut.
        ascii: whether to draw with ASCII characters only.

    Returns:
        Lines without a final newline.

    Example:
        >>> print(boxes(Layout(dp=2, tp=2), np.array([0, 0, 1, 1]), ascii=True))
        + node 0 ----------+  + node 1 ----------+
        |       tp=0  tp=1 |  |       tp=0  tp=1 |
        | dp=0     0     1 |  | dp=1     2     3 |
        +------------------+  +------------------+
    """
    width, names = max(width, NARROW), np.unique(nodes)
    drawing = _Drawing(layout, nodes, ASCII if ascii else UNICODE)
    many = len(names) > NODES
    first, last = (names[:EDGE], names[-EDGE:]) if many else (names, names[:0])
    lines = drawing.flowed(first, width)
    lines += [f"{GAP} {count_noun(len(names) - 2 * EDGE, 'node')} more {GAP}"] if many else []
    lines += drawing.flowed(last, width)
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class _Drawing:
    """What all boxes of one picture have in common."""

    layout: Layout
    nodes: Ints
    edges: tuple[str, ...]

    def flowed(self, names: Ints, width: int) -> list[str]:
        """Nodes side by side, as many as fit into the width."""
        lines: list[str] = []
        waiting: list[list[str]] = []
        for box in (self.box(int(node), width) for node in names):
            if waiting and sum(len(one[0] + BETWEEN) for one in waiting) + len(box[0]) > width:
                lines += _beside(waiting)
                waiting = []
            waiting.append(box)
        return lines + (_beside(waiting) if waiting else [])

    def box(self, node: int, width: int) -> list[str]:
        """One node as lines of one length."""
        inside = self._inside(np.flatnonzero(self.nodes == node), width - 4)
        title = f" node {node} "
        wide = max(len(title), *(len(line) + 2 for line in inside))
        left, bar, right, side, low_left, low_right = self.edges
        head = left + title + bar * (wide - len(title)) + right
        body = [f"{side} {line:{wide - 2}} {side}" for line in inside]
        return [head, *body, low_left + bar * wide + low_right]

    def _inside(self, positions: Ints, width: int) -> list[str]:
        """The ranks of a node in rows and columns of the grid; a cell of another node is blank."""
        layout, shape = self.layout, self.layout.shape
        long_axes = [i for i, size in enumerate(shape) if size > 1]
        down, across = long_axes[:-1], long_axes[-1:]
        columns = math.prod(shape[i] for i in across)
        rows = [int(row) for row in np.unique(positions // columns)]
        at = [int(column) for column in np.unique(positions % columns)]
        here, own = len(positions), {int(p): str(int(layout.ranks[p])) for p in positions}
        shown_rows = [None if i is None else rows[i] for i in kept(len(rows), 0, here)]
        shown = [None if i is None else at[i] for i in kept(len(at), 0, here)]
        cells = [
            [GAP if r is None or c is None else own.get(r * columns + c, "") for c in shown]
            for r in shown_rows
        ]
        names, lengths = [layout.axes[i] for i in down], tuple(shape[i] for i in down)
        labels = [row_label(names, lengths, row, width) for row in shown_rows]
        header = [GAP if c is None else f"{layout.axes[i]}={c}" for i in across for c in shown]
        return table_lines(header, labels, cells, width)


def _beside(row: Sequence[list[str]]) -> list[str]:
    high = max(map(len, row))
    filled = [box + [" " * len(box[0])] * (high - len(box)) for box in row]
    return [BETWEEN.join(parts) for parts in zip(*filled, strict=True)]
