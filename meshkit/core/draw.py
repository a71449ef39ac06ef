"""Grids of ranks as plain text, a box for each node, a table for a notebook, and an HTML page.

The last axis longer than 1 runs across, all others run down. Each rank appears once, and
every number that stands alone is a rank::

    dp=4 sp=2 tp=1          ┌ node 0 ──────────┐  ┌ node 1 ──────────┐
          sp=0  sp=1        │       sp=0  sp=1 │  │       sp=0  sp=1 │
    dp=0     0     1        │ dp=0     0     1 │  │ dp=2     4     5 │
    dp=1     2     3        │ dp=1     2     3 │  │ dp=3     6     7 │
    dp=2     4   [5]        └──────────────────┘  └──────────────────┘
    dp=3     6     7

The HTML page needs no other file and no network. The rank under the pointer, or clicked, highlights
its group along each axis in the color of the axis, and its node.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from .errors import SpecError
from .text import GAP, MIN_WIDTH, Ints, count_noun

MAX_FULL = 4096  # ranks of a grid that is drawn in full
EDGE = 4  # rows and columns drawn on each side of a gap
ELLIPSIS = "..."
MAX_NODES = 16  # nodes that are all drawn; of more, the first and the last ones
EDGE_NODE_BOXES = 2  # nodes drawn at each end
UNICODE, ASCII = tuple("┌─┐│└┘"), tuple("+-+|++")

MAX_RANKS = 16_384  # ranks of a page
MAX_NOTEBOOK_RANKS = 1024  # ranks of a table in a notebook

STYLE = """
table.meshkit {border-collapse: separate; border-spacing: 2px; font: 13px monospace}
.meshkit td, .meshkit th {padding: 3px 7px; text-align: right; font-weight: normal}
.meshkit td {background: #8881; border: 2px solid #8883; cursor: default}
"""
PAGE_STYLE = """
body {font: 14px sans-serif; margin: 2em; color-scheme: light dark}
.node {outline: 2px dashed #888}
.chosen {font-weight: bold; border-color: currentcolor !important}
#axes span {border: 3px solid; padding: 2px 8px; margin-right: 8px}
#facts {font: 13px monospace; white-space: pre; min-height: 9em}
"""
SCRIPT = """
const cells = [...document.querySelectorAll("td[data-p]")];
const at = p => plan.shape.map((n, i) => Math.floor(p / plan.strides[i]) % n);
const same = (a, b, i) => a.every((index, j) => j === i || index === b[j]);
let fixed = null;
function show(p) {
  const here = at(p), groups = plan.axes.map(() => []);
  for (const cell of cells) {
    const q = +cell.dataset.p, there = at(q);
    const along = plan.axes.findIndex((_, i) => plan.shape[i] > 1 && same(here, there, i));
    plan.axes.forEach((_, i) => { if (same(here, there, i)) groups[i].push(plan.ranks[q]); });
    cell.style.borderColor = along < 0 || q === p ? "" : plan.colors[along];
    cell.classList.toggle("chosen", q === p);
    cell.classList.toggle("node", !!plan.nodes && plan.nodes[q] === plan.nodes[p]);
  }
  const lines = [`rank ${plan.ranks[p]}: ` + plan.axes.map((a, i) => `${a}=${here[i]}`).join(" ")];
  if (plan.nodes) lines.push(`node ${plan.nodes[p]}`);
  plan.axes.forEach((a, i) => lines.push(`group of ${a}: ${groups[i].join(", ")}`));
  document.getElementById("facts").textContent = lines.join("\\n");
}
for (const cell of cells) {
  const p = +cell.dataset.p;
  cell.onmouseenter = () => { if (fixed === null) show(p); };
  cell.onclick = () => { fixed = fixed === p ? null : p; show(p); };
}
show(0);
"""

Indices = Sequence[int | None]  # of rows or columns to draw; None is a gap


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
    num_ranks, num_columns = math.prod(shape), num_across(shape)
    row, column = divmod(mark or 0, num_columns)
    rows = _visible(range(num_ranks // num_columns), row, num_ranks)
    columns = _visible(range(num_columns), column, num_ranks)

    def cell(position: int) -> str:
        return f"[{rank_at(position)}]" if position == mark else str(rank_at(position))

    return "\n".join([*title, *_draw_rows(axes, shape, rows, columns, cell, width)])


def draw_node_boxes(
    axes: tuple[str, ...], grid: Ints, nodes: Ints, *, width: int = 80, ascii: bool = False
) -> str:
    """Return the grid by node, of more than 16 the first and last two. ``nodes``: (num_ranks,)."""
    width, numbers = max(width, MIN_WIDTH), np.flatnonzero(np.bincount(nodes))
    borders, num_columns, ranks = ASCII if ascii else UNICODE, num_across(grid.shape), grid.ravel()

    def box(node: int) -> list[str]:
        """Return the ranks of a node in the grid's rows and columns; other ranks are blank."""
        positions = np.flatnonzero(nodes == node)
        rank_at = dict(zip(positions.tolist(), map(str, ranks[positions].tolist()), strict=True))
        rows, columns = (
            _visible(np.unique(part).tolist(), 0, len(positions))
            for part in np.divmod(positions, num_columns)
        )
        cell = lambda position: rank_at.get(position, "")  # noqa: E731
        content = _draw_rows(axes, grid.shape, rows, columns, cell, width - 4)
        title = f" node {node} "
        size = max(len(title), *(len(line) + 2 for line in content))
        left, bar, right, side, low_left, low_right = borders
        head = left + title + bar * (size - len(title)) + right
        body = [f"{side} {line:{size - 2}} {side}" for line in content]
        return [head, *body, low_left + bar * size + low_right]

    if len(numbers) <= MAX_NODES:
        lines = _side_by_side(map(box, numbers.tolist()), width)
    else:
        num_omitted = len(numbers) - 2 * EDGE_NODE_BOXES
        lines = _side_by_side(map(box, numbers[:EDGE_NODE_BOXES].tolist()), width)
        lines.append(f"{ELLIPSIS} {count_noun(num_omitted, 'node')} more {ELLIPSIS}")
        lines += _side_by_side(map(box, numbers[-EDGE_NODE_BOXES:].tolist()), width)
    return "\n".join(line.rstrip() for line in lines)


def num_across(shape: Sequence[int]) -> int:
    """Return the number of columns: the size of the last axis longer than 1."""
    return next((size for size in reversed(shape) if size > 1), 1)


def axis_labels(
    axes: Sequence[str], shape: Sequence[int], rows: Indices, columns: Indices, width: int
) -> tuple[list[str], list[str]]:
    """Return the label of each row and of each column: its index along the axes; none of one."""
    *down, across = [i for i, size in enumerate(shape) if size > 1] or [-1]
    lengths, labels = tuple(shape[i] for i in down), []
    for row in rows:
        indices = np.unravel_index(row or 0, lengths) if lengths else ()
        label = " ".join(f"{axes[i]}={int(n)}" for i, n in zip(down, indices, strict=True))
        labels.append(ELLIPSIS if row is None else _cut(label, width // 2))
    header = [ELLIPSIS if c is None else f"{axes[across]}={c}" for c in columns]
    return labels, header if across >= 0 else []


def _draw_rows(
    axes: Sequence[str],
    shape: Sequence[int],
    rows: Indices,
    columns: Indices,
    cell: Callable[[int], str],
    width: int,
) -> list[str]:
    """Return the rows of a picture, with the header if the columns fit side by side."""
    labels, header = axis_labels(axes, shape, rows, columns, width)
    count = num_across(shape)
    table = [
        [ELLIPSIS if r is None or c is None else cell(r * count + c) for c in columns] for r in rows
    ]
    label_width = max(map(len, labels))
    rank_width = max(len(text) for line in table for text in line)
    cell_width = max([rank_width, *map(len, header)])
    if header and label_width + (cell_width + 2) * len(header) <= width:
        return [
            _line(label, line, label_width, cell_width)
            for label, line in zip(["", *labels], [header, *table], strict=True)
        ]
    step = max(1, (width - label_width) // (rank_width + 2))
    return [
        _line("" if start else label, line[start : start + step], label_width, rank_width)
        for label, line in zip(labels, table, strict=True)
        for start in range(0, len(line), step)
    ]


def _visible(indices: Sequence[int], marked: int, num_ranks: int) -> list[int | None]:
    """Return the indices to draw: all, or the first, the last and the one at ``marked``."""
    count = len(indices)
    if num_ranks <= MAX_FULL or count <= 2 * EDGE + 1:
        return list(indices)
    visible: list[int | None] = []
    before = -1
    for position in sorted({*range(EDGE), marked, *range(count - EDGE, count)}):
        visible += [None] * (position - before > 1)
        visible.append(indices[position])
        before = position
    return visible


def _side_by_side(boxes: Iterable[list[str]], width: int) -> list[str]:
    """Return boxes in rows, as many in a row as fit into the width."""
    rows: list[list[list[str]]] = []
    for box in boxes:
        if rows and sum(len(other[0] + GAP) for other in rows[-1]) + len(box[0]) <= width:
            rows[-1].append(box)
        else:
            rows.append([box])
    lines = []
    for row in rows:
        height = max(map(len, row))
        padded = [box + [" " * len(box[0])] * (height - len(box)) for box in row]
        lines += [GAP.join(parts) for parts in zip(*padded, strict=True)]
    return lines


def _cut(text: str, width: int) -> str:
    """Return the end of a long text; the number is at the end."""
    return text if len(text) <= width else "~" + text[1 - width :]


def _line(label: str, cells: Iterable[str], label_width: int, cell_width: int) -> str:
    return label.ljust(label_width) + "".join(cell.rjust(cell_width + 2) for cell in cells)


def draw_table(axes: Sequence[str], grid: Ints) -> str:
    """Return a grid of ranks as an HTML table, with the coordinates at its edges."""
    table = grid.reshape(-1, num_across(grid.shape))
    rows, columns = map(range, table.shape)
    labels, header = axis_labels(axes, grid.shape, rows, columns, 400)
    head = "".join(f"<th>{text}</th>" for text in header)
    lines = ['<table class="meshkit">', f"<tr><th></th>{head}</tr>"]
    for row, (label, ranks) in enumerate(zip(labels, table.tolist(), strict=True)):
        start = row * len(columns)
        cells = "".join(f'<td data-p="{p}">{rank}</td>' for p, rank in enumerate(ranks, start))
        lines.append(f"<tr><th>{label}</th>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def notebook_html(axes: Sequence[str], grid: Ints) -> str:
    """Return a grid as a table for a notebook."""
    sizes = " ".join(f"{axis}={size}" for axis, size in zip(axes, grid.shape, strict=True))
    return f"<style>{STYLE}</style>\n<div>{sizes}</div>\n{draw_table(axes, grid)}"


def draw_page(title: str, colors: Mapping[str, str], grid: Ints, nodes: Ints | None = None) -> str:
    """Return a grid as one HTML page."""
    axes = [*colors]
    if grid.size > MAX_RANKS:
        summary = f"{grid.size} ranks are too many for a page."
        raise SpecError(summary, f"A page has at most {MAX_RANKS} ranks.", fix="fewer ranks.")
    plan = {
        "axes": axes,
        "shape": grid.shape,
        "strides": [int(n) // grid.itemsize for n in np.empty(grid.shape, grid.dtype).strides],
        "ranks": grid.ravel().tolist(),
        "nodes": None if nodes is None else nodes.tolist(),
        "colors": [colors[axis] for axis in axes],
    }
    legend = "".join(
        f'<span style="border-color: {colors[axis]}">{axis}={size}</span>'
        for axis, size in zip(axes, grid.shape, strict=True)
    )
    name = html.escape(title)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<style>{STYLE}{PAGE_STYLE}</style></head>
<body>
<h1>{name}</h1>
<p id="axes">{legend}</p>
<p>The rank under the pointer shows its group along each axis, in the color of the axis, and its
node, with dashes. A click keeps the rank.</p>
<div id="facts"></div>
{draw_table(axes, grid)}
<script>
const plan = {json.dumps(plan)};
{SCRIPT}</script>
</body></html>
"""
