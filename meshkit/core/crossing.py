"""Which axes cross nodes, and how much they send over the wires between them.

A group runs around the ring of its axis, from each member to the next and from the last to the
first::

    Layout(dp=2, tp=4) on ranks dealt to nodes in turn      node    0 1 0 1 | 0 1 0 1
                                                            dp=0    0-1-2-3-
    tp: each group spans 2 nodes, all its pairs cross       dp=1              4-5-6-7-
    dp: 0 and 4, 1 and 5, ... are on one node               nothing crosses
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .axes import check_known
from .call import Call
from .errors import SpecError, told
from .seats import Floats, Ints
from .topology.topology import NODE, Topology
from .words import plural

if TYPE_CHECKING:  # Layout has a method of placement, which needs this file
    from .layout import Layout

FARTHER = 64  # how much more an axis talks than the one outside it, where nobody says


@dataclass(frozen=True)
class Crossing:
    """How the groups of one axis lie on the domains of one level.

    Attributes:
        axis: the axis.
        level: the level, ``"node"``.
        groups: how many groups the axis has.
        crossing_groups: how many of them are in more than one domain.
        fewest: in how many domains a group is, at least.
        most: and at most.
        pairs: how many pairs of neighbours there are along the rings of the axis.
        crossing_pairs: how many of them are in two domains.

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
        """Whether any group does."""
        return self.crossing_groups > 0

    def __str__(self) -> str:
        if not self.crosses:
            return f"{self.axis} stays inside {plural(self.level)}"
        few = max(self.fewest, 2) if self.crossing_groups == self.groups else 2
        span = f"{self.most}" if few == self.most else f"up to {self.most}"
        groups = f"{self.crossing_groups} of {self.groups} groups"
        levels = plural(self.level)
        return f"{self.axis} crosses {levels}: {groups} span {span} {levels}"


def crossings(layout: Layout, topology: Topology, *, level: str = NODE) -> dict[str, Crossing]:
    """How the groups of each axis lie on the nodes. Pure. O(axes * ranks).

    Args:
        layout: whose axes; it may hold some of the ranks of the topology only.
        topology: where the ranks sit.
        level: the level of the topology whose domains are meant.

    Returns:
        Axis to what is known of it, in the order of the layout.

    Raises:
        CoordinateError: where a rank of the layout is not in the topology.
        SpecError: for a level that there is not.

    Example:
        >>> from meshkit import Layout
        >>> cyclic = Topology.of_hosts(["a", "b"] * 4)
        >>> found = crossings(Layout(dp=2, tp=4), cyclic)
        >>> found["tp"].crossing_pairs, found["dp"].crosses
        (8, False)
    """
    domains = topology.domain_of(level, layout.grid)
    return {axis: _crossing(axis, level, domains, place) for place, axis in enumerate(layout.axes)}


def _crossing(axis: str, level: str, domains: Ints, place: int) -> Crossing:
    size = domains.shape[place]
    groups = np.moveaxis(domains, place, -1).reshape(-1, size)  # (num_groups, group_size)
    spans = 1 + (np.diff(np.sort(groups, axis=1), axis=1) != 0).sum(axis=1)
    links = size if size > 2 else size - 1  # a ring of two is one pair
    cross = groups != np.roll(groups, -1, axis=1)
    return Crossing(
        axis,
        level,
        groups=len(groups),
        crossing_groups=int((spans > 1).sum()),
        fewest=int(spans.min()),
        most=int(spans.max()),
        pairs=len(groups) * links,
        crossing_pairs=int(cross[:, :links].sum()),
    )


def link_bytes(
    layout: Layout,
    topology: Topology,
    traffic: Mapping[str, float] | None = None,
    *,
    level: str = NODE,
) -> Floats:
    """The bytes that leave each node in a step. Pure. O(axes * ranks).

    Each rank sends ``traffic[axis]`` bytes to its next along the ring of each axis; where the next
    is on another node they leave this one::

        out[node] = sum over axes: traffic[axis] * (ranks on node whose next is on another)

    As many come in: a ring that leaves a node comes back to it. The largest of them is what the
    slowest link carries where all are alike. (A ring all-reduce of b bytes over n ranks sends
    2 * b * (n - 1) / n from each to its next, an all-gather or reduce-scatter half of that:
    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.)

    Args:
        layout: whose axes.
        topology: where the ranks sit.
        traffic: bytes by axis; axes left out send none. None means that each axis sends 64 times
            what the axis outside it does, in units of what the outermost does.
        level: the level of the topology whose domains are meant.

    Returns:
        float64 (number of domains,), exact for whole numbers of bytes up to 2**53.

    Raises:
        SpecError: where ``traffic`` is negative or no number; for a level that there is not.
        UnknownAxisError: for traffic along an axis that the layout does not have.
        CoordinateError: where a rank of the layout is not in the topology.

    Example:
        >>> from meshkit import Layout
        >>> link_bytes(Layout(dp=2, tp=4), Topology.even(8, nodes=2), {"dp": 10, "tp": 1000})
        array([40., 40.])
    """
    sent = checked_traffic(Call("link_bytes"), layout, traffic)
    domains = topology.domain_of(level, layout.grid)
    return leaving(domains, len(topology.domain_names(level))) @ sent


def leaving(domains: Ints, count: int) -> Ints:
    """How many ranks of each domain have their next along each axis in another domain.

    Args:
        domains: the domain of each grid position, in the shape of the grid.
        count: how many domains there are.

    Returns:
        int64 (count, num_axes).
    """
    found = np.empty((count, domains.ndim), dtype=np.int64)
    for place in range(domains.ndim):
        cross = domains != np.roll(domains, -1, axis=place)
        found[:, place] = np.bincount(domains[cross], minlength=count)
    return found


def checked_traffic(call: Call, layout: Layout, traffic: Mapping[str, float] | None) -> Floats:
    """What a rank sends along each axis of a layout: float64 (num_axes,).

    Raises:
        SpecError: where it is negative or no number.
        UnknownAxisError: for an axis that the layout does not have.
    """
    if traffic is None:
        return np.array([float(FARTHER) ** place for place in range(len(layout.axes))])
    check_known(call.but(traffic=dict(traffic)), traffic, layout.axes)
    for axis, amount in traffic.items():
        number = isinstance(amount, int | float | np.number) and not isinstance(amount, bool)
        if not number or not math.isfinite(amount) or amount < 0:
            line = f"{call.but(traffic=dict(traffic))}: the traffic of {axis} is {amount!r}."
            raise SpecError(
                told(line, fix="bytes that a rank sends along it in a step, 0 or more.")
            )
    return np.array([float(traffic.get(axis, 0)) for axis in layout.axes])
