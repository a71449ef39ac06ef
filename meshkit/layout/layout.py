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
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..call import (
    Call,
    changes,
    check_index,
    check_integer,
    check_ranks,
    parse_integer,
    quotes_call,
)
from ..errors import CALL, CoordinateError
from ..synonyms import STANDARD
from ..text import Ints, format_sizes
from .axes import Names, check_axes_exist, closest_axes, parse_axes, parse_axis
from .draw import MAX_NOTEBOOK_RANKS, draw_positions, notebook_html
from .names import rearrange_grid
from .ranks import RankPositions, Strides, group_start, indices, offsets, unknown_rank_error
from .sizes import check_complete, check_sizes, check_view_names, infer_sizes, merge_sizes

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

    if not TYPE_CHECKING:  # a type checker reports both

        def __getattr__(self, name: str) -> NoReturn:
            """Raise with the way to read an index, for a name that may be an axis."""
            if name.startswith("_"):  # a protocol, such as that of copy
                return super().__getattribute__(name)
            axes = [name] if name in self or name in STANDARD else closest_axes(name, self) or self
            ways = " or ".join(f"coordinate[{axis!r}]" for axis in axes)
            raise AttributeError(f"a coordinate has no attribute {name!r}; use {ways}")

        def __call__(self, /, *args: object, **indices: object) -> NoReturn:
            """Raise, since a coordinate is a dict, and no method such as ``group_rank``."""
            args = (indices["rank"],) if "rank" in indices else (*args, *indices)
            ways = " or ".join(f"coordinate[{axis!r}]" for axis in args or self)
            if args and parse_integer(args[0]) is not None:
                ways = f"mesh.layout.coordinate({args[0]})"
            raise TypeError(f"a coordinate is a dict, which is not called; use {ways}")


class Layout:
    """A named grid of ranks: immutable, comparable, hashable, O(axes) in memory.

    Args:
        sizes: axis name to size as a mapping; instead of ``**axes``.
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
        UnknownAxisError: by every method, for an axis that the layout does not have.
        CoordinateError: by every method, for a rank or an index outside the layout.

    Example:
        >>> layout = Layout(dp=4, sp=2, tp=1)
        >>> layout.coordinate(5), layout.rank(dp=2, sp=1, tp=0)
        ({'dp': 2, 'sp': 1, 'tp': 0}, 5)
        >>> layout.groups("sp").tolist()
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    """

    axes: tuple[str, ...]
    num_ranks: int
    rank_positions: RankPositions
    ranks: range | Ints
    shape: tuple[int, ...]
    _steps: dict[str, tuple[int, int]]  # axis to size and stride

    @quotes_call("Layout")
    def __init__(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        ranks: Sequence[int] | Ints | None = None,
        **axes: int,
    ) -> None:
        checked = check_sizes(merge_sizes(sizes, axes))
        check_complete(checked)
        num_ranks = math.prod(checked.values())
        positions = None if ranks is None else RankPositions.of(ranks, num_ranks)
        vars(self).update(vars(Layout.of(checked, positions)))

    @classmethod
    def of(cls, sizes: Mapping[str, int], rank_positions: RankPositions | None = None) -> Layout:
        """Return the layout of sizes that are checked already; with no order, rank = position."""
        layout, steps = cls.__new__(cls), {}
        num_ranks = stride = math.prod(sizes.values())
        for axis, size in sizes.items():
            stride //= size
            steps[axis] = (size, stride)
        if rank_positions is None:
            rank_positions = RankPositions(range(num_ranks))
        vars(layout).update(
            axes=tuple(sizes),
            shape=tuple(sizes.values()),
            num_ranks=num_ranks,
            rank_positions=rank_positions,
            ranks=rank_positions.ranks,
            _steps=steps,
        )
        return layout

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Layout is immutable; {name} cannot be set.")

    if not TYPE_CHECKING:  # a type checker reports names that a layout does not have

        def __getattr__(self, name: str) -> object:
            """Raise with the method that tells the size of an axis, for the name of one."""
            if name in vars(self).get("axes", ()):
                raise AttributeError(f"a Layout has no attribute {name!r}; use size({name!r})")
            return super().__getattribute__(name)

    def __reduce__(self) -> tuple[object, ...]:
        return Layout.of, (self.sizes, self.rank_positions)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by axis name, the outermost first; a new dict each time."""
        return {axis: size for axis, (size, _) in self._steps.items()}

    @property
    def sizes_text(self) -> str:
        """The sizes as errors and reports show them: ``"dp=4 sp=2"``."""
        return format_sizes(self.sizes)

    @property
    def grid(self) -> Ints:
        """The ranks in the shape of the layout: a new read-only int64 array. O(num_ranks)."""
        grid = self.rank_positions.array().reshape(self.shape)
        grid.flags.writeable = False
        return grid

    @quotes_call("layout.size")
    def size(self, *axes: Names) -> int:
        """Return the product of the sizes of the axes; without axes, the number of ranks.

        Example:
            >>> layout = Layout(dp=4, sp=2)
            >>> layout.size("dp"), layout.size("dp", "sp"), layout.size(), layout.size("tp")
            (4, 8, 8, 1)
        """
        sizes = [size for size, _ in self._steps_along(axes)]  # torch compiles no generator here
        return math.prod(sizes)

    @quotes_call("layout.coordinate")
    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank: axis name to index. O(axes).

        The index along an absent standard axis is 0, though the axis is not in the dict.

        Example:
            >>> Layout(dp=4, sp=2).coordinate(5)
            {'dp': 2, 'sp': 1}
        """
        position, steps = self._position(rank), self._steps.items()
        return Coordinate({axis: position // stride % size for axis, (size, stride) in steps})

    @quotes_call("layout.rank")
    def rank(self, /, **coordinate: int) -> int:
        """Return the rank at a coordinate. O(axes).

        Args:
            **coordinate: an index for every axis, from 0 to its size - 1.

        Example:
            >>> Layout(dp=4, sp=2).rank(dp=2, sp=1)
            5
        """
        check_axes_exist(coordinate, self.axes)
        missing = [axis for axis in self.axes if axis not in coordinate]
        if missing:
            line, fix = f"{CALL} leaves out {', '.join(missing)}.", dict.fromkeys(missing, 0)
            raise CoordinateError(line, fix=f"{changes(**fix)}.", axis=missing[0])
        position = 0
        for axis, index in coordinate.items():
            size, stride = self._steps.get(axis, (1, 1))  # an absent standard axis has size 1
            position += check_index(axis, index, size) * stride
        return self.rank_positions.at(position)

    @quotes_call("layout.coordinates")
    def coordinates(self, ranks: ArrayLike) -> Ints:
        """Return the coordinates of many ranks.

        Args:
            ranks: integers of any shape.

        Returns:
            int64 (*ranks.shape, num_axes), the axes in the order of ``axes``.

        Example:
            >>> Layout(dp=4, sp=2).coordinates([0, 5]).tolist()
            [[0, 0], [2, 1]]
        """
        positions = self.rank_positions.find_all(check_ranks(ranks))
        if (outside := positions < 0).any():
            rank = int(np.asarray(ranks)[outside].flat[0])
            raise unknown_rank_error(rank, self, self.rank_positions)
        return indices(positions, self.shape)

    @quotes_call("layout.groups")
    def groups(self, *axes: Names) -> Ints:
        """Return all groups over the axes.

        Args:
            *axes: the axes along which the members of a group differ. Members run along them in
                the order listed, the last axis fastest. None listed means all.

        Returns:
            int64 (num_groups, group_size); every rank is in exactly one row. O(num_ranks).

        Example:
            >>> Layout(dp=2, sp=2).groups("dp").tolist()
            [[0, 2], [1, 3]]
        """
        inner = [axis for axis in self._parse_axes(axes) if axis in self.axes]
        outer = [axis for axis in self.axes if axis not in inner]
        dims = [self.axes.index(axis) for axis in (*outer, *inner)]
        group_size = math.prod(self.shape[dim] for dim in dims[len(outer) :])
        grid = self.rank_positions.array().reshape(self.shape)
        groups: Ints = grid.transpose(dims).reshape(-1, group_size)
        return groups if groups.flags.writeable else groups.copy()

    @quotes_call("layout.peers")
    def peers(self, rank: int, *axes: Names) -> Ints:
        """Return the group of one rank over the axes, with the rank itself.

        Returns:
            int64 (group_size,), in the order of :meth:`groups`. O(axes + group_size).

        Example:
            >>> Layout(dp=4, sp=2).peers(5, "dp").tolist()
            [1, 3, 5, 7]
        """
        steps, position = self._steps_along(axes), self._position(rank)
        return self.rank_positions.take(group_start(position, steps) + offsets(steps))

    @quotes_call("layout.strides")
    def strides(self, *axes: Names) -> Strides:
        """Return size and stride of a group over the axes, in as few steps as possible. O(axes).

        Equal strides mean equal groups, in this layout and in every :meth:`view` of it: the same
        members in the same order. A group of one has no steps.

        Example:
            >>> dense = Layout(dp=4, sp=2, tp=2)
            >>> dense.strides("dp", "sp"), dense.view(shard=8, tp=2).strides("shard")
            (((8, 2),), ((8, 2),))
        """
        merged: list[tuple[int, int]] = []
        for size, stride in self._steps_along(axes):
            if size > 1 and merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            elif size > 1:
                merged.append((size, stride))
        return tuple(merged)

    @quotes_call("layout.neighbor")
    def neighbor(self, rank: int, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """Return the rank ``shift`` steps along an axis; negative ones go back. O(axes).

        Without ``wrap`` the axis is no ring, and the result beyond its ends is None.

        Example:
            >>> layout = Layout(dp=4, sp=2)
            >>> layout.neighbor(5, "dp"), layout.neighbor(7, "dp")
            (7, 1)
            >>> layout.neighbor(7, "dp", wrap=False) is None
            True
        """
        size, stride = self._steps.get(parse_axis(axis, self.axes), (1, 1))
        position = self._position(rank)
        index = position // stride % size
        shifted = index + check_integer("shift", shift)
        if not wrap and not 0 <= shifted < size:
            return None
        return self.rank_positions.at(position + (shifted % size - index) * stride)

    @quotes_call("layout.ring")
    def ring(self, rank: int, axis: Names) -> Ints:
        """Return the ranks around an axis, or around several, this one first: int64 (size,).

        Ring attention sends to the second rank and receives from the last one. After i steps a
        rank holds the block of ``ring[-i]``. The ring of an axis of size 1 is the rank itself.

        Cost: O(axes + size).

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
        return rearrange_grid(self.grid, self.axes, pattern, sizes)

    @quotes_call("layout.view")
    def view(self, sizes: Mapping[str, int] | None = None, /, **axes: int) -> Layout:
        """Return the same ranks in the same order, with another factorization.

        Args:
            sizes: axis name to size as a mapping; instead of ``**axes``.
            **axes: the new axes in the caller's order, the outermost first; one may be -1.

        Raises:
            SpecError: if the product is not ``num_ranks``.

        Example:
            >>> Layout(dp=4, sp=2).view(replicate=2, shard=-1)
            Layout(replicate=2, shard=4)
        """
        check_view_names(axes)
        checked, evidence = check_sizes(merge_sizes(sizes, axes)), f"{self!r} has {self.num_ranks}"
        complete = infer_sizes(
            checked, self.num_ranks, f"{evidence} ranks", owner="the layout", start=""
        )
        return Layout.of(complete, self.rank_positions)

    def __contains__(self, rank: object) -> bool:
        number = parse_integer(rank)
        return number is not None and self.rank_positions.find(number) is not None

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.axes, self.shape, self.rank_positions

    def __repr__(self) -> str:
        ranks = {} if self.rank_positions.is_identity else {"ranks": self.ranks}
        return str(Call("Layout", kwargs={**self.sizes, **ranks}))

    def __str__(self) -> str:
        return self.draw()

    def _repr_html_(self) -> str:
        """Return the page of the grid for a notebook, or the text of more than 16,384 ranks."""
        small = self.num_ranks <= MAX_NOTEBOOK_RANKS
        return notebook_html(self.axes, self.grid, f"{self}") if small else f"<pre>{self}</pre>"

    def draw(self, *, mark: int | None = None, width: int = 80) -> str:
        """Return the grid as text, with the rank ``mark`` in brackets.

        Example:
            >>> print(Layout(dp=2, sp=2).draw(mark=2))
            dp=2 sp=2
                  sp=0  sp=1
            dp=0     0     1
            dp=1   [2]     3
        """
        marked = None if mark is None else self._position(mark)
        rank_at = self.rank_positions.at
        return draw_positions(self.axes, self.shape, rank_at, mark=marked, width=width)

    def _parse_axes(self, axes: tuple[Names, ...]) -> tuple[str, ...]:
        """Return the axes that a caller names, absent standard ones included; no argument: all."""
        if not axes or (len(axes) == 1 and axes[0] in self.axes):
            return axes or self.axes  # type: ignore[return-value]  # the usual cases
        names = parse_axes(axes)
        check_axes_exist(names, self.axes)
        return names

    def _steps_along(self, axes: tuple[Names, ...]) -> Strides:
        """Return size and stride of some axes, or of all, in order; an absent one has size 1."""
        return tuple(self._steps.get(name, (1, 1)) for name in self._parse_axes(axes))

    def _position(self, rank: int) -> int:
        number = check_integer("rank", rank)
        position = self.rank_positions.find(number)
        if position is None:
            raise unknown_rank_error(number, self, self.rank_positions)
        return position
