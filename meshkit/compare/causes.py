"""Find the simple mistake that explains a tensor which is not that of one rank.

::

    cause          the ranks hold
    scaled         the tensor times the size of some axes, the root of a size, or an inverse
    missing sum    parts along some axes whose sum is the tensor
    missing mean   parts along some axes whose mean is the tensor
    one part       a block of the tensor, or the tensor on one coordinate of some axes only
    order          the tensor with its rows or blocks in another order
    padding        the tensor on a prefix, and a constant behind it or in its place

Each hypothesis is tried over every subset of the axes, and holds if its residual is at most 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from ..text import format_sizes, group_by

Array = np.ndarray[Any, np.dtype[Any]]
TOLERANCE = 1e-9  # of a residual
TINY = 1e-300  # a divisor in place of 0


@dataclass(frozen=True)
class Copies:
    """A tensor on a mesh: an assembled copy at each coordinate along the axes that do not cut it.

    Attributes:
        sizes: the axes of the mesh longer than 1, with their sizes.
        axes: those along which there are copies.
        cells: index along each of ``axes`` -> the copy there.
        cuts: for each dim the axes of ``sizes`` that cut it.
    """

    sizes: Mapping[str, int]
    axes: tuple[str, ...]
    cells: Mapping[tuple[int, ...], Array]
    cuts: tuple[tuple[str, ...], ...]

    def groups(self, over: tuple[str, ...]) -> list[list[Array]]:
        """Return the copies that differ in their index along some axes only, in ascending order."""
        kept = [i for i, axis in enumerate(self.axes) if axis not in over]
        cells = sorted(self.cells)
        return [*group_by((tuple(c[i] for i in kept), self.cells[c]) for c in cells).values()]

    def worst(self, one: Array, floor: float) -> float:
        """Return the largest residual of a copy."""
        return max(residual(cell, one, floor) for cell in self.cells.values())


class Fit(NamedTuple):
    """A hypothesis that turns the tensor of one rank into that of the mesh.

    Several may fit: a tensor twice too large along dp may be scaled, or lack a mean over dp.
    """

    priority: int  # among hypotheses that fit, the lowest is reported
    cause: str  # as in :class:`meshkit.compare.parity.Difference`
    axes: tuple[str, ...]  # () if the hypothesis names none
    factor: float | None = None
    detail: str = ""  # of the text
    error: float = 0.0  # the residual


def residual(x: Array, y: Array, floor: float = 0.0) -> float:
    """Return the largest difference, relative to the largest value of ``y``, or to the floor.

    It is inf for another shape, and if only one of them holds a NaN somewhere.

    Example:
        >>> residual(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        0.5
    """
    if x.shape != y.shape:
        return math.inf
    difference = distances(x, y).max(initial=0)
    scale = np.abs(y[np.isfinite(y)]).max(initial=0)
    return float(difference / max(scale, floor, TINY))


def distances(x: Array, y: Array) -> Array:
    """Return the absolute differences: inf between NaN and a number, so that it is the largest."""
    with np.errstate(invalid="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(same, 0, np.nan_to_num(np.abs(x - y), nan=math.inf, posinf=math.inf))


def find_fits(copies: Copies, one: Array, floor: float) -> list[Fit]:
    """Return the hypotheses that explain the copies, which are not all that of one rank."""
    search = _Search(copies, one, floor)
    fits = [*search.scaled(), *search.sums(), *search.blocks()]
    return fits or [*search.order(), *search.padding()] or [*search.one_coordinate()]


def subsets(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the subsets of axes that are not empty, the smallest first."""
    for count in range(1, len(axes) + 1):
        yield from combinations(axes, count)


@dataclass(frozen=True)
class _Search:
    """The copies, the tensor of one rank, and the floor of residuals."""

    copies: Copies
    one: Array
    floor: float

    @property
    def cells(self) -> list[Array]:
        return [*self.copies.cells.values()]

    def count(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.copies.sizes[axis] for axis in axes)

    def error(self, cells: list[Array], wanted: Array) -> float | None:
        """Return the largest residual of some tensors; None if one is not the wanted one."""
        errors = [residual(cell, wanted, self.floor) for cell in cells]
        return max(errors) if all(error <= TOLERANCE for error in errors) else None

    def multiple(self, cells: list[Array]) -> tuple[float, float] | None:
        """Return the factor of tensors that are a multiple of that of one rank, and a residual."""
        square = np.vdot(self.one, self.one).real
        if cells[0].shape != self.one.shape or not 0 < square < math.inf:
            return None
        factor = float(np.vdot(self.one, cells[0]).real / square)
        if not 0 < factor < math.inf:
            return None
        error = self.error([cell / factor for cell in cells], self.one)
        return None if error is None else (factor, error)

    def factors(self, factor: float) -> Iterator[tuple[int, tuple[str, ...], str]]:
        """Yield the axes whose sizes make up a factor, with the form of it; roots are 3 behind."""
        for axes in subsets(tuple(self.copies.sizes)):
            size = self.count(axes)
            forms = {"{}": size, "1 / {}": 1 / size}
            forms |= {"the root of {}": size**0.5, "1 / the root of {}": size**-0.5}
            for number, (form, value) in enumerate(forms.items()):
                if math.isclose(factor, value, rel_tol=TOLERANCE):
                    yield 3 * (number > 1), axes, form

    def scaled(self) -> Iterator[Fit]:
        """Yield the axes by whose sizes all copies are too large or too small."""
        if multiple := self.multiple(self.cells):
            factor, error = multiple
            for rank, axes, form in self.factors(factor):
                yield Fit(rank, "scaled", axes, factor, form, error)

    def sums(self) -> Iterator[Fit]:
        """Yield the axes along which different copies add up to the tensor, or a multiple of it."""
        if any(cell.shape != self.one.shape for cell in self.cells):
            return
        found: list[tuple[str, ...]] = []
        for axes in subsets(self.copies.axes):
            groups = self.copies.groups(axes)
            equal = all(self.error(group, group[0]) is not None for group in groups)
            if equal or any({*axes} > {*smaller} for smaller in found):
                continue
            multiple = self.multiple([np.asarray(sum(group)) for group in groups])
            if multiple is None:
                continue
            found.append(axes)
            factor, error = multiple
            if math.isclose(factor, 1, rel_tol=TOLERANCE):
                yield Fit(1, "missing sum", axes, error=error)
            elif math.isclose(factor, self.count(axes), rel_tol=TOLERANCE):
                yield Fit(1, "missing mean", axes, error=error)
            elif any(rank == 0 for rank, _, _ in self.factors(factor)):
                yield Fit(4, "missing sum", axes, factor, error=error)

    def blocks(self) -> Iterator[Fit]:
        """Yield the axes along which ranks hold blocks of the tensor: each its own, or all one."""
        for axes in subsets(tuple(self.copies.sizes)):
            for dim in range(self.one.ndim):
                whole = {*axes} <= {*self.copies.axes} and self._joined(axes, dim)
                if isinstance(whole, float):
                    along = " and ".join(axes)
                    detail = f"Each rank of {along} holds its own block of dim {dim}, a part."
                    yield Fit(5, "one part", axes, None, detail, whole)
                elif (index := self._repeated(axes, dim)) is not None:
                    detail = f"Every rank holds block {index} of {self.count(axes)} of dim {dim}."
                    yield Fit(5, "one part", axes, None, detail)

    def _joined(self, axes: tuple[str, ...], dim: int) -> float | None:
        """Return the residual of the copies along some axes, one after the other in a dim."""
        groups = self.copies.groups(axes)
        shape = [size for i, size in enumerate(self.one.shape) if i != dim]
        for cell in (cell for group in groups for cell in group):
            if cell.ndim != self.one.ndim or [*np.delete(cell.shape, dim)] != shape:
                return None
        return self.error([np.concatenate(group, dim) for group in groups], self.one)

    def _repeated(self, axes: tuple[str, ...], dim: int) -> int | None:
        """Return the block of a dim that every copy is, or that stands in place of every block."""
        count = self.count(axes)
        if self.one.shape[dim] % count:
            return None
        for index, block in enumerate(np.split(self.one, count, dim)):
            tiled = np.concatenate([block] * count, dim)
            is_cut = {*axes} <= {*self.copies.cuts[dim]}
            if self.error(self.cells, tiled if is_cut else block) is not None:
                return index
        return None

    def order(self) -> Iterator[Fit]:
        """Yield the axes by which the rows of the tensor may have got another order."""
        for name, cuts, axis, joined in self._row_dims():
            wanted = _rows(self.one, axis, joined)
            rows = [_rows(cell, axis, joined) for cell in self.cells if cell.ndim == self.one.ndim]
            orders = [_match_rows(cell, wanted, self.floor) for cell in rows]
            known = [order for order in orders if order is not None]
            if len(known) < len(self.cells):
                continue
            size = math.gcd(*(_block_size(order) for order in known))
            count = len(known[0]) // size
            detail = f"It has the {count} blocks of {name} in another order"
            if count <= 16:
                moved = next(o for o in known if (np.diff(o) != 1).any())
                detail += f": {', '.join(map(str, moved[::size] // size))}"
            candidates = [*subsets(cuts or tuple(self.copies.sizes))]
            fitting = [axes for axes in candidates if count % self.count(axes) == 0] or [()]
            yield from (Fit(6, "order", axes, None, f"{detail}.") for axes in fitting)
            return

    def _row_dims(self) -> Iterator[tuple[str, tuple[str, ...], int, int]]:
        """Yield each dim, then the first dims joined: a name, the axes that cut it, the dims."""
        for dim in range(self.one.ndim):
            yield f"dim {dim}", self.copies.cuts[dim], dim, 1
        for joined in range(2, self.one.ndim + 1):
            cuts = dict.fromkeys(axis for some in self.copies.cuts[:joined] for axis in some)
            yield f"its first {joined} dims", tuple(cuts), 0, joined

    def padding(self) -> Iterator[Fit]:
        """Yield the axes that cut a dim at whose end the copies and the tensor differ."""
        for dim in range(self.one.ndim):
            prefixes = {_equal_prefix(cell, self.one, dim, self.floor) for cell in self.cells}
            if len(prefixes) == 1 and (prefix := prefixes.pop()):
                lengths = f"{self.cells[0].shape[dim]} rows, that of one rank {self.one.shape[dim]}"
                detail = f"The first {prefix} rows of dim {dim} are equal. It has {lengths}."
                yield Fit(7, "padding", self.copies.cuts[dim], None, detail)
                return

    def one_coordinate(self) -> Iterator[Fit]:
        """Yield the axes of which one coordinate alone holds the tensor of one rank."""
        right = {
            key: residual(cell, self.one, self.floor) <= TOLERANCE
            for key, cell in self.copies.cells.items()
        }
        for axes in subsets(self.copies.axes):
            places = [self.copies.axes.index(axis) for axis in axes]
            index = {tuple(key[i] for i in places): key for key in right if right[key]}
            if len(index) == 1 and all(
                right[key] == (tuple(key[i] for i in places) in index) for key in right
            ):
                where = format_sizes(dict(zip(axes, next(iter(index)), strict=True)))
                yield Fit(8, "one part", axes, detail=f"Only the ranks with {where} hold it.")
                return


def _rows(x: Array, axis: int, joined: int) -> Array:
    """Return a tensor as (rows, values), where a row is an index of one dim, or of several."""
    moved = np.moveaxis(x, axis, 0)
    return moved.reshape(math.prod(moved.shape[:joined]), -1)


def _match_rows(rows: Array, wanted: Array, floor: float) -> Array | None:
    """Return for each row its index in ``wanted``; None if that is no permutation.

    Rows are matched by their sizes along one random direction.
    """
    if rows.shape != wanted.shape or not np.isfinite(rows).all():
        return None
    direction = np.random.Generator(np.random.PCG64(0)).normal(size=rows.shape[1])
    order = np.empty(len(rows), dtype=np.int64)
    order[_ranking(rows @ direction)] = _ranking(wanted @ direction)
    return order if residual(rows, wanted[order], floor) <= TOLERANCE else None


def _ranking(values: Array) -> Array:
    return np.argsort(values.real, kind="stable")


def _block_size(order: Array) -> int:
    """Return the length of the longest blocks that an order keeps whole."""
    ends = np.flatnonzero(np.diff(order) != 1) + 1
    return math.gcd(*ends.tolist(), len(order))


def _equal_prefix(x: Array, y: Array, dim: int, floor: float) -> int:
    """Return the number of rows that are equal, if all behind them is missing or constant; else 0.

    At least half of the shorter one must be equal.
    """
    if x.ndim != y.ndim or [*np.delete(x.shape, dim)] != [*np.delete(y.shape, dim)]:
        return 0
    x, y = np.moveaxis(x, dim, 0), np.moveaxis(y, dim, 0)
    shorter = min(len(x), len(y))
    scale = max(floor, float(np.abs(y[np.isfinite(y)]).max(initial=0)))
    errors = [residual(a, b, scale) for a, b in zip(x[:shorter], y[:shorter], strict=True)]
    prefix = next((i for i, error in enumerate(errors) if not error <= TOLERANCE), shorter)
    ends = x[prefix:], y[prefix:]
    constant = any(end.size == 0 or (end == end.flat[0]).all() for end in ends)
    return prefix if constant and 2 * prefix >= shorter else 0
