"""Position: a layout as one of its ranks sees it."""

from __future__ import annotations

from functools import cached_property

from ..arrays import Ints
from ..call import public
from ..errors import CoordinateError
from ..text import count_noun
from .axis_names import check_axes_exist
from .layout import Layout


def check_member(layout: Layout, rank: int) -> None:
    """Check that a rank is in a layout.

    Raises:
        CoordinateError: if it is not.
    """
    if rank not in layout:
        raise CoordinateError(
            f"rank {rank} is not in {layout!r}.",
            f"It has {count_noun(layout.num_ranks, 'rank')}; mesh.inside is False on this rank.",
            fix="call this only if mesh.inside is True.",
            index=rank,
            size=layout.num_ranks,
        )


def group_rank(layout: Layout, rank: int, axes: tuple[str, ...]) -> int:
    """Return the rank within its group over the axes, as ``dist.get_group_rank`` does.

    It is the row-major index of the coordinate along the axes as listed, the last one fastest.
    Without axes it is the position in the whole layout.

    Raises:
        UnknownAxisError: for an axis that the layout does not have.
        CoordinateError: if the rank is not in the layout.

    Cost: O(axes).

    Example:
        >>> group_rank(Layout(dp=4, sp=2), 5, ("dp",)), group_rank(Layout(dp=4, sp=2), 5, ())
        (2, 5)
    """
    check_axes_exist(axes, layout.axes)
    index, coordinate, sizes = 0, layout.coordinate(rank), layout.sizes
    for axis in axes or layout.axes:
        index = index * sizes[axis] + coordinate[axis]
    return index


class Position:
    """A layout and one rank. Local and pure; a :class:`meshkit.Mesh` is one with live groups.

    Args:
        layout: the grid.
        rank: a global rank, in the layout or not.
    """

    def __init__(self, layout: Layout, rank: int) -> None:
        self._layout = layout
        self._rank = rank

    @property
    def layout(self) -> Layout:
        """The grid of ranks."""
        return self._layout

    @property
    def rank(self) -> int:
        """The global rank of this process."""
        return self._rank

    @property
    def coordinate(self) -> dict[str, int]:
        """The coordinate of this rank: axis name to index. Local.

        Raises:
            CoordinateError: on a rank outside the mesh, for which ``mesh.inside`` is False.

        Cost: O(axes).
        """
        return self._coordinate.copy()

    @cached_property
    def _coordinate(self) -> dict[str, int]:
        return self._layout.coordinate(self._rank)

    @property
    def inside(self) -> bool:
        """Whether this rank is in the mesh. Local. Other ranks have no coordinate and no group."""
        return self.rank in self.layout

    def size(self, *axes: str) -> int:
        """Return the size of the groups over the axes; without axes, of the mesh. Local.

        Raises:
            UnknownAxisError: for an axis that the mesh does not have.
        """
        return self.layout.size(*axes)

    @public("mesh.group_rank")
    def group_rank(self, *axes: str) -> int:
        """Return the rank of this process in its group over the axes. Local.

        It equals ``mesh.group(*axes).rank()``, but such a group need not exist. See
        :func:`group_rank`.

        Raises:
            UnknownAxisError: for an axis that the mesh does not have.
            CoordinateError: on a rank outside the mesh.

        Cost: O(axes).
        """
        return group_rank(self.layout, self.rank, axes)

    def peers(self, *axes: str) -> Ints:
        """Return the global ranks of this rank's group over the axes, in group order. Local.

        Returns:
            int64 (group_size,), with this rank.

        Raises:
            UnknownAxisError: for an axis that the mesh does not have.
            CoordinateError: on a rank outside the mesh.
        """
        return self.layout.peers(self.rank, *axes)

    ranks = peers

    def neighbor(self, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """Return the global rank ``shift`` steps along an axis; None beyond its end without wrap.

        Local, O(axes). See :meth:`meshkit.Layout.neighbor`.
        """
        return self.layout.neighbor(self.rank, axis, shift, wrap=wrap)

    def ring(self, axis: str) -> Ints:
        """Return the global ranks around an axis, this one first: int64 (size of the axis,).

        Local. Raises as :meth:`peers`. See :meth:`meshkit.Layout.ring`.
        """
        return self.layout.ring(self.rank, axis)
