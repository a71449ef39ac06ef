"""What keeps an axis inside its nodes: another size, ranks in blocks, an order, or placement."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .axes import check_known
from .call import Call
from .crossing import crossings
from .layout import Layout
from .placement import placed
from .seats import Ints
from .topology import NODE, Topology
from .words import count


def remedy(layout: Layout, topology: Topology, axis: str, *, level: str = NODE) -> str:
    """What to do about an axis that crosses nodes: the changes that were tried and work. Pure.

    Costs as much as :func:`~meshkit.core.placement.placed`.

    Args:
        layout: whose axis.
        topology: where the ranks sit.
        axis: the one that is to stay inside.
        level: of which level's domains.

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
        'tp=4, as a node holds 4 ranks.'
    """
    check_known(Call("remedy", (axis,)), (axis,), layout.axes)
    if not _crosses(layout, topology, axis, level):
        return ""
    held = np.bincount(topology.domain_of(level, layout.grid).ravel())
    size, most = layout.sizes[axis], int(held.max())
    if size > most:
        fits = max(n for n in range(1, most + 1) if size % n == 0)
        more = "" if len({*held[held > 0].tolist()}) == 1 else "at most "
        return f"{axis}={fits}, as a {level} holds {more}{count(most, 'rank')}."
    if ways := [*_ways(layout, topology, axis, level)]:
        return f"{'; or '.join(ways)}."
    order = _innermost(layout, axis)
    if not _crosses(placed(order, topology).layout, topology, axis, level):
        return f"order={' '.join(order.axes)!r}, place=True."
    fits = math.gcd(size, *held.tolist())
    return (
        f"{axis}={fits}, which divides every {level}; no order of these ranks keeps {axis}={size}."
    )


def _ways(layout: Layout, topology: Topology, axis: str, level: str) -> Iterator[str]:
    """The single changes after which the axis stays inside."""
    ranks = layout.grid.ravel()
    blocks = Layout(ranks=_in_blocks(ranks, topology), **layout.sizes)
    ascending, order = bool((np.diff(ranks) > 0).all()), _innermost(layout, axis)
    if ascending and not _crosses(blocks, topology, axis, level):
        yield "start the ranks in blocks, node by node (srun --distribution=block)"
    if not _crosses(order, topology, axis, level):
        yield f"order={' '.join(order.axes)!r}"
    if not _crosses(placed(layout, topology).layout, topology, axis, level):
        yield "place=True"


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
