"""Position: a rank and its layout, the part of a mesh that another process can have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..call import quotes_call
from ..errors import CoordinateError
from ..text import Ints, count_noun
from .axes import Names, check_axes_exist, data_axes, parse_axes, unknown_axes, unknown_role_error
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
    """Return the rank within its group over the axes, as ``dist.get_group_rank`` does."""
    names = parse_axes(axes)
    check_axes_exist(names, layout.axes)
    index, coordinate, sizes = 0, layout.coordinate(rank), layout.sizes
    for axis in names:
        index = index * sizes.get(axis, 1) + coordinate.get(axis, 0)
    return index


@dataclass(frozen=True)
class Position:
    """A rank and its layout: the part of a mesh that another process can have.

    It can be pickled and copied. Pass it to a dataset or to a worker of a DataLoader, instead of
    the mesh. All methods are pure, and answer as those of the mesh do.

    Attributes:
        layout: the grid of ranks.
        rank: the global rank; it may be outside the layout.

    Raises:
        UnknownAxisError: by every method, if the layout does not have an axis.
        CoordinateError: by methods other than ``size``, if the rank is outside the layout.

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
        its own ``data_index``. Raises SpecError if an axis longer than 1 has an unknown role.
        """
        sizes = self.layout.sizes
        if unknown_axes(sizes):
            fix = "the data_index of mesh.batch(..., data=...), instead of this one."
            raise unknown_role_error(sizes, fix)
        return group_rank(self.layout, self.rank, data_axes(sizes))

    @quotes_call("position.size")
    def size(self, *axes: str) -> int:
        """Return the size of the groups over the axes; without axes, the number of ranks."""
        return self.layout.size(*axes)

    @quotes_call("position.group_rank")
    def group_rank(self, *axes: str) -> int:
        """Return the index of the rank along the axes, the last one fastest. O(axes)."""
        return group_rank(self.layout, self.rank, axes or self.layout.axes)

    @quotes_call("position.peers")
    def peers(self, *axes: str) -> Ints:
        """Return the global ranks of the rank's group over the axes: int64 (group_size,)."""
        return self.layout.peers(self.rank, *axes)

    @quotes_call("position.neighbor")
    def neighbor(self, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """Return the global rank some steps along an axis, as :meth:`meshkit.Layout.neighbor`."""
        return self.layout.neighbor(self.rank, axis, shift, wrap=wrap)
