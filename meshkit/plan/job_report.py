"""The report of a job before it runs: axes, groups, nodes, batch, placement and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ..data.batch import BatchPlan, describe_data, resolve_data_axes
from ..errors import format_error
from ..layout.axes import Axes
from ..layout.crossings import Crossing, crossings, suggest_fix
from ..layout.draw import PageBatch, draw_node_boxes, draw_page, join_pages
from ..layout.group_plan import GroupPlan
from ..layout.layout import Layout
from ..layout.topology import Topology
from ..synonyms import STANDARD, STANDARD_OF
from ..text import Ints, count_noun, format_table, plural, summarize
from .compare import Moves
from .layout_cost import CostTable

AXIS_HEADER = ("axis", "size", "stride", "groups", "first group")
OPTIONS = {"place": "--place", "order": "--order {1}"}  # of the command, to keep an axis inside
BATCH_FIELDS = ("dp", "global_batch", "micro_batch", "accumulation_steps", "uneven")


def headline(layout: Layout, topology: Topology | None = None) -> str:
    """Return one line with the sizes, the number of ranks and, if known, the nodes."""
    ranks = count_noun(layout.num_ranks, "rank") if topology is None else topology
    return f"{layout.sizes_text}: {ranks}"


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
    data_axes: Axes = ()  # all axes that divide the samples

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
        """Return the report of a plan. Cost: O(axes x num_ranks) with a topology, else O(axes)."""
        layout, placement = plan.layout, ""
        warnings: tuple[str, ...] = ()
        crossing = {} if topology is None else crossings(layout, topology)
        outer = () if topology is None else topology.levels[-2::-1]  # racks, then what holds them
        by_level = {n: crossings(layout, topology, level=n) for n in outer if topology}
        rows = tuple(_axis_rows(layout, crossing, by_level))
        keys = {*plan.keys.values()}  # axis sets of one key have the same groups
        groups = sum(layout.num_ranks // layout.size(key) for key in keys)
        if topology is not None and "tp" in crossing and crossing["tp"].crosses:
            reason = "tp communicates in every layer, so it needs the fastest links."
            fix = f"{suggest_fix(layout, topology, 'tp', **OPTIONS)}."
            warnings = (format_error(f"{crossing['tp']}.", reason, fix=fix),)
        axes = () if batch is None else resolve_data_axes(data, layout.sizes)
        divided = describe_data(layout.sizes, axes)
        if before is not None and topology is not None:
            placement = describe_placement(before, layout, topology)
        return cls(
            layout, topology, rows, len(keys), groups, batch, warnings, placement, divided, axes
        )

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
            "batch": self.batch and {name: getattr(self.batch, name) for name in BATCH_FIELDS},
            "warnings": [*self.warnings],
            "placement": {"reason": self.placement, "ranks": [int(rank) for rank in layout.ranks]}
            if self.placement
            else None,
        }

    def draw_grid(self, *, width: int = 80, ascii: bool = False) -> str:
        """Return the ranks, in a box for each node if the nodes are known."""
        layout, nodes = self.layout, self.nodes
        if nodes is None:
            return layout.draw(width=width).partition("\n")[2]  # the sizes stand above
        return draw_node_boxes(layout.axes, layout.grid, nodes, width=width, ascii=ascii)

    def draw_facts(self, *, width: int = 80, ascii: bool = False) -> list[str]:
        """Return the title, the table of the axes, and the lines on groups, batch and placement."""
        outer = [*self.axes[0]["outer"]]
        levels = [*["node"] * (self.topology is not None), *outer]
        header = [*AXIS_HEADER, *(f"crosses {plural(level)}" for level in levels)]
        rows = [
            [
                *(str(row[name]) for name in AXIS_HEADER[:4]),
                summarize(row["first_group"]),
                *(
                    "yes" if crossing else "no"
                    for crossing in (row["crossing"], *(row["outer"][n]["crossing"] for n in outer))
                    if crossing is not None
                ),
            ]
            for row in self.axes
        ]
        table = format_table(rows, header, width=width, ascii=ascii)
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
        lines = format_table(facts, width=width)
        return [headline(self.layout, self.topology), table, lines]

    def draw_page(self, text: str = "") -> str:
        """Return the ranks as one HTML page, with a text below them. O(num_ranks)."""
        batch, topology = self.batch, self.topology
        outer = () if topology is None else topology.outer
        return draw_page(
            self.layout.axes,
            self.layout.grid,
            title=count_noun(self.layout.num_ranks, "rank") if topology is None else f"{topology}",
            text=text,
            nodes=self.nodes,
            racks=next((level.of_node for level in outer if level.name == "rack"), None),
            batch=None
            if batch is None
            else PageBatch(self.data_axes, batch.dp, batch.global_batch, batch.micro_batch),
        )


@dataclass(frozen=True)
class PlanReport:
    """The reports of one layout or of several, and what moves from the first to each other one."""

    reports: tuple[JobReport, ...]
    costs: CostTable | None = None  # memory, time and traffic, if the model is known

    @cached_property
    def moves(self) -> tuple[Moves, ...]:
        """The weights and samples that move from the first layout to each other one."""
        first, *others = self.reports
        rows = self.costs.costs if self.costs else ()
        return tuple(
            Moves.of(
                [report.layout for report in (first, other)],
                self.costs and replace(self.costs, costs=(rows[0], rows[number])),
                [report.batch for report in (first, other) if report.batch],
                [report.data_axes for report in (first, other)],
            )
            for number, other in enumerate(others, 1)
        )

    def as_dict(self) -> dict[str, object]:
        """Return the reports in JSON types."""
        first, *others = [report.as_dict() for report in self.reports]
        cost = {"cost": self.costs and self.costs.as_dict()}
        if not others:
            return {**first, **cost}
        moves = [{"moves": asdict(moves)} for moves in self.moves]
        others = [{**report, **moved} for report, moved in zip(others, moves, strict=True)]
        return {"layouts": [first, *others], **cost, **moves[0]}

    def draw(self, *, width: int = 80, ascii: bool = False, grid: bool = True) -> str:
        """Return the reports as text, with the grid if there is one layout."""
        first, *others = self.reports
        facts = [text for r in self.reports for text in r.draw_facts(width=width, ascii=ascii)]
        grids = [first.draw_grid(width=width, ascii=ascii)] if grid and not others else []
        costs = [self.costs.draw(width=width, ascii=ascii)] if self.costs else []
        moved = [
            f"from {first.layout.sizes_text} to {other.layout.sizes_text}\n{lines}"
            for other, moves in zip(others, self.moves, strict=True)
            if (lines := moves.draw(width=width))
        ]
        return "\n\n".join([*facts[:-1], *grids, facts[-1], *costs, *moved])

    def draw_page(self) -> str:
        """Return the reports as one HTML page, with a grid for each layout. O(num_ranks)."""
        first, *others = self.reports
        text = self.draw(width=100, grid=False)
        if not others:
            return first.draw_page(text.partition("\n\n")[2])  # the page has the headline
        return join_pages([report.draw_page() for report in self.reports], text)


def describe_placement(before: Layout, layout: Layout, topology: Topology) -> str:
    """Return which axes cross nodes and racks after the placement, and which did before."""
    lines = []
    for level in reversed(topology.levels):
        now, then = (crossings(ranks, topology, level=level) for ranks in (layout, before))
        lines += [
            f"{now[axis]}"
            + (f"; before, {then[axis]}" if str(now[axis]) != str(then[axis]) else "")
            for axis in layout.axes
            if layout.sizes[axis] > 1
        ]
    for axis, crossing in crossings(layout, topology).items():
        if crossing.crosses and _is_outside_its_place(layout, axis):
            way = suggest_fix(before, topology, axis, **OPTIONS)
            lines.append(f"--place keeps the order of the axes; for {axis} inside nodes, {way}")
    return "\n".join(lines or ["one rank"])


def _is_outside_its_place(layout: Layout, axis: str) -> bool:
    """Return whether an axis nests outside one that it nests inside in the standard order."""
    sizes = layout.sizes.items()
    place = {a: STANDARD.index(STANDARD_OF[a]) for a, n in sizes if n > 1 and a in STANDARD_OF}
    inner = [*place][[*place].index(axis) :] if axis in place else []
    return any(place[a] < place[axis] for a in inner)


def _axis_rows(
    layout: Layout, crossing: Mapping[str, Crossing], outer: Mapping[str, Mapping[str, Crossing]]
) -> Iterator[dict[str, Any]]:
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
            "outer": {
                level: {"crossing": by_axis[axis].crossing_groups, "spans": by_axis[axis].most}
                for level, by_axis in outer.items()
            },
        }
