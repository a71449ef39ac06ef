"""The page of a plan: one HTML file that shows the ranks in their nodes and racks.

It needs no other file and no network. The rank under the pointer shows its coordinate, its samples,
its group along each axis in the color of the axis, and lines to its neighbors. plan_script.py has
the script.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from .axes import axis_colors
from .errors import SpecError
from .plan_script import SCRIPT, STYLE
from .text import Ints, format_sizes

MAX_RANKS = 131_072  # ranks of a page, which is then 2 MB at most
MAX_BYTES = 3_000_000  # of a page with several layouts
MAX_NOTEBOOK_RANKS = 16_384  # ranks of a page in a notebook


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
    if grid.size > MAX_RANKS:
        summary = f"{grid.size} ranks are too many for a page."
        raise SpecError(summary, f"A page has at most {MAX_RANKS} ranks.", fix="fewer ranks.")
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
    options = [
        *(["node"] if nodes is not None else ["all"]),
        *(a for a, n in sizes.items() if n > 1),
    ]
    colors = axis_colors(axes)
    switches = "".join(
        f'<label class="axis" style="border-color: {colors[axis]}">'
        f'<input type="checkbox" name="axis-{axis}" checked> {axis} {size}</label>'
        for axis, size in sizes.items()
        if size > 1
    )
    choices = "".join(f"<option>{name}</option>" for name in options)
    dashes = "" if nodes is None else " A dashed line leaves the node."
    report = f"<pre>{html.escape(text)}</pre>" if text else ""
    data = json.dumps(plan, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{format_sizes(sizes)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>{format_sizes(sizes)}</h1>
<p>{html.escape(title)}</p>
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
        summary = f"{len(pages)} layouts need a page of {size / 1e6:.1f} MB."
        limit = f"A page has at most {MAX_BYTES / 1e6:g} MB."
        raise SpecError(summary, limit, fix="a page for each layout.")
    frames = "".join(f'<iframe srcdoc="{html.escape(page)}"></iframe>' for page in pages)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{len(pages)} layouts</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body class="pages">{frames}<pre>{html.escape(text)}</pre>
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
    page = html.escape(draw_page(axes, grid, title=title))
    sizes = format_sizes(dict(zip(axes, grid.shape, strict=True)))
    return (
        f'<iframe srcdoc="{page}" style="width: 100%; height: 30em; border: 0"></iframe>\n'
        f"<details><summary>{sizes}</summary><pre>{html.escape(text)}</pre></details>"
    )
