"""Layout: the named grid of ranks. Rank to coordinate and back, groups, neighbours, views.

``Layout(dp=4, sp=2, tp=1)`` numbers 8 ranks row by row, the last axis fastest::

            sp=0  sp=1
      dp=0     0     1      rank = dp * 2 + sp
      dp=1     2     3
      dp=2     4     5      groups("sp") are the rows,
      dp=3     6     7      groups("dp") the columns
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import einops
import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Ints
from ..call import Call, public
from ..draw.grid_text import draw_positions
from ..validate import (
    check_coordinate_complete,
    check_index,
    check_integer,
    check_integers,
    parse_integer,
)
from .axis_names import check_axes_exist, check_complete, check_sizes, infer_sizes
from .pattern import rearrange_grid
from .rank_order import RankOrder, unknown_rank_error
from .strides import (
    Strides,
    axis_strides,
    coalesce,
    group_start,
    indices,
    offsets,
    select,
    shift_position,
)


class Layout:
    """A named grid of ranks: immutable, comparable, hashable, O(axes) in memory.

    Args:
        ranks: the rank at each grid position, in row-major order; None means that position and
            rank are the same. A range costs nothing, any other order one array.
        **sizes: axis name to size, the outermost axis first; the last axis varies fastest.

    Raises:
        SpecError: where a name or size cannot be, or ``ranks`` does not fit.

    Example:
        >>> layout = Layout(dp=4, sp=2, tp=1)
        >>> layout.coordinate(5), layout.rank(dp=2, sp=1, tp=0)
        ({'dp': 2, 'sp': 1, 'tp': 0}, 5)
        >>> layout.groups("sp").tolist()
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    """

    __slots__ = ("_axes", "_seats", "_strided")

    @public("Layout")
    def __init__(self, /, *, ranks: Sequence[int] | Ints | None = None, **sizes: int) -> None:
        checked = check_sizes(sizes)
        check_complete(checked)
        num_ranks = math.prod(checked.values())
        self._axes = tuple(checked)
        self._strided = axis_strides(checked, num_ranks)
        self._seats = RankOrder.of(range(num_ranks) if ranks is None else ranks, num_ranks)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axis names, the outermost first."""
        return self._axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Axis sizes, the outermost first."""
        return tuple(size for _, size, _ in self._strided)

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name to size, the outermost first; a new dict each time."""
        return {axis: size for axis, size, _ in self._strided}

    @property
    def num_ranks(self) -> int:
        """How many ranks the grid holds: the product of the sizes."""
        return len(self._seats)

    @property
    def ranks(self) -> range | Ints:
        """The rank at each position, in row-major order: a range, or a read-only int64 array."""
        return self._seats.ranks

    @property
    def grid(self) -> Ints:
        """The ranks as an array of shape ``shape``: read-only int64, made anew. O(num_ranks)."""
        grid = self._seats.array().reshape(self.shape)
        grid.flags.writeable = False
        return grid

    @public("layout.size")
    def size(self, *axes: str) -> int:
        """The product of the sizes of the axes, none meaning all; UnknownAxisError for others."""
        self._check(axes)
        return math.prod(size for axis, size, _ in self._strided if axis in axes or not axes)

    @public("layout.coordinate")
    def coordinate(self, rank: int) -> dict[str, int]:
        """Where a rank sits: axis name to index. O(axes).

        Raises:
            CoordinateError: where the rank is not in the grid.
        """
        position = self._position(rank)
        return {axis: position // stride % size for axis, size, stride in self._strided}

    @public("layout.rank")
    def rank(self, /, **coordinate: int) -> int:
        """The rank at a coordinate. O(axes).

        Args:
            **coordinate: an index for every axis, from 0 to its size - 1.

        Raises:
            CoordinateError: for an index outside its axis, or an axis left out.
            UnknownAxisError: for an axis the layout does not have.
        """
        check_axes_exist(coordinate, self.axes)
        check_coordinate_complete(coordinate, self.axes)
        places = [check_index(axis, coordinate[axis], n) * s for axis, n, s in self._strided]
        return self._seats.at(sum(places))

    @public("layout.coordinates")
    def coordinates(self, ranks: ArrayLike) -> Ints:
        """The coordinates of many ranks at once.

        Args:
            ranks: integers of any shape.

        Returns:
            int64 (*ranks.shape, num_axes), the axes in the order of ``axes``.

        Raises:
            CoordinateError: where a rank is not in the grid.
        """
        array = check_integers("ranks", ranks)
        positions = self._seats.find_all(array)
        if (outside := positions < 0).any():
            raise unknown_rank_error(
                int(array[outside].flat[0]), self, self._seats
            )
        return indices(positions, self._strided)

    @public("layout.groups")
    def groups(self, *axes: str) -> Ints:
        """All groups over the listed axes.

        Args:
            *axes: those in which members of a group differ, which run in the order listed, the
                last fastest. None listed means all.

        Returns:
            int64 (num_groups, group_size); every rank stands in exactly one row. O(num_ranks).

        Raises:
            UnknownAxisError: for an axis the layout does not have.
        """
        self._check(axes)
        outer = [axis for axis in self.axes if axes and axis not in axes]
        pattern = f"{' '.join(self.axes)} -> ({' '.join(outer)}) ({' '.join(axes or self.axes)})"
        return np.asarray(einops.rearrange(self.grid, pattern))

    @public("layout.peers")
    def peers(self, rank: int, *axes: str) -> Ints:
        """The group of one rank over the listed axes, itself included.

        Args:
            rank: a rank of the grid.
            *axes: as in :meth:`groups`.

        Returns:
            int64 (group_size,), in the order of :meth:`groups`. O(axes + group_size).

        Raises:
            CoordinateError: where the rank is not in the grid.
            UnknownAxisError: for an axis the layout does not have.
        """
        self._check(axes)
        position = self._position(rank)
        steps = select(self._strided, axes or self.axes)
        return self._seats.take(group_start(position, steps) + offsets(steps))

    @public("layout.strides")
    def strides(self, *axes: str) -> Strides:
        """Size and stride of a group over the axes, in as few steps as can be. O(axes).

        Equal strides mean equal groups, in this layout and in every :meth:`view` of it: the same
        members in the same order. A group of one has none.

        Raises:
            UnknownAxisError: for an axis the layout does not have.

        Example:
            >>> dense = Layout(dp=4, sp=2, tp=2)
            >>> dense.strides("dp", "sp"), dense.view(shard=8, tp=2).strides("shard")
            (((8, 2),), ((8, 2),))
        """
        self._check(axes)
        return coalesce(select(self._strided, axes or self.axes))

    @public("layout.neighbor")
    def neighbor(self, rank: int, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """The rank ``shift`` steps along an axis. O(axes).

        Args:
            rank: a rank of the grid.
            axis: the axis to step along.
            shift: how many steps; negative ones go back.
            wrap: whether the axis is a ring; where not, there is None beyond its ends.

        Raises:
            CoordinateError: where the rank is not in the grid, or ``shift`` is not an int.
            UnknownAxisError: for an axis the layout does not have.
        """
        self._check((axis,))
        position = self._position(rank)
        shift = check_integer("shift", shift)
        there = shift_position(position, select(self._strided, (axis,)), shift, wrap=wrap)
        return None if there is None else self._seats.at(there)

    @public("layout.ring")
    def ring(self, rank: int, axis: str) -> Ints:
        """The ranks around an axis, this one first: int64 (size of the axis,). O(axes + size).

        Ring attention sends to the second (itself, where it is alone), receives from the last, and
        after i steps holds what was ``ring[-i]``'s.

        Raises:
            CoordinateError: where the rank is not in the grid.
            UnknownAxisError: for an axis the layout does not have.
        """
        return np.roll(self.peers(rank, axis), -self.coordinate(rank)[axis])

    @public("layout.rearrange")
    def rearrange(self, pattern: str, /, **sizes: int) -> Ints:
        """The grid, rearranged by einops: int64, in the shape that the pattern says.

        Args:
            pattern: an einops pattern whose left side is the axes in their order, split where
                wanted: ``"dp sp tp -> (dp sp) tp"``, ``"(outer inner) sp tp -> ..."``.
            **sizes: sizes of the names that the pattern splits axes into.

        Raises:
            SpecError: where einops refuses the pattern, or an axis stands in another axis' place.

        Example:
            >>> Layout(dp=2, sp=2, tp=2).rearrange("dp sp tp -> (dp sp) tp").tolist()
            [[0, 1], [2, 3], [4, 5], [6, 7]]
        """
        return rearrange_grid(self.grid, self.axes, pattern, sizes)

    def view(self, /, **sizes: int) -> Layout:
        """The same ranks in the same order, factored otherwise.

        Args:
            **sizes: the new axes in the caller's order, the outermost first; one may be -1.

        Raises:
            SpecError: where the product is not ``num_ranks``.

        Example:
            >>> Layout(dp=4, sp=2).view(replicate=2, shard=-1)
            Layout(replicate=2, shard=4)
        """
        _call, has = Call("layout.view", kwargs=sizes), f"{self!r} has {self.num_ranks} ranks"
        filled = infer_sizes(check_sizes(sizes, inferable=True), self.num_ranks, has, whose="the layout")
        return Layout(ranks=self.ranks, **filled)

    def __contains__(self, rank: object) -> bool:
        number = parse_integer(rank)
        return number is not None and self._seats.find(number) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self._strided == other._strided and self._seats == other._seats

    def __hash__(self) -> int:
        return hash((self._strided, self._seats))

    def __repr__(self) -> str:
        ranks = {} if self._seats.plain else {"ranks": self.ranks}
        return str(Call("Layout", kwargs={**self.sizes, **ranks}))

    def __str__(self) -> str:
        return self.draw()

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows; for more than 1024 ranks, the text."""
        from ..draw.svg import MAX_NOTEBOOK_RANKS, escape, notebook_html

        small = self.num_ranks <= MAX_NOTEBOOK_RANKS
        return notebook_html(self.axes, self.grid) if small else f"<pre>{escape(str(self))}</pre>"

    def draw(self, *, mark: int | None = None, width: int = 80) -> str:
        """Return the grid as text, one rank in brackets; see :mod:`meshkit.core.draw.grid_text`."""
        position = None if mark is None else self._seats.find(mark)
        return draw_positions(self.axes, self.shape, self._seats.at, mark=position, width=width)

    def _check(self, axes: tuple[str, ...]) -> None:
        if len(axes) != 1 or axes[0] not in self._axes:  # the usual case is fast
            check_axes_exist(axes, self._axes)

    def _position(self, rank: int) -> int:
        found = self._seats.find(check_integer("rank", rank))
        if found is None:
            raise unknown_rank_error(rank, self, self._seats)
        return found
