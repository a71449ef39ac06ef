"""Layout: the named grid of ranks, with coordinates, groups, neighbors and views.

``Layout(dp=4, sp=2, tp=1)`` numbers 8 ranks row by row, the last axis fastest::

            sp=0  sp=1
      dp=0     0     1      rank = dp * 2 + sp
      dp=1     2     3
      dp=2     4     5      groups("sp") are the rows,
      dp=3     6     7      groups("dp") the columns
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Ints
from ..axes import STANDARD
from ..call import Call, quotes_call
from ..validate import (
    check_coordinate_complete,
    check_index,
    check_integer,
    check_integers,
    parse_integer,
)
from .axis_names import Names, check_axes_exist, parse_axes, parse_axis
from .foreign_names import check_view_names
from .rank_positions import RankPositions, unknown_rank_error
from .sizes import check_complete, check_sizes, infer_sizes, merge_sizes
from .strides import AxisStrides, Strides, group_start, indices, offsets, shift_position

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Coordinate(dict[str, int]):
    """A coordinate, with index 0 along an absent standard axis, whose size is 1.

    ``at[axis]`` and ``at.get(axis)`` are 0 for such an axis. Iteration and ``in`` show the axes of
    the mesh alone.

    Example:
        >>> at = Coordinate(dp=1, sp=0)
        >>> at["tp"], "tp" in at, at
        (0, False, {'dp': 1, 'sp': 0})
    """

    def __missing__(self, axis: str) -> int:
        """Return 0 for an absent standard axis. Raises UnknownAxisError for any other name."""
        check_axes_exist([axis], tuple(self))
        return 0

    def get(self, axis: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return the index along an axis, 0 along an absent standard one, else the default."""
        return self[axis] if axis in self or axis in STANDARD else default


class Layout:
    """A named grid of ranks: immutable, comparable, hashable, O(axes) in memory.

    Args:
        sizes: axis name to size as a mapping; the same as ``**axes``.
        ranks: the rank at each grid position, in row-major order; None means that each rank equals
            its position. A range takes no memory, any other order one array.
        **axes: axis name to size, the outermost axis first; the last axis varies fastest. Names
            may be any, in the order written.

    Attributes:
        axes: the axis names, the outermost first.
        shape: the axis sizes, the outermost first.
        num_ranks: the number of ranks: the product of the sizes.
        rank_positions: the rank at each position, and the position of each rank.
        ranks: the rank at each position, in row-major order: a range, or a read-only int64 array.

    Raises:
        SpecError: if a name or a size is invalid, or ``ranks`` does not fit.

    Example:
        >>> layout = Layout(dp=4, sp=2, tp=1)
        >>> layout.coordinate(5), layout.rank(dp=2, sp=1, tp=0)
        ({'dp': 2, 'sp': 1, 'tp': 0}, 5)
        >>> layout.groups("sp").tolist()
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    """

    __slots__ = ("_axis_strides", "axes", "num_ranks", "rank_positions", "ranks", "shape")

    axes: tuple[str, ...]
    num_ranks: int
    rank_positions: RankPositions
    ranks: range | Ints
    shape: tuple[int, ...]
    _axis_strides: AxisStrides

    @quotes_call("Layout")
    def __init__(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        ranks: Sequence[int] | Ints | None = None,
        **axes: int,
    ) -> None:
        checked = check_sizes(axes if sizes is None else merge_sizes(sizes, axes))
        check_complete(checked)
        num_ranks = math.prod(checked.values())
        layout = Layout.of(checked, None if ranks is None else RankPositions.of(ranks, num_ranks))
        for name in self.__slots__:
            object.__setattr__(self, name, getattr(layout, name))

    @classmethod
    def of(cls, sizes: Mapping[str, int], rank_positions: RankPositions | None = None) -> Layout:
        """Return the layout of sizes that are checked already; with no order, rank = position.

        Example:
            >>> Layout.of({"dp": 4, "sp": 2})
            Layout(dp=4, sp=2)
        """
        layout, shape = cls.__new__(cls), tuple(sizes.values())
        num_ranks = stride = math.prod(shape)
        axis_strides = []
        for axis, size in sizes.items():
            stride //= size
            axis_strides.append((axis, size, stride))
        rank_positions = (
            RankPositions(range(num_ranks)) if rank_positions is None else rank_positions
        )
        attributes = {
            "axes": tuple(sizes),
            "shape": shape,
            "num_ranks": num_ranks,
            "rank_positions": rank_positions,
            "ranks": rank_positions.ranks,
            "_axis_strides": tuple(axis_strides),
        }
        for name, value in attributes.items():  # from then on the layout is immutable
            object.__setattr__(layout, name, value)
        return layout

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Layout is immutable; {name} cannot be set.")

    def __reduce__(self) -> tuple[object, ...]:
        return Layout.of, (self.sizes, self.rank_positions)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by axis name, the outermost first; a new dict each time.

        Example:
            >>> Layout(dp=4, sp=2).sizes
            {'dp': 4, 'sp': 2}
        """
        return {axis: size for axis, size, _ in self._axis_strides}

    @property
    def sizes_text(self) -> str:
        """The sizes as errors and reports show them: ``"dp=4 sp=2"``.

        Example:
            >>> Layout(dp=4, sp=2).sizes_text
            'dp=4 sp=2'
        """
        return " ".join([f"{axis}={size}" for axis, size, _ in self._axis_strides])

    @property
    def grid(self) -> Ints:
        """The ranks in the shape of the layout: a new read-only int64 array. O(num_ranks).

        Example:
            >>> Layout(dp=2, sp=2).grid
            array([[0, 1],
                   [2, 3]])
        """
        grid = self.rank_positions.array().reshape(self.shape)
        grid.flags.writeable = False
        return grid

    @quotes_call("layout.size")
    def size(self, *axes: Names) -> int:
        """Return the product of the sizes of the axes; without axes, the number of ranks.

        Raises:
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> layout = Layout(dp=4, sp=2)
            >>> layout.size("dp"), layout.size("dp", "sp"), layout.size(), layout.size("tp")
            (4, 8, 8, 1)
        """
        names, product = self._parse_axes(axes), 1
        for axis, size, _ in self._axis_strides:
            if axis in names or not names:
                product *= size
        return product

    @quotes_call("layout.coordinate")
    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank: axis name to index. O(axes).

        The index along an absent standard axis is 0, though the axis is not in the dict.

        Raises:
            CoordinateError: if the rank is not in the layout.

        Example:
            >>> Layout(dp=4, sp=2).coordinate(5)
            {'dp': 2, 'sp': 1}
        """
        position = self._position(rank)
        return Coordinate(
            {axis: position // stride % size for axis, size, stride in self._axis_strides}
        )

    @quotes_call("layout.rank")
    def rank(self, /, **coordinate: int) -> int:
        """Return the rank at a coordinate. O(axes).

        Args:
            **coordinate: an index for every axis, from 0 to its size - 1.

        Raises:
            CoordinateError: for an index outside its axis, or an axis left out.
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> Layout(dp=4, sp=2).rank(dp=2, sp=1)
            5
        """
        check_axes_exist(coordinate, self.axes)
        check_coordinate_complete(coordinate, self.axes)
        for axis in coordinate.keys() - set(self.axes):  # absent standard axes, of size 1
            check_index(axis, coordinate[axis], 1)
        position = 0
        for axis, size, stride in self._axis_strides:
            position += check_index(axis, coordinate[axis], size) * stride
        return self.rank_positions.at(position)

    @quotes_call("layout.coordinates")
    def coordinates(self, ranks: ArrayLike) -> Ints:
        """Return the coordinates of many ranks.

        Args:
            ranks: integers of any shape.

        Returns:
            int64 (*ranks.shape, num_axes), the axes in the order of ``axes``.

        Raises:
            CoordinateError: if a rank is not in the layout.

        Example:
            >>> Layout(dp=4, sp=2).coordinates([0, 5]).tolist()
            [[0, 0], [2, 1]]
        """
        array = check_integers("ranks", ranks)
        positions = self.rank_positions.find_all(array)
        if (outside := positions < 0).any():
            raise unknown_rank_error(int(array[outside].flat[0]), self, self.rank_positions)
        return indices(positions, self.shape)

    @quotes_call("layout.groups")
    def groups(self, *axes: Names) -> Ints:
        """Return all groups over the axes.

        Args:
            *axes: the axes along which the members of a group differ. Members run along them in
                the order listed, the last axis fastest. None listed means all.

        Returns:
            int64 (num_groups, group_size); every rank is in exactly one row. O(num_ranks).

        Raises:
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> Layout(dp=2, sp=2).groups("dp").tolist()
            [[0, 2], [1, 3]]
        """
        names = self._parse_axes(axes) or self.axes
        inner = [axis for axis in names if axis in self.axes]
        outer = [axis for axis in self.axes if axis not in inner]
        dims = [self.axes.index(axis) for axis in (*outer, *inner)]
        group_size = math.prod([self.shape[dim] for dim in dims[len(outer) :]])
        grid = self.rank_positions.array().reshape(self.shape)
        groups: Ints = grid.transpose(dims).reshape(-1, group_size)
        return groups

    @quotes_call("layout.peers")
    def peers(self, rank: int, *axes: Names) -> Ints:
        """Return the group of one rank over the axes, with the rank itself.

        Args:
            rank: a rank of the layout.
            *axes: as in :meth:`groups`.

        Returns:
            int64 (group_size,), in the order of :meth:`groups`. O(axes + group_size).

        Raises:
            CoordinateError: if the rank is not in the layout.
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> Layout(dp=4, sp=2).peers(5, "dp").tolist()
            [1, 3, 5, 7]
        """
        steps, position = self._steps(axes), self._position(rank)
        return self.rank_positions.take(group_start(position, steps) + offsets(steps))

    @quotes_call("layout.strides")
    def strides(self, *axes: Names) -> Strides:
        """Return size and stride of a group over the axes, in as few steps as possible. O(axes).

        Equal strides mean equal groups, in this layout and in every :meth:`view` of it: the same
        members in the same order. A group of one has no steps.

        Raises:
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> dense = Layout(dp=4, sp=2, tp=2)
            >>> dense.strides("dp", "sp"), dense.view(shard=8, tp=2).strides("shard")
            (((8, 2),), ((8, 2),))
        """
        merged: list[tuple[int, int]] = []
        for size, stride in self._steps(axes):
            if size > 1 and merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            elif size > 1:
                merged.append((size, stride))
        return tuple(merged)

    @quotes_call("layout.neighbor")
    def neighbor(self, rank: int, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """Return the rank ``shift`` steps along an axis. O(axes).

        Args:
            rank: a rank of the layout.
            axis: the axis to step along.
            shift: the number of steps; negative ones go back.
            wrap: whether the axis is a ring; if not, the result beyond its ends is None.

        Raises:
            CoordinateError: if the rank is not in the layout, or ``shift`` is not an int.
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> layout = Layout(dp=4, sp=2)
            >>> layout.neighbor(5, "dp"), layout.neighbor(7, "dp")
            (7, 1)
            >>> layout.neighbor(7, "dp", wrap=False) is None
            True
        """
        name = axis if axis in self.axes else parse_axis(axis, self.axes)
        ((size, stride),) = self._steps((name,))
        position = self._position(rank)
        steps = shift if type(shift) is int else check_integer("shift", shift)
        target = shift_position(position, size, stride, steps, wrap=wrap)
        return None if target is None else self.rank_positions.at(target)

    @quotes_call("layout.ring")
    def ring(self, rank: int, axis: Names) -> Ints:
        """Return the ranks around an axis, or around several, this one first: int64 (size,).

        Ring attention sends to the second rank and receives from the last one. After i steps a
        rank holds the block of ``ring[-i]``. The ring of an axis of size 1 is the rank itself.

        Cost: O(axes + size).

        Raises:
            CoordinateError: if the rank is not in the layout.
            UnknownAxisError: for an axis that the layout does not have.

        Example:
            >>> Layout(dp=4, sp=2).ring(5, "dp").tolist()
            [5, 7, 1, 3]
        """
        ranks = self.peers(rank, axis)
        return np.roll(ranks, -int((ranks == rank).argmax()))

    @quotes_call("layout.rearrange")
    def rearrange(self, pattern: str, /, **sizes: int) -> Ints:
        """Return the grid, rearranged by einops: int64, in the shape that the pattern gives.

        Args:
            pattern: an einops pattern. Its left side is the axes in their order, or a split of
                them: ``"dp sp tp -> (dp sp) tp"``, ``"(outer inner) sp tp -> ..."``.
            **sizes: sizes of the names that the pattern splits axes into.

        Raises:
            SpecError: if einops rejects the pattern, or an axis is in the position of another one.

        Example:
            >>> Layout(dp=2, sp=2, tp=2).rearrange("dp sp tp -> (dp sp) tp").tolist()
            [[0, 1], [2, 3], [4, 5], [6, 7]]
        """
        from .pattern import rearrange_grid

        return rearrange_grid(self.grid, self.axes, pattern, sizes)

    @quotes_call("layout.view")
    def view(self, sizes: Mapping[str, int] | None = None, /, **axes: int) -> Layout:
        """Return the same ranks in the same order, with another factorization.

        Args:
            sizes: axis name to size as a mapping; the same as ``**axes``.
            **axes: the new axes in the caller's order, the outermost first; one may be -1.

        Raises:
            SpecError: if the product is not ``num_ranks``.

        Example:
            >>> Layout(dp=4, sp=2).view(replicate=2, shard=-1)
            Layout(replicate=2, shard=4)
        """
        evidence = f"{self!r} has {self.num_ranks} ranks"
        check_view_names(axes)
        checked = check_sizes(merge_sizes(sizes, axes), inferable=True)
        complete = infer_sizes(
            checked, self.num_ranks, evidence, owner="the layout", can_start=False
        )
        return Layout.of(complete, self.rank_positions)

    def __contains__(self, rank: object) -> bool:
        number = parse_integer(rank)
        return number is not None and number in self.rank_positions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (
            self._axis_strides == other._axis_strides
            and self.rank_positions == other.rank_positions
        )

    def __hash__(self) -> int:
        return hash((self._axis_strides, self.rank_positions))

    def __repr__(self) -> str:
        ranks = {} if self.rank_positions.is_identity else {"ranks": self.ranks}
        return str(Call("Layout", kwargs={**self.sizes, **ranks}))

    def __str__(self) -> str:
        return self.draw()

    def _repr_html_(self) -> str:
        """Return the table for a notebook, or the text if there are more than 1024 ranks."""
        from ..draw.page import MAX_NOTEBOOK_RANKS, notebook_html

        small = self.num_ranks <= MAX_NOTEBOOK_RANKS
        return notebook_html(self.axes, self.grid) if small else f"<pre>{self}</pre>"

    def draw(self, *, mark: int | None = None, width: int = 80) -> str:
        """Return the grid as text, with one rank in brackets.

        See :mod:`meshkit.core.draw.grid_text`.

        Raises:
            CoordinateError: if the rank ``mark`` is not in the layout.

        Example:
            >>> print(Layout(dp=2, sp=2).draw(mark=2))
            dp=2 sp=2
                  sp=0  sp=1
            dp=0     0     1
            dp=1   [2]     3
        """
        from ..draw.grid_text import draw_positions

        position = None if mark is None else self._position(mark)
        return draw_positions(
            self.axes, self.shape, self.rank_positions.at, mark=position, width=width
        )

    def _parse_axes(self, axes: tuple[Names, ...]) -> tuple[str, ...]:
        """Return the axes that a caller names, after a check; absent standard ones included."""
        if all(axis in self.axes for axis in axes) and len({*axes}) == len(axes):
            return axes  # type: ignore[return-value]  # the usual case
        names = parse_axes(axes)
        check_axes_exist(names, self.axes)
        return names

    def _steps(self, axes: tuple[Names, ...]) -> Strides:
        """Return size and stride of some axes, or of all, in order; an absent one has size 1."""
        names = self._parse_axes(axes) or self.axes
        steps = {axis: (size, stride) for axis, size, stride in self._axis_strides}
        return tuple([steps.get(name, (1, 1)) for name in names])

    def _position(self, rank: int) -> int:
        number = rank if type(rank) is int else check_integer("rank", rank)
        position = self.rank_positions.find(number)
        if position is None:
            raise unknown_rank_error(number, self, self.rank_positions)
        return position
