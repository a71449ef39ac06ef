"""Find the whole sizes of tensors from the parts that all ranks hold, or the ranks that do not fit.

A side of a pattern says how a tensor is cut: ``"o/tp i"``. The parts along tp then add up to o::

    tp=0  tp=1  tp=2
    4 3   4 3   3 3        o is 11, cut as by numpy.array_split, and i is 3

All ranks look at the same tables, so that all of them raise the same error, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DisagreementError, SpecError
from ..layout.layout import Layout
from ..redistribute.dim_sizes import check_sizes_known, expand_to
from ..redistribute.move import Cut
from ..redistribute.pattern import Dim, Mark, Pattern, Side, first_match
from ..text import Ints, format_sizes, shorten

MAX_LINES = 8  # ranks that an error shows
Part = tuple[Sequence[int], str]  # the local shape of a tensor, and the name of its dtype
Tables = Sequence[tuple[Mapping[str, Part], Sequence[int]]]  # each with the ranks that hold it


class _Held(NamedTuple):
    """The parts of one tensor on all ranks of a mesh."""

    name: str
    layout: Layout
    entries: Sequence[Sequence[Dim]]  # the names in each dim, with the axes that cut them
    is_held: Any  # (sizes of the axes ...), bool: whether a rank has a part
    dtypes: Any  # (sizes of the axes ...), int: equal for equal dtypes
    shapes: Ints  # (sizes of the axes ..., dims)
    parts: Mapping[int, Part]  # by rank

    @property
    def along(self) -> tuple[int, ...]:
        """The positions of the axes that cut the tensor."""
        return self.positions(dim for entry in self.entries for dim in entry)

    def positions(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        """Return the positions of the axes that cut some dims."""
        axes = self.layout.axes
        return tuple(sorted({axes.index(axis) for dim in dims for axis in dim.axes}))


def uncut(side: Side) -> Side:
    """Return the side without axes."""
    return side.rewrite(lambda item: [] if isinstance(item, Mark) else [Dim(item.name)])


def _present(side: Side, layout: Layout) -> Side:
    """Return the side without cuts along axes that the layout does not have."""

    def change(item: Dim | Mark) -> list[Dim | Mark]:
        if isinstance(item, Mark):
            return [item]
        return [Dim(item.name, tuple(axis for axis in item.axes if axis in layout.axes))]

    return side.rewrite(change)


def whole_sizes(
    layout: Layout,
    sides: Mapping[str, Side | None],
    tables: Tables,
    rank: int,
    given: Mapping[str, int] = {},
) -> dict[str, dict[str, int]]:
    """Return the global size of each dim of the tensors of a rank, by name.

    ``given`` has sizes of dims, which brackets need. An absent axis has size 1. A tensor whose side
    is None is left out.

    Raises:
        DisagreementError: if ranks along an axis that cuts a tensor do not hold its parts.
        SpecError: if the side of a tensor has other dims, or the sizes do not fit it.
    """
    numbers = np.zeros(layout.grid.shape, int)
    for number, (_, ranks) in enumerate(tables):
        numbers[np.isin(layout.grid, ranks)] = number
    place = tuple(layout.coordinate(rank).values())
    sizes = {}
    for name in dict.fromkeys(name for table, _ in tables for name in table):
        side = first_match(sides, name)
        found = [table.get(name) for table, _ in tables]
        if side is None:
            continue
        held = _find_parts(name, layout, _present(side, layout), found, numbers)
        check_sizes_known(name, side, given)
        totals = _check_parts(held, given)
        if held.is_held[place]:
            sizes[name] = {dim: int(total[place]) for dim, total in totals.items()}
    return sizes


def _find_parts(
    name: str, layout: Layout, side: Side, found: Sequence[Part | None], numbers: Ints
) -> _Held:
    """Return the parts of a tensor; ``numbers`` has the number of the table of each rank."""
    known = [part for part in found if part is not None]
    dims = max(len(shape) for shape, _ in known)
    try:
        entries = expand_to(Pattern(side, uncut(side)), dims).left.entries
    except SpecError as error:
        raise error.but(summary=f"{name}: {error.summary}") from None
    names = sorted({dtype for _, dtype in known})
    rows, dtypes = np.zeros((len(found), dims), int), np.zeros(len(found), int)
    for number, part in enumerate(found):
        if part is not None:
            rows[number, : len(part[0])] = part[0]
            dtypes[number] = names.index(part[1]) * (dims + 1) + len(part[0])
    is_held = np.array([part is not None for part in found])
    pairs = zip(layout.grid.flat, numbers.flat, strict=True)
    parts = {int(r): part for r, number in pairs if (part := found[number]) is not None}
    return _Held(name, layout, entries, is_held[numbers], dtypes[numbers], rows[numbers], parts)


def _check_parts(held: _Held, given: Mapping[str, int]) -> dict[str, Ints]:
    """Return the global size of each dim on each rank; raise if the parts do not fit."""
    layout = held.layout
    _check_equal(held, held.is_held, "some ranks lack it")
    _check_equal(held, held.dtypes, "its dtypes or dims differ")
    coordinate = dict(zip(layout.axes, np.indices(layout.grid.shape), strict=True))
    totals: dict[str, Ints] = {}

    def shares(dim: Dim, total: Any) -> Any:  # noqa: ANN401  # an int or an array, of all ranks
        cut = Cut((total,), (dim.axes,), tuple(layout.sizes.items()))
        return np.broadcast_to(cut.shape(coordinate)[0], layout.grid.shape)

    for number, entry in enumerate(held.entries):
        local, known = held.shapes[..., number], np.ones(layout.grid.shape, int)
        for dim in entry:
            if dim.name in given:
                totals[dim.name] = np.full(layout.grid.shape, given[dim.name])
                known = known * shares(dim, given[dim.name])
        unknown = [dim for dim in entry if dim.name not in given]
        part = local // np.maximum(known, 1)  # of the dim that has no size
        along = held.positions([dim for dim in entry if dim.name in given])
        most = part.max(axis=along, keepdims=True)  # a part without elements does not show it
        part = np.where(known == 0, most, part)
        if len(entry) > len(unknown):
            _check_fits(held, number, known * part if unknown else known)
        for dim in unknown:
            total = np.broadcast_to(part.sum(axis=held.positions([dim]), keepdims=True), part.shape)
            _check_equal(held, total, "its parts do not belong together")
            wrong = held.is_held & (part != shares(dim, total))
            if wrong.any():
                raise _parts_error(held, wrong, "its parts have other sizes than local_state gives")
            totals[dim.name] = total
    return totals


def _check_fits(held: _Held, number: int, expected: Ints) -> None:
    """Raise if the given sizes of a dim do not fit the part of a rank."""
    wrong = held.is_held & (held.shapes[..., number] != expected)
    for index in map(tuple, np.argwhere(wrong)[:1]):
        rank, text = int(held.layout.grid[index]), " ".join(map(str, held.entries[number]))
        raise SpecError(
            f"{held.name}: ({text}) has {held.shapes[index][number]} elements on rank {rank}, and "
            f"the given sizes make {expected[index]}.",
            f"Rank {rank} is at {format_sizes(held.layout.coordinate(rank))}. Sizes are global.",
            fix="other sizes=, or another side.",
        )


def _check_equal(held: _Held, values: Any, reason: str) -> None:  # noqa: ANN401  # an array
    """Raise unless values are equal along the axes that cut the tensor."""
    along = held.along
    if along:
        differs = values.max(axis=along, keepdims=True) != values.min(axis=along, keepdims=True)
        if differs.any():
            raise _parts_error(held, np.broadcast_to(differs, values.shape), reason)


def _parts_error(held: _Held, wrong: Any, reason: str) -> DisagreementError:  # noqa: ANN401
    """Return the error with the parts of the first ranks that do not fit."""
    layout = held.layout
    first = np.argwhere(wrong)[0]
    index: list[Any] = [slice(None) if n in held.along else at for n, at in enumerate(first)]
    lines = []
    for rank in map(int, layout.grid[tuple(index)].flat):
        part = held.parts.get(rank)
        text = "no such tensor" if part is None else f"{[*part[0]]} in {part[1]}"
        lines.append(f"Rank {rank} ({format_sizes(layout.coordinate(rank))}): {text}.")
    axes = " ".join(layout.axes[n] for n in held.along)
    return DisagreementError(
        f"the parts of {held.name} along {axes} are no whole tensor: {reason}.",
        *shorten(lines, MAX_LINES, "."),
        fix=f"a side without {axes} for {held.name}, or the parts of local_state on these ranks.",
    )
