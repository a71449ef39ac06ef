"""A layout as HTML: a table for a notebook, and one page that shows nodes and groups.

A cell is a rank at its coordinate; the last axis longer than 1 runs across. The page needs no other
file and no network. The rank under the pointer, or clicked, highlights its group along each axis in
the color of the axis, and its node.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence

import numpy as np

from .draw import axis_labels, num_across
from .errors import SpecError
from .text import Ints

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
    """Return a grid as one HTML page.

    ``colors`` maps each axis to its color. ``nodes`` has the node of each position: (num_ranks,).
    """
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
