"""A job before it runs, as text: its axes, its grid by node, its groups and its batch."""

from __future__ import annotations

from .draw.node_boxes import draw_node_boxes
from .draw.table import format_items, format_table
from .layout import Layout
from .overview import AxisRow, Overview
from .topology.topology import Topology
from .words import count_noun, format_sizes, summarize

HEADER = ("axis", "size", "stride", "groups", "first group")


def sheet(overview: Overview, *, width: int = 80, ascii: bool = False) -> str:
    """All of an overview. Pure.

    Args:
        overview: what there is to say.
        width: columns to fit into. At least 40 are used; a number is never cut.
        ascii: whether to draw with ASCII characters only.

    Returns:
        Lines without a final newline.
    """
    placed = overview.topology is not None
    header = [*HEADER, *["crosses nodes"] * placed]
    axes = format_table(header, [_row(row) for row in overview.axes], width=width, ascii=ascii)
    parts = [headline(overview.layout, overview.topology), axes, _grid(overview, width, ascii)]
    return "\n\n".join([*parts, format_items(_facts(overview), width=width)])


def headline(layout: Layout, topology: Topology | None = None) -> str:
    """The sizes, the ranks and, where they are known, the nodes in a line.

    Example:
        >>> headline(Layout(dp=4, sp=2)), headline(Layout(dp=15), Topology.of_sizes([7, 8]))
        ('dp=4 sp=2: 8 ranks', 'dp=15: 15 ranks on 2 nodes of 7 and 8')
    """
    where = count_noun(layout.num_ranks, "rank") if topology is None else topology
    return f"{format_sizes(layout.sizes)}: {where}"


def _row(row: AxisRow) -> list[str]:
    numbers = [str(row.size), str(row.stride), str(row.groups)]
    crosses = [] if row.crossing is None else ["yes" if row.crossing else "no"]
    return [row.axis, *numbers, summarize(row.first_group), *crosses]


def _grid(overview: Overview, width: int, ascii: bool) -> str:
    nodes = overview.nodes
    if nodes is None:
        return overview.layout.draw(width=width).partition("\n")[2]  # the sizes stand above
    return draw_node_boxes(overview.layout, nodes, width=width, ascii=ascii)


def _facts(overview: Overview) -> list[tuple[str, str]]:
    """Groups, batch and warnings, by name."""
    mine = f"{overview.groups_per_rank} on each rank, the default group included"
    facts = [("groups", f"{mine}; {overview.groups} in all")]
    facts += [("batch", str(overview.batch))] if overview.batch else []
    facts += [("placed", str(overview.placement))] if overview.placement else []
    return facts + [("warning", text) for text in overview.warnings]
