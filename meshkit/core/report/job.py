"""Report of a job before it runs: axes, nodes, groups and batch; as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..arrays import Ints
from ..data.batch import BatchPlan
from ..data.data_axes import Axes, describe_data, resolve_data_axes
from ..draw.node_boxes import draw_node_boxes
from ..draw.table import format_items, format_table
from ..errors import SpecError, format_error
from ..grid.group_plan import GroupPlan
from ..grid.layout import Layout
from ..text import count_noun, summarize
from ..topology.crossing import Crossing, crossings
from ..topology.crossing_policy import suggest_fix
from ..topology.placement import Placement
from ..topology.topology import Topology


@dataclass(frozen=True)
class AxisRow:
    """One axis of a layout."""

    axis: str
    size: int
    stride: int  # positions between two neighboring indices
    groups: int
    first_group: tuple[int, ...]
    crossing: int | None  # groups on several nodes; None if the topology is unknown
    spans: int | None  # nodes of one group at most; None likewise


@dataclass(frozen=True)
class JobReport:
    """The report of a job before it runs. Create it with :meth:`of`."""

    layout: Layout
    topology: Topology | None
    axes: tuple[AxisRow, ...]
    groups_per_rank: int  # process groups of one rank, the default group included
    groups: int  # process groups in all, the default group included
    batch: BatchPlan | None
    warnings: tuple[SpecError, ...]  # causes of slow communication; each quotes ``build_mesh``
    placement: Placement | None = None
    data: tuple[str, ...] = ()  # the axes that divide the samples, unless that is dp alone

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        topology: Topology | None = None,
        batch: BatchPlan | None = None,
        *,
        data: Axes | None = None,
        placement: Placement | None = None,
    ) -> JobReport:
        """Return the report of a plan. Cost: O(axes x num_ranks) with a topology, else O(axes).

        The data axes of the batch are ``data``; if it is None, the roles of the axes give them.
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
        return cls(layout, topology, rows, len(keys), groups, batch, warnings, placement, divided)

    @property
    def nodes(self) -> Ints | None:
        """The node of the rank at each position: int64 (num_ranks,); None if unknown."""
        ranks = self.layout.grid.ravel()
        return None if self.topology is None else self.topology.node_of(ranks)

    def as_dict(self) -> dict[str, object]:
        """Return the report in JSON types. Cost: O(axes x size + nodes)."""
        axes = [vars(row) | {"first_group": list(row.first_group)} for row in self.axes]
        return {
            "world_size": self.layout.num_ranks,
            "sizes": self.layout.sizes,
            "node_sizes": [] if self.topology is None else self.topology.sizes.tolist(),
            "axes": axes,
            "groups_per_rank": self.groups_per_rank,
            "groups": self.groups,
            "batch": self.batch and batch_dict(self.batch),
            "warnings": [*map(format_warning, self.warnings)],
            "placement": self.placement and placement_dict(self.placement),
        }


def placement_dict(placement: Placement) -> dict[str, object]:
    """Return a placement in JSON types. Cost: O(num_ranks)."""
    texts = {name: getattr(placement, name) for name in ("reason", "runner_up")}
    costs = {"cost": dict(placement.cost), "before": dict(placement.before)}
    return {**texts, **costs, "ranks": [int(rank) for rank in placement.layout.ranks]}


def batch_dict(batch: BatchPlan) -> dict[str, object]:
    """Return a batch plan in JSON types."""
    names = ("dp", "global_batch", "micro_batch", "accumulation_steps", "uneven")
    return {name: getattr(batch, name) for name in names}


def _axis_rows(layout: Layout, crossing: Mapping[str, Crossing]) -> Iterator[AxisRow]:
    stride = layout.num_ranks
    first = int(layout.ranks[0])
    for axis, size in layout.sizes.items():
        stride //= size
        on_nodes = crossing.get(axis)
        yield AxisRow(
            axis,
            size,
            stride,
            layout.num_ranks // size,
            tuple(layout.peers(first, axis).tolist()),
            None if on_nodes is None else on_nodes.crossing_groups,
            None if on_nodes is None else on_nodes.most,
        )


def _warnings(
    layout: Layout, topology: Topology, crossing: Mapping[str, Crossing]
) -> Iterator[SpecError]:
    """Yield a warning with a fix if tp crosses nodes, as it communicates in every layer."""
    if "tp" in crossing and crossing["tp"].crosses:
        reason = "tp communicates in every layer, so it needs the fastest links."
        fix = suggest_fix(layout, topology, "tp")
        yield SpecError(f"{crossing['tp']}.", reason, fix=fix)


def format_warning(warning: SpecError) -> str:
    """Return the text of a warning, whose fix quotes the call but whose first line does not."""
    return format_error(warning.summary, *warning.evidence, fix=warning.fix_text)


HEADER = ("axis", "size", "stride", "groups", "first group")


def format_job(report: JobReport, *, width: int = 80, ascii: bool = False) -> str:
    """Return the report of a job as text."""
    has_nodes = report.topology is not None
    header = [*HEADER, *["crosses nodes"] * has_nodes]
    axes = format_table(header, [_axis_cells(row) for row in report.axes], width=width, ascii=ascii)
    parts = [headline(report.layout, report.topology), axes, _draw_grid(report, width, ascii)]
    return "\n\n".join([*parts, format_items(_facts(report), width=width)])


def headline(layout: Layout, topology: Topology | None = None) -> str:
    """Return one line with the sizes, the number of ranks and, if known, the nodes."""
    ranks = count_noun(layout.num_ranks, "rank") if topology is None else topology
    return f"{layout.sizes_text}: {ranks}"


def _axis_cells(row: AxisRow) -> list[str]:
    numbers = [str(row.size), str(row.stride), str(row.groups)]
    crosses = [] if row.crossing is None else ["yes" if row.crossing else "no"]
    return [row.axis, *numbers, summarize(row.first_group), *crosses]


def _draw_grid(report: JobReport, width: int, ascii: bool) -> str:
    layout, nodes = report.layout, report.nodes
    if nodes is None:
        return layout.draw(width=width).partition("\n")[2]  # the sizes stand above
    return draw_node_boxes(layout.axes, layout.grid, nodes, width=width, ascii=ascii)


def _facts(report: JobReport) -> list[tuple[str, str]]:
    """Return groups, batch and warnings, with their names."""
    per_rank = f"{report.groups_per_rank} on each rank, the default group included"
    facts = [("groups", f"{per_rank}; {report.groups} in all")]
    facts += [("batch", str(report.batch))] if report.batch else []
    facts += [("", line.removesuffix(".")) for line in report.data]
    facts += [("placed", str(report.placement))] if report.placement else []
    return facts + [("warning", format_warning(warning)) for warning in report.warnings]
