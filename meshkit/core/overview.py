"""Overview: what can be said of a job before it runs, as data; see :mod:`meshkit.core.sheet`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .batch import BatchPlan
from .call import Call
from .errors import told
from .layout import Layout
from .plan import GroupPlan
from .seats import Ints
from .topology.crossing import Crossing, crossings
from .topology.crossing_policy import suggest_fix
from .topology.placement import Placement
from .topology.topology import Topology


@dataclass(frozen=True)
class AxisRow:
    """One axis of a grid.

    Attributes:
        axis: its name.
        size: how many indices it has.
        stride: how many positions lie between two of its indices.
        groups: how many groups it has.
        first_group: the ranks of the first of them.
        crossing: how many of them have ranks on several nodes; None where nodes are not known.
        spans: the most nodes that one of them has ranks on; None likewise.
    """

    axis: str
    size: int
    stride: int
    groups: int
    first_group: tuple[int, ...]
    crossing: int | None
    spans: int | None


@dataclass(frozen=True)
class Overview:
    """A job before it runs. Make it with :meth:`of`.

    Attributes:
        layout: the grid.
        topology: where its ranks sit; None where that is not known.
        axes: a row for each axis.
        groups_per_rank: how many process groups a rank is in, the default group included.
        groups: how many there are in all, the default group included.
        batch: how a step is cut, or None.
        warnings: what is likely to be slow, each with its fix.
        placement: why its ranks are where they are; None where nobody placed them.
    """

    layout: Layout
    topology: Topology | None
    axes: tuple[AxisRow, ...]
    groups_per_rank: int
    groups: int
    batch: BatchPlan | None
    warnings: tuple[str, ...]
    placement: Placement | None = None

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        topology: Topology | None = None,
        batch: BatchPlan | None = None,
        *,
        placement: Placement | None = None,
        call: Call | None = None,
    ) -> Overview:
        """The overview of a plan. Pure, O(axes x num_ranks) with a topology, else O(axes).

        Args:
            plan: the grid, and the groups to make.
            topology: where the ranks sit; None where that is not known.
            batch: how a step is cut.
            placement: that of the grid, where it was placed.
            call: the call that a fix is a change of.

        Raises:
            CoordinateError: where a rank of the grid is not in the topology.

        Example:
            >>> overview = Overview.of(GroupPlan.of(Layout(dp=4, sp=2, tp=1)))
            >>> overview.groups_per_rank, overview.groups
            (4, 15)
        """
        layout = plan.layout
        call = call or Call("build_mesh", kwargs=layout.sizes)
        crossing = {} if topology is None else crossings(layout, topology)
        rows = tuple(_rows(layout, crossing))
        # an axis set whose axes of size 1 are left out names its groups: see GroupPlan.key
        keys = {plan.key(axes) for axes in plan.asked}
        groups = sum(layout.num_ranks // (layout.size(*key) if key else 1) for key in keys)
        warnings = () if topology is None else tuple(_warnings(call, layout, topology, crossing))
        return cls(layout, topology, rows, len(keys), groups, batch, warnings, placement)

    @property
    def nodes(self) -> Ints | None:
        """The node of the rank at each position: int64 (num_ranks,); None where not known."""
        ranks = self.layout.grid.ravel()
        return None if self.topology is None else self.topology.node_of(ranks)

    def as_dict(self) -> dict[str, object]:
        """The overview as what JSON can hold. O(axes x size), and O(nodes)."""
        axes = [vars(row) | {"first_group": list(row.first_group)} for row in self.axes]
        return {
            "world_size": self.layout.num_ranks,
            "sizes": self.layout.sizes,
            "node_sizes": [] if self.topology is None else self.topology.sizes.tolist(),
            "axes": axes,
            "groups_per_rank": self.groups_per_rank,
            "groups": self.groups,
            "batch": self.batch and batch_dict(self.batch),
            "warnings": list(self.warnings),
            "placement": self.placement and placement_dict(self.placement),
        }


def placement_dict(placement: Placement) -> dict[str, object]:
    """A placement as what JSON can hold. O(num_ranks)."""
    said = {name: getattr(placement, name) for name in ("reason", "runner_up")}
    costs = {"cost": dict(placement.cost), "before": dict(placement.before)}
    return {**said, **costs, "ranks": [int(rank) for rank in placement.layout.ranks]}


def batch_dict(batch: BatchPlan) -> dict[str, object]:
    """A batch plan as what JSON can hold."""
    names = ("dp", "global_batch", "micro_batch", "accumulation_steps", "uneven")
    return {name: getattr(batch, name) for name in names}


def _rows(layout: Layout, crossing: Mapping[str, Crossing]) -> Iterator[AxisRow]:
    stride = layout.num_ranks
    first = int(layout.ranks[0])
    for axis, size in layout.sizes.items():
        stride //= size
        found = crossing.get(axis)
        yield AxisRow(
            axis,
            size,
            stride,
            layout.num_ranks // size,
            tuple(layout.peers(first, axis).tolist()),
            None if found is None else found.crossing_groups,
            None if found is None else found.most,
        )


def _warnings(
    call: Call, layout: Layout, topology: Topology, crossing: Mapping[str, Crossing]
) -> Iterator[str]:
    """Whether tp leaves a node, though it talks in every layer, with what keeps it inside."""
    if "tp" in crossing and crossing["tp"].crosses:
        why = "tp talks in every layer, and must sit on the nearest wires."
        yield told(f"{crossing['tp']}.", why, fix=suggest_fix(layout, topology, "tp", call=call))
