"""How far the groups over some axes reach: inside a node or across nodes, and who shares one.

::

    ring      0 - 1 - 2 - 3 | 4 - 5 - 6 - 7 -         two of eight messages leave their node
    close     8 / 2 = 4                               so many members share what leaves it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from .layout import Layout

INSIDE, ACROSS = "inside", "across"


@dataclass(frozen=True)
class Reach:
    """How far groups reach.

    Attributes:
        level: ``"inside"`` where each group is on one node, else ``"across"``.
        close: the ranks of a group over the messages of its ring that leave a node, in the group
            that sends the most of them; inside a node all its ranks.
    """

    level: str
    close: float


def reach(layout: Layout, hosts: Mapping[int, str], *axes: str) -> Reach:
    """How far the groups over some axes reach. Pure, O(ranks).

    Args:
        layout: the grid.
        hosts: rank to its machine.
        *axes: of the groups.

    Example:
        >>> hosts = {rank: f"node{rank // 4}" for rank in range(8)}
        >>> reach(Layout(dp=4, tp=2), hosts, "tp"), reach(Layout(dp=4, tp=2), hosts, "dp")
        (Reach(level='inside', close=2.0), Reach(level='across', close=2.0))
    """
    size = layout.size(*axes)
    leave = max(_leaving([hosts[rank] for rank in row]) for row in layout.groups(*axes).tolist())
    return Reach(ACROSS if leave else INSIDE, size / leave if leave else float(size))


def _leaving(hosts: list[str]) -> int:
    """How many messages of a ring go to another machine."""
    return sum(one != other for one, other in pairwise([*hosts, hosts[0]]))
