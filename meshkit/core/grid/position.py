"""A rank on the grid: every question that one rank can answer by itself."""

from __future__ import annotations

from functools import cached_property

from ..arrays import Ints
from ..call import public
from ..errors import CoordinateError
from ..text import count_noun
from .axis_names import check_axes_exist
from .layout import Layout


def check_member(layout: Layout, rank: int) -> None:
    """Refuse a rank outside a layout.

    Raises:
        CoordinateError: where ``rank`` has no place in it.
    """
    if rank not in layout:
        held = f"It holds {count_noun(layout.num_ranks, 'rank')}; mesh.inside is False here."
        line = f"rank {rank} is not in {layout!r}."
        raise CoordinateError(
            line, held, fix="ask only where mesh.inside.", index=rank, size=layout.num_ranks
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
    """A layout and a rank. Local and pure; a :class:`meshkit.Mesh` is one with live groups.

    Args:
        layout: the grid.
        rank: a global rank; it may be outside.
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
        """This process' global rank."""
        return self._rank

    @property
    def coordinate(self) -> dict[str, int]:
        """Where this rank sits: axis name to index. Local, O(axes).

        Raises:
            CoordinateError: on a rank outside the mesh (``mesh.inside`` tells).
        """
        return self._coordinate.copy()

    @cached_property
    def _coordinate(self) -> dict[str, int]:
        return self._layout.coordinate(self._rank)

    @property
    def inside(self) -> bool:
        """Whether this rank is one of the mesh; others have no coordinate and no group. Local."""
        return self.rank in self.layout

    def size(self, *axes: str) -> int:
        """How many ranks the group over the axes has; without axes, the whole mesh. Local.

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
        """
        return self.layout.size(*axes)

    @public("mesh.group_rank")
    def group_rank(self, *axes: str) -> int:
        """This rank's place in its group over the axes, as ``mesh.group(*axes).rank()``. Local.

        Its coordinate along the axes as listed, the last fastest; without axes, its place in the
        whole mesh. No such group need have been made. O(axes).

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
            CoordinateError: on a rank outside the mesh.
        """
        check_axes_exist(axes, self.layout.axes)
        place, here = 0, self.coordinate
        for axis in axes or self.layout.axes:
            place = place * self.layout.sizes[axis] + here[axis]
        return place

    def peers(self, *axes: str) -> Ints:
        """The global ranks of this rank's group over the axes, in the order of the group. Local.

        Returns:
            int64 (group_size,), this rank among them.

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
            CoordinateError: on a rank outside the mesh.
        """
        return self.layout.peers(self.rank, *axes)

    ranks = peers

    def neighbor(self, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """The global rank ``shift`` steps along an axis; None beyond its end where not ``wrap``.

        Local, O(axes). See :meth:`meshkit.Layout.neighbor`.
        """
        return self.layout.neighbor(self.rank, axis, shift, wrap=wrap)

    def ring(self, axis: str) -> Ints:
        """The global ranks around an axis, this one first: int64 (size of the axis,). Local.

        Raises as :meth:`peers`. See :meth:`meshkit.Layout.ring`.
        """
        return self.layout.ring(self.rank, axis)
