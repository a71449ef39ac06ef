"""Policies for axes that cross nodes (error, warn, allow), and the changes that prevent it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from ..call import changes, either
from ..errors import SpecError
from ..grid.axis_names import check_axes_exist
from ..grid.layout import Layout
from ..text import article, count_noun, format_ranks
from .crossing import Crossing, crossings
from .topology import NODE, Topology

POLICIES = ("error", "warn", "allow")
DEFAULT_POLICIES = {"tp": "warn"}  # tensor parallel ranks wait for each other in every layer
BLOCKS = "start the ranks in blocks, node by node (srun --distribution=block)"

Changes = dict[str, object]  # arguments of a call and their new values


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
            fix = f"'error', 'warn' or 'allow' for {axis}."
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
    return SpecError(
        f"{', '.join(axes)} {'crosses' if len(axes) == 1 else 'cross'} nodes.",
        *evidence,
        f"There are {topology}.",
        fix=_fix(layout, topology, axes),
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


def _fix(layout: Layout, topology: Topology, axes: list[str]) -> str:
    """Return the changes that keep axes inside nodes, and the policy that allows crossing."""
    names = [f"{axis}: " if len(axes) > 1 else "" for axis in axes]
    fixes = (suggest_fix(layout, topology, axis) for axis in axes)
    parts = [name + fix for name, fix in zip(names, fixes, strict=True)]
    allow = changes(crossing=dict.fromkeys(axes, "allow"))
    return f"{' '.join(parts)} Or {allow}, if crossing is meant."


def suggest_fix(layout: Layout, topology: Topology, axis: str, *, level: str = NODE) -> str:
    """Return changes that keep an axis inside its nodes; each was tried and works."""
    check_axes_exist((axis,), layout.axes)
    if not _crosses(layout, topology, axis, level):
        return ""
    counts = np.bincount(topology.domain_of(level, layout.grid).ravel())
    fits = math.gcd(layout.sizes[axis], *counts.tolist())
    if fits == layout.sizes[axis] or layout.sizes[axis] <= counts.max():
        ways = [changes(**c) for c in _reorderings(layout, topology, axis, level)]
        if _fits_in_blocks(layout, topology, axis, level):
            ways.insert(0, BLOCKS)
        if ways:
            return either(*ways)
    smaller, change = _shrink(layout, axis, fits)
    change |= next(_reorderings(smaller, topology, axis, level), {})
    if set(counts[counts > 0].tolist()) == {fits}:
        return f"{changes(**change)}, as a {level} holds {count_noun(fits, 'rank')}."
    return f"{changes(**change)}, as {fits} divides the ranks of every {level}."


def _reorderings(layout: Layout, topology: Topology, axis: str, level: str) -> Iterator[Changes]:
    """Yield changes of order or placement, or both, that keep an axis inside at equal sizes."""
    if not _crosses(layout, topology, axis, level):
        return
    inner = _innermost(layout, axis)
    order: Changes = {"order": " ".join(inner.axes)}
    place: Changes = {"place": True}
    from .placement import placed

    tried = ((order, inner), (place, placed(layout, topology).layout))
    working = [changes for changes, new in tried if not _crosses(new, topology, axis, level)]
    yield from working
    if not working and not _crosses(placed(inner, topology).layout, topology, axis, level):
        yield order | place


def _fits_in_blocks(layout: Layout, topology: Topology, axis: str, level: str) -> bool:
    """Return whether the axis stays inside if ascending ranks start on the nodes in blocks."""
    ranks = layout.grid.ravel()
    blocks = Layout(ranks=_in_blocks(ranks, topology), **layout.sizes)
    return bool((np.diff(ranks) > 0).all()) and not _crosses(blocks, topology, axis, level)


def _shrink(layout: Layout, axis: str, size: int) -> tuple[Layout, Changes]:
    """Return a layout of as many ranks with less of an axis and more of dp (or another axis)."""
    other = next(name for name in ("dp", *layout.axes, "pp") if name != axis)
    names = layout.axes if other in layout.axes else (other, *layout.axes)
    grown = layout.sizes.get(other, 1) * (layout.sizes[axis] // size)
    sizes = {**layout.sizes, other: grown, axis: size}
    changes: Changes = {name: sizes[name] for name in names if name in (other, axis)}
    if other not in layout.axes:
        changes["order"] = " ".join(names)
    return Layout(ranks=layout.ranks, **{name: sizes[name] for name in names}), changes


def _innermost(layout: Layout, axis: str) -> Layout:
    """Return a layout of equal sizes with one axis innermost."""
    order = [*(name for name in layout.axes if name != axis), axis]
    return Layout(ranks=layout.ranks, **{name: layout.sizes[name] for name in order})


def _crosses(layout: Layout, topology: Topology, axis: str, level: str) -> bool:
    return crossings(layout, topology, level=level)[axis].crosses


def _in_blocks(ranks: Ints, topology: Topology) -> Ints:
    """Return the ranks sorted by domain; the sort is stable."""
    keys = [topology.domain_of(level, ranks) for level in reversed(topology.levels)]
    return ranks[np.lexsort(keys)]
