"""What to do where an axis crosses nodes: refuse the mesh, warn, or say nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .axes import check_known
from .call import Call
from .errors import SpecError, told
from .layout import Layout
from .runs import format_ranks
from .topology.crossing import Crossing, crossings
from .topology.crossing_policy import suggest_fix
from .topology.topology import Topology
from .words import article

POLICIES = ("error", "warn", "allow")
USUAL = {"tp": "warn"}  # tensor parallel ranks wait for each other in every layer


@dataclass(frozen=True)
class Finding:
    """Axes that cross nodes though they should not.

    Attributes:
        error: what to raise, in words; empty where nothing is to be raised.
        warning: what to warn of; empty where there is nothing.
    """

    error: str = ""
    warning: str = ""


def check_policies(
    call: Call, layout: Layout, crossing: object, *, within: Iterable[str] = ()
) -> dict[str, str]:
    """What to do by axis, where it is not to be left alone.

    Args:
        call: the call to quote.
        layout: the grid.
        crossing: what was asked for.
        within: axes that were said to be on one node: they are told of, as tp is.

    Raises:
        SpecError: for anything but a mapping of axes to ``"error"``, ``"warn"`` or ``"allow"``.
        UnknownAxisError: for an axis that the layout does not have.
    """
    asked = {} if crossing is None else crossing
    if not isinstance(asked, Mapping):
        line = f"{call}: crossing is {crossing!r}, {article(type(crossing).__name__)}."
        raise SpecError(told(line, fix=f"{call.but(crossing={'tp': 'error'})}, say."))
    check_known(call, asked, layout.axes)
    for axis, policy in asked.items():
        if policy not in POLICIES:
            fix = f"{call.but(crossing={**asked, axis: 'error'})}, or 'warn', or 'allow'."
            raise SpecError(told(f"{call}: crossing of {axis} is {policy!r}.", fix=fix))
    both = {**USUAL, **dict.fromkeys(within, "warn"), **asked}
    return {axis: str(both[axis]) for axis in layout.axes if both.get(axis, "allow") != "allow"}


def judged(call: Call, layout: Layout, topology: Topology, policies: Mapping[str, str]) -> Finding:
    """What is to be said of the axes that cross nodes. Pure. O(axes * ranks).

    Args:
        call: the call to quote.
        layout: the grid.
        topology: where its ranks sit.
        policies: what to do, by axis; all others may cross.
    """
    watched = [axis for axis, size in layout.sizes.items() if size > 1 and axis in policies]
    if not watched:
        return Finding()
    found = crossings(layout, topology)
    over = [found[axis] for axis in watched if found[axis].crosses]
    refused = [one for one in over if policies[one.axis] == "error"]
    warned = [one for one in over if policies[one.axis] == "warn"]
    return Finding(_told(call, layout, topology, refused), _told(call, layout, topology, warned))


def _told(call: Call, layout: Layout, topology: Topology, over: list[Crossing]) -> str:
    if not over:
        return ""
    names = ", ".join(one.axis for one in over)
    evidence = [f"{one}; {_where(layout, topology, one.axis)}." for one in over]
    return told(
        f"{call}: {names} {'crosses' if len(over) == 1 else 'cross'} nodes.",
        *evidence,
        f"There are {topology}.",
        fix=_fix(layout, topology, [one.axis for one in over]),
    )


def _where(layout: Layout, topology: Topology, axis: str) -> str:
    """The first group of an axis that crosses nodes, and on which."""
    groups = layout.groups(axis)
    nodes = topology.node_of(groups)
    first = int((nodes != nodes[:, :1]).any(axis=1).argmax())
    names = [topology.names[node] for node in dict.fromkeys(nodes[first].tolist())]
    shown = ", ".join(map(str, names[:4])) + (", ..." if len(names) > 4 else "")
    return f"ranks {format_ranks(groups[first].tolist())} are on {shown}"


def _fix(layout: Layout, topology: Topology, axes: list[str]) -> str:
    """What mends it, or to say that it is meant."""
    ways = [suggest_fix(layout, topology, axis) for axis in axes]
    named = [f"{axis}: {way}" for axis, way in zip(axes, ways, strict=True)]
    meant = f"crossing={dict.fromkeys(axes, 'allow')}, if it is meant."
    return f"{' '.join(named if len(axes) > 1 else ways)} Or {meant}"
