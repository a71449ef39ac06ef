"""Which axes cross nodes, and the placement of ranks by node.

Each member of a group sends to the next one along the ring of its axis, the last to the first::

    Layout(dp=2, tp=4), ranks on nodes 0 and 1 in turn      node    0 1 0 1 | 0 1 0 1
                                                            dp=0    0-1-2-3-
    tp: each group spans 2 nodes, all its pairs cross       dp=1              4-5-6-7-
    dp: 0 and 4, 1 and 5, ... are on one node               nothing crosses
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from ..call import quotes_call
from ..grid.layout import Layout
from ..grid.rank_positions import RankPositions
from ..text import plural
from .topology import NODE, Topology


@dataclass(frozen=True)
class Crossing:
    """How the groups of one axis lie on the domains of one level.

    Attributes:
        axis: the axis.
        level: the level, for example ``"node"``.
        groups: the number of groups of the axis.
        crossing_groups: the number of groups in more than one domain.
        fewest: the smallest number of domains that a group spans.
        most: the largest number of domains that a group spans.
        pairs: the number of neighbor pairs along the rings of the axis.
        crossing_pairs: the number of pairs in two domains.

    Example:
        >>> from meshkit import Layout
        >>> print(crossings(Layout(dp=2, tp=4), Topology.even(8, nodes=4))["tp"])
        tp crosses nodes: 2 of 2 groups span 2 nodes
    """

    axis: str
    level: str
    groups: int
    crossing_groups: int
    fewest: int
    most: int
    pairs: int
    crossing_pairs: int

    @property
    def crosses(self) -> bool:
        """Whether any group crosses domains."""
        return self.crossing_groups > 0

    def __str__(self) -> str:
        levels = plural(self.level)
        if not self.crosses:
            return f"{self.axis} stays inside {levels}"
        fewest = max(self.fewest, 2) if self.crossing_groups == self.groups else 2
        span = f"{self.most}" if fewest == self.most else f"up to {self.most}"
        groups = f"{self.crossing_groups} of {self.groups} groups"
        return f"{self.axis} crosses {levels}: {groups} span {span} {levels}"


def crossings(layout: Layout, topology: Topology, *, level: str = NODE) -> dict[str, Crossing]:
    """Return how the groups of each axis lie on the nodes.

    Args:
        layout: the grid. It may hold only some of the ranks of the topology.
        topology: the node of each rank.
        level: the level of the topology whose domains are compared.

    Returns:
        Axis to its crossing, in the order of the layout.

    Raises:
        CoordinateError: if a rank of the layout is not in the topology.
        SpecError: if the level is unknown.

    Cost: O(axes * ranks).

    Example:
        >>> from meshkit import Layout
        >>> by_axis = crossings(Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4))
        >>> by_axis["tp"].crossing_pairs, by_axis["dp"].crosses
        (8, False)
    """
    domains = topology.domain_of(level, layout.grid)
    return {axis: _crossing(axis, level, domains, dim) for dim, axis in enumerate(layout.axes)}


def _crossing(axis: str, level: str, domains: Ints, dim: int) -> Crossing:
    size = domains.shape[dim]
    groups = np.moveaxis(domains, dim, -1).reshape(-1, size)  # (num_groups, group_size)
    spans = 1 + (np.diff(np.sort(groups, axis=1), axis=1) != 0).sum(axis=1)
    num_links = size if size > 2 else size - 1  # a ring of two is one pair
    differ = groups != np.roll(groups, -1, axis=1)
    return Crossing(
        axis,
        level,
        groups=len(groups),
        crossing_groups=int((spans > 1).sum()),
        fewest=int(spans.min()),
        most=int(spans.max()),
        pairs=len(groups) * num_links,
        crossing_pairs=int(differ[:, :num_links].sum()),
    )


@quotes_call("placed")
def placed(layout: Layout, topology: Topology) -> Layout:
    """Return the layout with its ranks sorted by rack, node and rank, so that inner axes stay near.

    Domains that hold whole groups of the innermost axis come first, so that fewer of its groups
    are split. The layout is unchanged unless fewer pairs of neighbors cross nodes, compared from
    the innermost axis outward. Equal arguments give equal layouts, so all ranks choose the same.

    Args:
        layout: the axes, and the ranks to place, in any order.
        topology: the node of each rank; it may hold more ranks.

    Raises:
        CoordinateError: if a rank of the layout is not in the topology.

    Cost: O(ranks log ranks).

    Example:
        >>> from meshkit import Layout
        >>> placed(Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4)).groups("tp").tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    ranks = np.sort(layout.grid, axis=None)
    inner = next((size for size in reversed(layout.shape) if size > 1), 1)
    keys = []
    for level in topology.levels:
        domain = topology.domain_of(level, ranks)
        keys += [np.bincount(domain)[domain] % inner != 0, domain]
    positions = RankPositions.of(ranks[np.lexsort(keys[::-1])], None)
    new = Layout.of(layout.sizes, positions)
    return new if _cost(new, topology) < _cost(layout, topology) else layout


def _cost(layout: Layout, topology: Topology) -> list[int]:
    """Return the pairs that cross, axis by axis from the innermost, the outermost level first."""
    by_level = [crossings(layout, topology, level=level) for level in topology.levels]
    return [level[axis].crossing_pairs for axis in reversed(layout.axes) for level in by_level]
