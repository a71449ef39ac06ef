"""Which axes cross nodes, and how many bytes they send between nodes.

Each member of a group sends to the next one along the ring of its axis, the last to the first::

    Layout(dp=2, tp=4), ranks on nodes 0 and 1 in turn      node    0 1 0 1 | 0 1 0 1
                                                            dp=0    0-1-2-3-
    tp: each group spans 2 nodes, all its pairs cross       dp=1              4-5-6-7-
    dp: 0 and 4, 1 and 5, ... are on one node               nothing crosses
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Ints
from ..call import quotes_call
from ..errors import SpecError
from ..grid.axis_names import check_axes_exist
from ..grid.layout import Layout
from ..text import plural
from ..validate import is_number
from .topology import NODE, Topology

DEFAULT_RATIO = 64  # traffic of an axis relative to that of the next outer one, unless given


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


@quotes_call("link_bytes")
def link_bytes(
    layout: Layout,
    topology: Topology,
    traffic: Mapping[str, float] | None = None,
    *,
    level: str = NODE,
) -> Floats:
    """Return the bytes that leave each node in a step.

    Each rank sends ``traffic[axis]`` bytes to the next rank along the ring of each axis. They
    leave the node if that rank is on another node::

        out[node] = sum over axes: traffic[axis] * (ranks on node whose next is on another)

    As many bytes come in, because a ring that leaves a node returns to it. If all links are equal,
    the largest value is the load of the slowest link. In a ring all-reduce of b bytes over n ranks
    each rank sends 2 * b * (n - 1) / n to the next. In an all-gather or reduce-scatter it sends
    half of that (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009).

    Args:
        layout: the grid.
        topology: the node of each rank.
        traffic: bytes by axis; missing axes send none. With None each axis sends 64 times what the
            next outer axis sends, in units of the outermost axis.
        level: the level of the topology whose domains are compared.

    Returns:
        float64 (number of domains,), exact for whole numbers of bytes up to 2**53.

    Raises:
        SpecError: if ``traffic`` is negative or not a number, or the level is unknown.
        UnknownAxisError: if ``traffic`` names an axis that the layout does not have.
        CoordinateError: if a rank of the layout is not in the topology.

    Cost: O(axes * ranks).

    Example:
        >>> from meshkit import Layout
        >>> link_bytes(Layout(dp=2, tp=4), Topology.even(8, nodes=2), {"dp": 10, "tp": 1000})
        array([40., 40.])
    """
    sent = traffic_per_axis(layout, traffic)
    domains = topology.domain_of(level, layout.grid)
    return count_leaving(domains, len(topology.domain_names(level))) @ sent


def count_leaving(domains: Ints, num_domains: int) -> Ints:
    """Return how many ranks of each domain have their next rank in another, by axis.

    ``domains`` has the shape of the grid, the result is int64 (num_domains, num_axes).
    """
    leaving = np.empty((num_domains, domains.ndim), dtype=np.int64)
    for dim in range(domains.ndim):
        differ = domains != np.roll(domains, -1, axis=dim)
        leaving[:, dim] = np.bincount(domains[differ], minlength=num_domains)
    return leaving


def traffic_per_axis(layout: Layout, traffic: Mapping[str, float] | None) -> Floats:
    """Return the traffic of a rank along each axis of a layout: float64 (num_axes,)."""
    if traffic is None:
        return np.array([float(DEFAULT_RATIO) ** index for index in range(len(layout.axes))])
    check_axes_exist(traffic, layout.axes)
    for axis, amount in traffic.items():
        if not is_number(amount) or not math.isfinite(amount) or amount < 0:
            line = f"the traffic of {axis} is {amount!r}."
            fix = "the bytes that a rank sends along it in a step, 0 or more."
            raise SpecError(line, fix=fix)
    return np.array([float(traffic.get(axis, 0)) for axis in layout.axes])
