"""Return the rank of a member within its group, and check that a rank is a member."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import CoordinateError
from ..text import count_noun
from .axis_names import Names, check_axes_exist, parse_axes
from .layout import Layout


def check_member(layout: Layout, rank: int) -> None:
    """Check that a rank is in a layout."""
    if rank not in layout:
        raise CoordinateError(
            f"rank {rank} is not in {layout!r}.",
            f"It has {count_noun(layout.num_ranks, 'rank')}; mesh.inside is False on this rank.",
            fix="call this only if mesh.inside is True.",
            index=rank,
            size=layout.num_ranks,
        )


def group_rank(layout: Layout, rank: int, axes: Iterable[Names]) -> int:
    """Return the rank within its group over the axes, as ``dist.get_group_rank`` does.

    It is the row-major index of the coordinate along the axes as listed, the last one fastest.
    Without axes the group is the rank alone, and the result 0.

    Cost: O(axes).
    """
    names = parse_axes(axes)
    check_axes_exist(names, layout.axes)
    index, coordinate, sizes = 0, layout.coordinate(rank), layout.sizes
    for axis in names:
        index = index * sizes.get(axis, 1) + coordinate.get(axis, 0)
    return index
