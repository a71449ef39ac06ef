"""Overview: what can be said of a job before it runs, as data; see :mod:`meshkit.core.sheet`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .batch import BatchPlan
from .call import Call
from .errors import told
from .layout import Layout
from .plan import GroupPlan
from .seats import Ints
from .words import count


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
        node_sizes: how many ranks each node has; empty where nodes are not known.
        nodes: int64 (num_ranks,), the node of the rank at each position; None likewise.
        axes: a row for each axis.
        groups_per_rank: how many process groups a rank is in, the default group included.
        groups: how many there are in all, the default group included.
        batch: how a step is cut, or None.
        warnings: what is likely to be slow, each with its fix.
    """

    layout: Layout
    node_sizes: tuple[int, ...]
    nodes: Ints | None
    axes: tuple[AxisRow, ...]
    groups_per_rank: int
    groups: int
    batch: BatchPlan | None
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        nodes: Ints | None = None,
        batch: BatchPlan | None = None,
        *,
        call: Call | None = None,
    ) -> Overview:
        """The overview of a plan. Pure, O(axes x num_ranks) with nodes, O(axes) without.

        Args:
            plan: the grid, and the groups to make.
            nodes: int64 (num_ranks,), the node of the rank at each position; None where they are
                not known.
            batch: how a step is cut.
            call: the call that a fix is a change of.

        Example:
            >>> overview = Overview.of(GroupPlan.of(Layout(dp=4, sp=2, tp=1)))
            >>> overview.groups_per_rank, overview.groups
            (4, 15)
        """
        layout = plan.layout
        call = call or Call("build_mesh", kwargs=layout.sizes)
        rows = tuple(_rows(layout, nodes))
        # an axis set whose axes of size 1 are left out names its groups: see GroupPlan.key
        keys = {plan.key(axes) for axes in plan.asked}
        groups = sum(layout.num_ranks // _size(layout, key) for key in keys)
        sizes = node_sizes(nodes)
        warnings = tuple(_warnings(call, layout, rows, sizes))
        return cls(layout, sizes, nodes, rows, len(keys), groups, batch, warnings)

    def as_dict(self) -> dict[str, object]:
        """The overview as what JSON can hold. O(axes x size), and O(nodes)."""
        axes = [vars(row) | {"first_group": list(row.first_group)} for row in self.axes]
        return {
            "world_size": self.layout.num_ranks,
            "sizes": self.layout.sizes,
            "node_sizes": list(self.node_sizes),
            "axes": axes,
            "groups_per_rank": self.groups_per_rank,
            "groups": self.groups,
            "batch": self.batch and batch_dict(self.batch),
            "warnings": list(self.warnings),
        }


def batch_dict(batch: BatchPlan) -> dict[str, object]:
    """A batch plan as what JSON can hold."""
    names = ("dp", "global_batch", "micro_batch", "accumulation_steps", "uneven")
    return {name: getattr(batch, name) for name in names}


def node_counts(layout: Layout, nodes: Ints, axis: str) -> Ints:
    """How many nodes each group of an axis has ranks on: int64 (num_groups,). O(num_ranks log).

    Args:
        layout: the grid.
        nodes: int64 (num_ranks,), the node of the rank at each position.
        axis: the axis.

    Example:
        >>> node_counts(Layout(dp=2, tp=2), np.array([0, 0, 1, 1]), "dp").tolist()
        [2, 2]
    """
    placed = np.moveaxis(nodes.reshape(layout.shape), layout.axes.index(axis), -1)
    ordered = np.sort(placed.reshape(-1, layout.sizes[axis]), axis=1)
    return np.asarray(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1), dtype=np.int64)


def node_sizes(nodes: Ints | None) -> tuple[int, ...]:
    """How many ranks each node holds; nothing where nodes are not known."""
    return () if nodes is None else tuple(int(n) for n in np.bincount(nodes) if n)


def _rows(layout: Layout, nodes: Ints | None) -> Iterator[AxisRow]:
    stride = layout.num_ranks
    first = int(layout.ranks[0])
    for axis, size in layout.sizes.items():
        stride //= size
        spans = None if nodes is None else node_counts(layout, nodes, axis)
        yield AxisRow(
            axis,
            size,
            stride,
            layout.num_ranks // size,
            tuple(layout.peers(first, axis).tolist()),
            None if spans is None else int((spans > 1).sum()),
            None if spans is None else int(spans.max()),
        )


def _size(layout: Layout, axes: Sequence[str]) -> int:
    return layout.size(*axes) if axes else 1


def _warnings(
    call: Call, layout: Layout, rows: Sequence[AxisRow], sizes: Sequence[int]
) -> Iterator[str]:
    """Whether tp leaves a node, though it talks in every layer, with what keeps it inside."""
    for row in rows:
        if row.axis != "tp" or not row.crossing:
            continue
        line = f"tp crosses nodes: {row.crossing} of {count(row.groups, 'group')} span "
        line += f"{'up to ' if row.spans and row.spans > 2 else ''}{row.spans} nodes."
        why = "tp talks in every layer, and must sit on the nearest wires."
        yield told(line, why, fix=_kept_inside(call, layout, sizes))


def _kept_inside(call: Call, layout: Layout, sizes: Sequence[int]) -> str:
    """The call that keeps tp inside a node: tp innermost, and no more of it than nodes share."""
    tp, inner = layout.sizes["tp"], math.gcd(*sizes)
    fits = math.gcd(tp, inner)
    if fits == tp and layout.axes[-1] != "tp":
        return f"{call.but(order=' '.join([*(a for a in layout.axes if a != 'tp'), 'tp']))}."
    if "dp" not in layout.sizes or fits == 1:
        return f"a tp that divides {inner}, and nodes of equal size."
    order = [*(axis for axis in layout.axes if axis != "tp"), "tp"]
    said = {} if layout.axes[-1] == "tp" else {"order": " ".join(order)}
    return f"{call.but(tp=fits, dp=layout.sizes['dp'] * tp // fits, **said)}."
