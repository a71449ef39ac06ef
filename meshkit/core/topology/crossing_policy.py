"""Policies for axes that cross nodes (error, warn, allow), and the changes that prevent it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import SpecError
from ..grid.axis_names import check_axes_exist
from ..grid.layout import Layout
from ..text import article, format_ranks
from .crossing import Crossing, crossings, placed
from .topology import Topology

POLICIES = ("error", "warn", "allow")
DEFAULT_POLICIES = {"tp": "warn"}  # tensor parallel ranks wait for each other in every layer


@dataclass(frozen=True)
class CrossingVerdict:
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
    watched = [axis for axis, size in layout.sizes.items() if size > 1 and axis in policies]
    if not watched:
        return CrossingVerdict()
    by_axis = crossings(layout, topology)
    crossing = [by_axis[axis] for axis in watched if by_axis[axis].crosses]
    errors = [item for item in crossing if policies[item.axis] == "error"]
    warnings = [item for item in crossing if policies[item.axis] == "warn"]
    return CrossingVerdict(_message(layout, topology, errors), _message(layout, topology, warnings))


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


def suggest_fix(layout: Layout, topology: Topology, axis: str) -> str:
    """Return a change that keeps an axis inside nodes, after a try; without a period."""
    names = [*(name for name in layout.axes if name != axis), axis]
    inner = Layout(ranks=layout.ranks, **{name: layout.sizes[name] for name in names})
    place, order = "place the ranks by node (place)", f'order the axes "{" ".join(names)}" (order)'
    ways = {
        place: placed(layout, topology),
        order: inner,
        f"{order} and {place}": placed(inner, topology),
    }
    for way, new in ways.items():
        if not crossings(new, topology)[axis].crosses:
            return way
    counts = np.bincount(topology.node_of(layout.grid).ravel())
    fits = math.gcd(layout.sizes[axis], *counts.tolist())
    return f"{axis}={fits}, which divides the ranks of every node"
