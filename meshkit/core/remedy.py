"""What keeps an axis inside its nodes: another size, ranks in blocks, an order, or placement."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .axes import check_known
from .call import Call
from .layout import Layout
from .seats import Ints
from .topology.crossing import crossings
from .topology.placement import placed
from .topology.topology import NODE, Topology
from .words import count_noun

Changes = dict[str, object]  # arguments of a call and what they become

BLOCKS = "start the ranks in blocks, node by node (srun --distribution=block)"


def remedy(
    layout: Layout, topology: Topology, axis: str, *, level: str = NODE, call: Call | None = None
) -> str:
    """What to do about an axis that crosses nodes: the changes that were tried and work. Pure.

    Costs as much as a few of :func:`~meshkit.core.topology.placement.placed`.

    Args:
        layout: whose axis.
        topology: where the ranks sit.
        axis: the one that is to stay inside.
        level: of which level's domains.
        call: what made the layout, to be written with the changes; None writes these alone.

    Returns:
        Words for after ``Fix:``; "" where the axis does not cross.

    Raises:
        UnknownAxisError: for an axis that the layout does not have.
        CoordinateError: where a rank of the layout is not in the topology.
        SpecError: for a level that there is not.

    Example:
        >>> dealt = Topology.of_hosts(["a", "b"] * 4)
        >>> remedy(Layout(dp=2, tp=4), dealt, "tp")
        'start the ranks in blocks, node by node (srun --distribution=block); or place=True.'
        >>> remedy(Layout(dp=1, tp=8), dealt, "tp")
        'dp=2, tp=4, place=True, as a node holds 4 ranks.'
    """
    check_known(Call("remedy", (axis,)), (axis,), layout.axes)
    if not _crosses(layout, topology, axis, level):
        return ""
    held = np.bincount(topology.domain_of(level, layout.grid).ravel())
    fits = math.gcd(layout.sizes[axis], *held.tolist())
    if fits == layout.sizes[axis] or layout.sizes[axis] <= held.max():
        ways = [_written(way, call) for way in _ways(layout, topology, axis, level)]
        if _wants_blocks(layout, topology, axis, level):
            ways.insert(0, BLOCKS)
        if ways:
            return f"{'; or '.join(ways)}."
    smaller, changes = _smaller(layout, axis, fits)
    changes |= next(_ways(smaller, topology, axis, level), {})
    if call is not None:
        return f"{_written(changes, call)}."
    even = set(held[held > 0].tolist()) == {fits}
    holds = f"a {level} holds {count_noun(fits, 'rank')}"
    why = holds if even else f"{fits} divides the ranks of every {level}"
    return f"{_written(changes, call)}, as {why}."


def _written(changes: Changes, call: Call | None) -> str:
    if call is not None:
        return str(call.but(**changes))
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())


def _ways(layout: Layout, topology: Topology, axis: str, level: str) -> Iterator[Changes]:
    """What keeps an axis inside without another size: an order, placement; both where one fails."""
    if not _crosses(layout, topology, axis, level):
        return
    inner = _innermost(layout, axis)
    order: Changes = {"order": " ".join(inner.axes)}
    place: Changes = {"place": True}
    tried = ((order, inner), (place, placed(layout, topology).layout))
    ways = [changes for changes, found in tried if not _crosses(found, topology, axis, level)]
    yield from ways
    if not ways and not _crosses(placed(inner, topology).layout, topology, axis, level):
        yield order | place


def _wants_blocks(layout: Layout, topology: Topology, axis: str, level: str) -> bool:
    """Whether the axis stays inside where ascending ranks are dealt to the nodes in blocks."""
    ranks = layout.grid.ravel()
    blocks = Layout(ranks=_in_blocks(ranks, topology), **layout.sizes)
    return bool((np.diff(ranks) > 0).all()) and not _crosses(blocks, topology, axis, level)


def _smaller(layout: Layout, axis: str, size: int) -> tuple[Layout, Changes]:
    """As many ranks with less of an axis and more of dp; of another axis where dp is cut.

    Returns:
        The layout, and what changes; one more axis is the outermost.
    """
    other = next(name for name in ("dp", *layout.axes, "pp") if name != axis)
    names = layout.axes if other in layout.axes else (other, *layout.axes)
    more = layout.sizes.get(other, 1) * (layout.sizes[axis] // size)
    sizes = {**layout.sizes, other: more, axis: size}
    changes: Changes = {name: sizes[name] for name in names if name in (other, axis)}
    if other not in layout.axes:
        changes["order"] = " ".join(names)
    return Layout(ranks=layout.ranks, **{name: sizes[name] for name in names}), changes


def _innermost(layout: Layout, axis: str) -> Layout:
    """The same sizes with one axis innermost."""
    order = [*(name for name in layout.axes if name != axis), axis]
    return Layout(ranks=layout.ranks, **{name: layout.sizes[name] for name in order})


def _crosses(layout: Layout, topology: Topology, axis: str, level: str) -> bool:
    return crossings(layout, topology, level=level)[axis].crosses


def _in_blocks(ranks: Ints, topology: Topology) -> Ints:
    """The ranks domain by domain, each as they are."""
    keys = [topology.domain_of(level, ranks) for level in reversed(topology.levels)]
    return ranks[np.lexsort(keys)]
