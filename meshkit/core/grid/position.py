"""Position: one rank in a layout, without process groups, for processes that have none."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Ints
from ..call import quotes_call
from .group_rank import group_rank
from .layout import Layout
from .roles import data_axes, unknown_axes, unknown_role_error


@dataclass(frozen=True)
class Position:
    """A rank and its layout: the part of a mesh that another process can have.

    It can be pickled and copied. Pass it to a dataset or to a worker of a DataLoader, instead of
    the mesh. All methods are pure, and answer as those of the mesh do.

    Attributes:
        layout: the grid of ranks.
        rank: the global rank; it may be outside the layout.

    Example:
        >>> position = Position(Layout(dp=4, sp=2), 5)
        >>> position.coordinate, position.size("dp"), position.group_rank("dp")
        ({'dp': 2, 'sp': 1}, 4, 2)
    """

    layout: Layout
    rank: int

    @property
    def coordinate(self) -> dict[str, int]:
        """The coordinate of the rank: axis name to index. O(axes)."""
        return self.layout.coordinate(self.rank)

    @property
    def inside(self) -> bool:
        """Whether the rank is in the layout."""
        return self.rank in self.layout

    @property
    def data_index(self) -> int:
        """The index of the rank along the data and expert axes, by their names. O(axes).

        Ranks of equal index share samples. ``mesh.batch(data=)`` may say otherwise, so a plan has
        its own ``data_index``.

        Raises:
            SpecError: if an axis longer than 1 has an unknown role.
        """
        sizes = self.layout.sizes
        if unknown_axes(sizes):
            fix = "the data_index of mesh.batch(..., data=...), instead of this one."
            raise unknown_role_error(sizes, fix)
        return group_rank(self.layout, self.rank, data_axes(sizes))

    @quotes_call("position.size")
    def size(self, *axes: str) -> int:
        """Return the size of the groups over the axes; without axes, the number of ranks.

        Raises:
            UnknownAxisError: if the layout does not have an axis.
        """
        return self.layout.size(*axes)

    @quotes_call("position.group_rank")
    def group_rank(self, *axes: str) -> int:
        """Return the index of the rank along the axes, the last one fastest. O(axes).

        Raises:
            UnknownAxisError: if the layout does not have an axis.
            CoordinateError: if the rank is outside the layout.
        """
        return group_rank(self.layout, self.rank, axes or self.layout.axes)

    @quotes_call("position.peers")
    def peers(self, *axes: str) -> Ints:
        """Return the global ranks of the rank's group over the axes: int64 (group_size,).

        Raises:
            UnknownAxisError: if the layout does not have an axis.
            CoordinateError: if the rank is outside the layout.
        """
        return self.layout.peers(self.rank, *axes)

    @quotes_call("position.neighbor")
    def neighbor(self, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """Return the global rank some steps along an axis, as :meth:`meshkit.Layout.neighbor`.

        Raises:
            UnknownAxisError: if the layout does not have the axis.
            CoordinateError: if the rank is outside the layout, or ``shift`` is no int.
        """
        return self.layout.neighbor(self.rank, axis, shift, wrap=wrap)
