"""Report of a job before it runs: axes, nodes, groups and batch; as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..arrays import Ints
from ..batch import Axes, BatchPlan, describe_data, resolve_data_axes
from ..draw.node_boxes import draw_node_boxes
from ..draw.table import format_items, format_table
from ..errors import format_error
from ..grid.group_plan import GroupPlan
from ..grid.layout import Layout
from ..text import count_noun, summarize
from ..topology.crossing import Crossing, crossings
from ..topology.crossing_policy import suggest_fix
from ..topology.topology import Topology

HEADER = ("axis", "size", "stride", "groups", "first group")


@dataclass(frozen=True)
class JobReport:
    """The report of a job before it runs. Create it with :meth:`of`."""

    layout: Layout
    topology: Topology | None
    axes: tuple[dict[str, Any], ...]  # a row for each axis
    groups_per_rank: int  # process groups of one rank, the default group included
    groups: int  # process groups in all, the default group included
    batch: BatchPlan | None
    warnings: tuple[str, ...]  # causes of slow communication
    placement: str = ""  # the axes that cross nodes, now and before the ranks were placed
    data: tuple[str, ...] = ()  # the axes that divide the samples, unless that is dp alone

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        topology: Topology | None = None,
        batch: BatchPlan | None = None,
        *,
        data: Axes | None = None,
        before: Layout | None = None,
    ) -> JobReport:
        """Return the report of a plan. Cost: O(axes x num_ranks) with a topology, else O(axes).

        The data axes of the batch are ``data``; if it is None, the roles of the axes give them.
        ``before`` is the layout before its ranks were placed.
        """
        layout = plan.layout
        crossing = {} if topology is None else crossings(layout, topology)
        rows = tuple(_axis_rows(layout, crossing))
        # axis sets that differ only in axes of size 1 have the same groups: see GroupPlan.group_key
        keys = {plan.group_key(axes) for axes in plan.axis_sets}
        groups = sum(layout.num_ranks // (layout.size(*key) if key else 1) for key in keys)
        warnings = () if topology is None else tuple(_warnings(layout, topology, crossing))
        axes = () if batch is None else resolve_data_axes(data, layout.sizes)
        divided = describe_data(layout.sizes, axes)
        placement = ""
        if before is not None and topology is not None:
            placement = describe_placement(before, layout, topology)
        return cls(layout, topology, rows, len(keys), groups, batch, warnings, placement, divided)

    @property
    def nodes(self) -> Ints | None:
        """The node of the rank at each position: int64 (num_ranks,); None if unknown."""
        ranks = self.layout.grid.ravel()
        return None if self.topology is None else self.topology.node_of(ranks)

    def as_dict(self) -> dict[str, object]:
        """Return the report in JSON types. Cost: O(axes x size + nodes)."""
        layout = self.layout
        return {
            "world_size": layout.num_ranks,
            "sizes": layout.sizes,
            "node_sizes": [] if self.topology is None else self.topology.sizes.tolist(),
            "axes": [*self.axes],
            "groups_per_rank": self.groups_per_rank,
            "groups": self.groups,
            "batch": self.batch and batch_dict(self.batch),
            "warnings": [*self.warnings],
            "placement": {"reason": self.placement, "ranks": [int(rank) for rank in layout.ranks]}
            if self.placement
            else None,
        }

    def draw(self, *, width: int = 80, ascii: bool = False) -> str:
        """Return the report as text."""
        layout, nodes = self.layout, self.nodes
        header = [*HEADER, *["crosses nodes"] * (nodes is not None)]
        rows = [
            [
                *(str(row[name]) for name in HEADER[:4]),
                summarize(row["first_group"]),
                *(["yes" if row["crossing"] else "no"] if nodes is not None else []),
            ]
            for row in self.axes
        ]
        table = format_table(header, rows, width=width, ascii=ascii)
        if nodes is None:
            grid = layout.draw(width=width).partition("\n")[2]  # the sizes stand above
        else:
            grid = draw_node_boxes(layout.axes, layout.grid, nodes, width=width, ascii=ascii)
        facts = [
            (
                "groups",
                f"{self.groups_per_rank} on each rank, the default group included; "
                f"{self.groups} in all",
            ),
            *([("batch", str(self.batch))] if self.batch else []),
            *(("", line.removesuffix(".")) for line in self.data),
            *([("placed", self.placement)] if self.placement else []),
            *(("warning", warning) for warning in self.warnings),
        ]
        title = headline(layout, self.topology)
        return "\n\n".join([title, table, grid, format_items(facts, width=width)])


def describe_placement(before: Layout, layout: Layout, topology: Topology) -> str:
    """Return which axes cross nodes after the placement, and which did before."""
    now, then = crossings(layout, topology), crossings(before, topology)
    lines = [
        f"{now[axis]}" + (f"; before, {then[axis]}" if str(now[axis]) != str(then[axis]) else "")
        for axis in layout.axes
        if layout.sizes[axis] > 1
    ]
    return "\n".join(lines or ["one rank"])


def batch_dict(batch: BatchPlan) -> dict[str, object]:
    """Return a batch plan in JSON types."""
    names = ("dp", "global_batch", "micro_batch", "accumulation_steps", "uneven")
    return {name: getattr(batch, name) for name in names}


def _axis_rows(layout: Layout, crossing: Mapping[str, Crossing]) -> Iterator[dict[str, Any]]:
    """Yield size, stride (positions between two indices), groups and crossings of each axis."""
    stride, first = layout.num_ranks, int(layout.ranks[0])
    for axis, size in layout.sizes.items():
        stride //= size
        on_nodes = crossing.get(axis)
        yield {
            "axis": axis,
            "size": size,
            "stride": stride,
            "groups": layout.num_ranks // size,
            "first_group": layout.peers(first, axis).tolist(),
            "crossing": on_nodes and on_nodes.crossing_groups,
            "spans": on_nodes and on_nodes.most,
        }


def _warnings(
    layout: Layout, topology: Topology, crossing: Mapping[str, Crossing]
) -> Iterator[str]:
    """Yield a warning with a fix if tp crosses nodes, as it communicates in every layer."""
    if "tp" in crossing and crossing["tp"].crosses:
        reason = "tp communicates in every layer, so it needs the fastest links."
        fix = suggest_fix(layout, topology, "tp")
        yield format_error(f"{crossing['tp']}.", reason, fix=f"{fix}.")


def headline(layout: Layout, topology: Topology | None = None) -> str:
    """Return one line with the sizes, the number of ranks and, if known, the nodes."""
    ranks = count_noun(layout.num_ranks, "rank") if topology is None else topology
    return f"{layout.sizes_text}: {ranks}"
