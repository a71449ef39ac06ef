"""Which part of the weights each rank holds, and what a change of the grid makes it fetch.

The rule: weights are cut by pp into equal runs of layers and by tp into equal slices of each layer;
all other axes hold copies. (FSDP cuts each part once more, over the ranks that hold copies of it.)
Part ``i`` of ``a`` holds the interval from ``i / a`` to ``(i + 1) / a``::

    tp=2   | 0           | 1           |      a rank that was 1 of 2 and is 1 of 3
    tp=3   | 0      | 1       | 2      |      needs the middle third and holds half of it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .layout import Layout
from .seats import Ints

CUT = ("pp", "tp")


@dataclass(frozen=True)
class Moves:
    """What ranks have to fetch after a change of the grid, by the rule of this file.

    Attributes:
        parts_before: into how many parts the weights were cut.
        parts_after: into how many they are.
        held: what share of its part a rank holds already, to the ranks of which that is so.
        total: what all ranks fetch together, in sizes of the whole model.
        lost: how many of the parts before are on no rank that stays.
    """

    parts_before: int
    parts_after: int
    held: Mapping[Fraction, Ints]
    total: Fraction
    lost: int


def moves(before: Layout, after: Layout) -> Moves:
    """What a change of the grid moves. Pure. O(num_ranks).

    Args:
        before: the grid that was.
        after: the grid that is to be; ranks keep their numbers. New ones hold nothing.

    Example:
        >>> found = moves(Layout(dp=2, tp=2), Layout(dp=4))
        >>> [(str(share), ranks.tolist()) for share, ranks in found.held.items()], found.total
        ([('1/2', [0, 1, 2, 3])], Fraction(2, 1))
    """
    num_before, num_after = parts(before), parts(after)
    stay = np.arange(min(before.num_ranks, after.num_ranks), dtype=np.int64)
    kept = np.zeros(after.num_ranks, dtype=np.int64)  # of num_before
    kept[stay] = 1
    for axis in CUT:
        kept[stay] *= _overlap(before, after, axis, stay)
    shares = {Fraction(int(n), num_before): np.flatnonzero(kept == n) for n in np.unique(kept)}
    total = Fraction(int((num_before - kept).sum()), num_before * num_after)
    lost = num_before - len(np.unique(_part(before, stay)))
    return Moves(num_before, num_after, dict(sorted(shares.items())), total, lost)


def parts(layout: Layout) -> int:
    """Into how many parts the weights are cut."""
    return layout.sizes.get("pp", 1) * layout.sizes.get("tp", 1)


def _overlap(before: Layout, after: Layout, axis: str, ranks: Ints) -> Ints:
    """How much of what a rank needs along an axis it holds, in 1 / (the size before)."""
    a, b = before.sizes.get(axis, 1), after.sizes.get(axis, 1)
    i, j = index(before, axis, ranks), index(after, axis, ranks)
    common = np.minimum((i + 1) * b, (j + 1) * a) - np.maximum(i * b, j * a)
    return np.asarray(np.maximum(common, 0))


def _part(layout: Layout, ranks: Ints) -> Ints:
    return index(layout, "pp", ranks) * layout.sizes.get("tp", 1) + index(layout, "tp", ranks)


def index(layout: Layout, axis: str, ranks: Ints) -> Ints:
    """The index of each rank along an axis; 0 along one that the grid does not have."""
    if axis not in layout.axes:
        return np.zeros_like(ranks)
    return layout.coordinates(ranks)[:, layout.axes.index(axis)]
