"""Grids of ranks as plain text, as a box for each node, and as a page for a browser.

The last axis longer than 1 runs across, all others run down. Each rank appears once, and
every number that stands alone is a rank::

    dp=4 sp=2 tp=1          ┌ node 0 ──────────┐  ┌ node 1 ──────────┐
          sp=0  sp=1        │       sp=0  sp=1 │  │       sp=0  sp=1 │
    dp=0     0     1        │ dp=0     0     1 │  │ dp=2     4     5 │
    dp=1     2     3        │ dp=1     2     3 │  │ dp=3     6     7 │
    dp=2     4   [5]        └──────────────────┘  └──────────────────┘
    dp=3     6     7

The page is one HTML file that needs no other file and no network. The rank under the pointer shows
its coordinate, its samples, its group along each axis in the color of the axis, and lines to its
neighbors. plan_script.py has the script.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..errors import SpecError
from ..text import GAP, MB, MIN_WIDTH, Ints, count_noun, format_sizes
from .axes import axis_colors
from .page_script import SCRIPT, STYLE

MAX_FULL = 4096  # ranks of a grid that is drawn in full
EDGE = 4  # rows and columns drawn on each side of a gap
ELLIPSIS = "..."
MAX_NODES = 16  # nodes that are all drawn; of more, the first and the last ones
EDGE_NODE_BOXES = 2  # nodes drawn at each end
MAX_PAGE_RANKS = 131_072  # ranks of a page, which is then 2 MB at most
MAX_BYTES = 3 * MB  # of a page with several layouts
MAX_NOTEBOOK_RANKS = 16_384  # ranks of a page in a notebook
ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})  # of HTML
UNICODE, ASCII = tuple("┌─┐│└┘"), tuple("+-+|++")

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


class PageBatch(NamedTuple):
    """The samples of one step, and the axes that divide them."""

    axes: Sequence[str]  # the data axes, the outermost first
    dp: int  # data coordinates
    global_batch: int
    micro_batch: int


def draw_page(
    axes: Sequence[str],
    grid: Ints,
    *,
    title: str,
    text: str = "",
    nodes: Ints | None = None,
    racks: Ints | None = None,
    batch: PageBatch | None = None,
) -> str:
    """Return a grid of ranks as one HTML page.

    Args:
        axes: the name of each axis.
        grid: the rank at each position, in the shape of the mesh.
        title: a line about the plan.
        text: a report that stands below the grid.
        nodes: the node at each position, (num_ranks,); None if unknown.
        racks: the rack of each node, (num_nodes,); None if unknown.
        batch: the samples of one step; None if unknown.

    Raises:
        SpecError: if there are more than 131,072 ranks.

    Cost: O(ranks), 11 bytes a rank with nodes.
    """
    if grid.size > MAX_PAGE_RANKS:
        summary = f"{grid.size} ranks are too many for a page."
        raise SpecError(summary, f"A page has at most {MAX_PAGE_RANKS} ranks.", fix="fewer ranks.")
    sizes = dict(zip(axes, grid.shape, strict=True))
    ranks = grid.ravel().tolist()
    plan = {
        "axes": axis_rows(sizes, batch.axes if batch else ()),
        "ranks": None if ranks == [*range(grid.size)] else ranks,
        "nodes": None if nodes is None else nodes.tolist(),
        "racks": None if racks is None else racks.tolist(),
        "batch": batch
        and {"dp": batch.dp, "global": batch.global_batch, "micro": batch.micro_batch},
    }
    options = ["all" if nodes is None else "node", *(a for a, n in sizes.items() if n > 1)]
    colors = axis_colors(axes)
    switches = "".join(
        f'<label class="axis" style="border-color: {colors[axis]}">'
        f'<input type="checkbox" name="axis-{axis}" checked> {axis} {size}</label>'
        for axis, size in sizes.items()
        if size > 1
    )
    choices = "".join(f"<option>{name}</option>" for name in options)
    dashes = "" if nodes is None else " A dashed line leaves the node."
    report = f"<pre>{text.translate(ESCAPES)}</pre>" if text else ""
    data = json.dumps(plan, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{format_sizes(sizes)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>{format_sizes(sizes)}</h1>
<p>{title.translate(ESCAPES)}</p>
<form id="form">{switches}
<label>boxes by <select id="by">{choices}</select></label>
<label>rank <input id="rank" type="number" min="0" value="{ranks[0]}"></label></form>
<p class="hint">Point at a rank, or click to keep it.{dashes}</p>
<main><div id="grid"><canvas id="canvas"></canvas></div><div id="facts"></div></main>
{report}
<script>
const plan = {data};
{SCRIPT}</script></body></html>
"""


def join_pages(pages: Sequence[str], text: str) -> str:
    """Return one page that shows several, one below the other, and a report below all."""
    size = sum(map(len, pages))
    if size > MAX_BYTES:
        summary = f"{len(pages)} layouts need a page of {size / MB:.1f} MB."
        limit = f"A page has at most {MAX_BYTES / MB:g} MB."
        raise SpecError(summary, limit, fix="a page for each layout.")
    frames = "".join(f'<iframe srcdoc="{page.translate(ESCAPES)}"></iframe>' for page in pages)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{len(pages)} layouts</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body class="pages">{frames}<pre>{text.translate(ESCAPES)}</pre>
<script>onload = () => performance.mark("drawn");</script></body></html>
"""


def axis_rows(sizes: Mapping[str, int], data: Sequence[str]) -> list[dict[str, object]]:
    """Return size, stride and color of each axis, and its stride among the data coordinates.

    Example:
        >>> rows = axis_rows({"dp": 2, "ep": 3, "tp": 4}, ["dp", "ep"])
        >>> [(row["name"], row["stride"], row["data"]) for row in rows]
        [('dp', 12, 3), ('ep', 4, 1), ('tp', 1, 0)]
    """
    strides = [math.prod([*sizes.values()][i + 1 :]) for i in range(len(sizes))]
    along_data = [*accumulate([1, *(sizes.get(axis, 1) for axis in reversed(data))], int.__mul__)]
    data_strides = dict(zip(reversed(data), along_data, strict=False))
    colors = axis_colors(tuple(sizes))
    return [
        {
            "name": axis,
            "size": size,
            "stride": stride,
            "data": data_strides.get(axis, 0),
            "color": colors[axis],
        }
        for (axis, size), stride in zip(sizes.items(), strides, strict=True)
    ]


def notebook_html(axes: Sequence[str], grid: Ints, text: str) -> str:
    """Return a grid as a frame with its page for a notebook; the text shows without scripts."""
    title = f"{grid.size} ranks"
    page = draw_page(axes, grid, title=title).translate(ESCAPES)
    sizes = format_sizes(dict(zip(axes, grid.shape, strict=True)))
    return (
        f'<iframe srcdoc="{page}" style="width: 100%; height: 30em; border: 0"></iframe>\n'
        f"<details><summary>{sizes}</summary><pre>{text.translate(ESCAPES)}</pre></details>"
    )
