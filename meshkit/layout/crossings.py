"""The axes that cross nodes, the placement of ranks by node, and the policies of axes.

Each member of a group sends to the next one along the ring of its axis, the last to the first::

    Layout(dp=2, tp=4), ranks on nodes 0 and 1 in turn      node    0 1 0 1 | 0 1 0 1
                                                            dp=0    0-1-2-3-
    tp: each group spans 2 nodes, all its pairs cross       dp=1              4-5-6-7-
    dp: 0 and 4, 1 and 5, ... are on one node               nothing crosses
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..call import quotes_call
from ..errors import SpecError
from ..text import Ints, article, format_ranks, plural
from .axes import DATA, check_axes_exist
from .layout import Layout
from .ranks import RankPositions
from .topology import NODE, Topology

POLICIES = ("error", "warn", "allow")
DEFAULT_POLICIES = {"tp": "warn"}  # tensor parallel ranks wait for each other in every layer


@dataclass(frozen=True)
class Crossing:
    """How the groups of one axis lie on the domains of one level.

    Example:
        >>> from meshkit import Layout, Topology
        >>> print(crossings(Layout(dp=2, tp=4), Topology.even(8, nodes=4))["tp"])
        tp crosses nodes: 2 of 2 groups span 2 nodes
    """

    axis: str
    level: str  # for example ``"node"``
    groups: int  # of the axis
    crossing_groups: int  # in more than one domain
    fewest: int  # domains that a group spans
    most: int
    pairs: int  # of neighbors along the rings of the axis
    crossing_pairs: int  # in two domains

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

    The layout may hold only some of the ranks of the topology. The result maps each axis to its
    crossing, in the order of the layout. Raises the errors of :class:`Topology`.

    Cost: O(axes * ranks).

    Example:
        >>> from meshkit import Layout, Topology
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

    Cost: O(ranks log ranks). Raises the errors of :class:`Topology`.

    Example:
        >>> from meshkit import Layout, Topology
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


class CrossingVerdict(NamedTuple):
    """The messages about axes that cross nodes against their policy."""

    error: SpecError | None = None  # to raise
    warning: SpecError | None = None  # its text is the warning


def check_policies(
    layout: Layout, crossing: object, *, within: Iterable[str] = ()
) -> dict[str, str]:
    """Return the policy of each axis longer than 1 that has one other than ``"allow"``."""
    policies = {} if crossing is None else crossing
    if not isinstance(policies, Mapping):
        line = f"crossing is {crossing!r}, {article(type(crossing).__name__)}."
        raise SpecError(line, fix="for example crossing={'tp': 'error'}.")
    if policies:
        check_axes_exist(policies, layout.axes)
    for axis, policy in policies.items():
        if policy not in POLICIES:
            fix = f"crossing={ ({**policies, axis: 'error'})!r}, or 'warn', or 'allow'."
            raise SpecError(f"crossing of {axis} is {policy!r}.", fix=fix)
    policy_of = {**DEFAULT_POLICIES, **dict.fromkeys(within, "warn"), **policies}
    chosen = [(axis, str(policy_of.get(axis, "allow"))) for axis in layout.axes]
    sizes = layout.sizes
    return {axis: policy for axis, policy in chosen if policy != "allow" and sizes[axis] > 1}


def check_crossings(
    layout: Layout, topology: Topology, policies: Mapping[str, str]
) -> CrossingVerdict:
    """Return the error and the warning about axes that cross nodes."""
    if not policies.keys() & layout.sizes:
        return CrossingVerdict()
    crossing = [item for item in crossings(layout, topology).values() if item.crosses]
    error, warning = (
        _message(layout, topology, [item for item in crossing if policies.get(item.axis) == policy])
        for policy in ("error", "warn")
    )
    return CrossingVerdict(error, warning)


def _message(layout: Layout, topology: Topology, crossing: list[Crossing]) -> SpecError | None:
    if not crossing:
        return None
    axes = [item.axis for item in crossing]
    evidence = [f"{item}; {_first_group(layout, topology, item.axis)}." for item in crossing]
    ways = [suggest_fix(layout, topology, axis) for axis in axes]
    allow = f"crossing={dict.fromkeys(axes, 'allow')!r}, if crossing is intended."
    return SpecError(
        f"{', '.join(axes)} {'crosses' if len(axes) == 1 else 'cross'} nodes.",
        *evidence,
        f"There are {topology}.",
        fix=f"{'; '.join(dict.fromkeys(ways))}; or {allow}",
        sizes=layout.sizes,
    )


def _first_group(layout: Layout, topology: Topology, axis: str) -> str:
    """Return the ranks and nodes of the first group of an axis that crosses nodes."""
    groups = layout.groups(axis)
    nodes = topology.node_of(groups)
    first = int((nodes != nodes[:, :1]).any(axis=1).argmax())
    names = [topology.names[node] for node in dict.fromkeys(nodes[first].tolist())]
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"ranks {format_ranks(groups[first].tolist())} are on {shown}"


def suggest_fix(
    layout: Layout,
    topology: Topology,
    axis: str,
    *,
    place: str = "place the ranks by node (place)",
    order: str = 'order the axes "{}" (order)',
) -> str:
    """Return a change that keeps an axis inside nodes, after a try; without a period.

    ``place`` and ``order`` are the words of the caller for both ways; ``{1}`` has commas.
    """
    names = [*(name for name in layout.axes if name != axis), axis]
    inner = Layout(ranks=layout.ranks, **{name: layout.sizes[name] for name in names})
    order = order.format(" ".join(names), ",".join(names))
    ways = {place: placed(layout, topology), order: inner}
    ways[f"{order} and {place}"] = placed(inner, topology)
    for way, new in ways.items():
        if not crossings(new, topology)[axis].crosses:
            return way
    counts = np.bincount(topology.node_of(layout.grid).ravel())
    fits = math.gcd(layout.sizes[axis], *counts.tolist())
    data = [f"{a}={n * layout.sizes[axis] // fits} " for a, n in layout.sizes.items() if a in DATA]
    return f"{''.join(data[:1])}{axis}={fits}, which divides the ranks of every node"
