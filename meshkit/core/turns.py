"""Which groups of a target are measured alone, one after the other, where there are many.

Each takes its turn while all others wait, so a way alone has as many passes as groups. Of many a
sample stands for all: spread evenly over the nodes, the first group and the last among it::

    group      0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15
    4 of 16    x            .  x         .  .  x                x
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .layout import Layout
from .measurement import ALONE
from .seats import Ints
from .targets import Target
from .topology.level import number_labels

USUAL = 16  # groups that are measured alone at the most, where nothing is said


def turns(layout: Layout, target: Target, mode: str, alone: int | None) -> int:
    """How many passes a way takes: one, or one for each group that is measured alone. Pure.

    Args:
        layout: the grid.
        target: over which groups.
        mode: the way.
        alone: how many groups are measured alone at the most; None means all.

    Example:
        >>> layout, over_tp = Layout(dp=1000, tp=8), Target((("tp",),))
        >>> [turns(layout, over_tp, "alone", n) for n in (16, None)]
        [16, 1000]
    """
    groups = layout.num_ranks // layout.size(*target.span)
    return min(groups, groups if alone is None else alone) if mode == ALONE else 1


def sampled(rows: Ints, hosts: Mapping[int, str], alone: int | None) -> list[int]:
    """The numbers of the groups that take a turn, ascending. Pure, the same on every rank.

    Groups are put in the order of their nodes, the first one in front and the last one at the end,
    and taken from there at equal distances.

    Args:
        rows: the groups, (num_groups, group_size).
        hosts: rank to its machine.
        alone: how many, 1 or more; None means all.

    Example:
        >>> hosts = {rank: f"node{rank // 8}" for rank in range(64)}
        >>> sampled(Layout(dp=8, sp=4, tp=2).groups("tp"), hosts, 4)
        [0, 10, 20, 31]
    """
    last, most = len(rows) - 1, len(rows) if alone is None else alone
    if most > last:
        return [*range(len(rows))]
    nodes, _ = number_labels("node", (hosts[int(rank)] for rank in rows.flat))
    order = np.lexsort(nodes.reshape(rows.shape).T[::-1]).tolist()
    order = [0, *(group for group in order if 0 < group < last), last]
    return sorted(order[turn * last // max(most - 1, 1)] for turn in range(most))
