"""Plan the move of a whole state between two meshes: which ranks hold each tensor, and its pattern.

A state is names with tensors. A dict of globs says how each tensor is cut before and after::

    {"*.q_proj.weight": "o/dp/tp i -> o/tp i", "*norm*": "d/dp -> d"}

Ranks of a pipeline have the names of their own stage. The axis of the stages is then marked, so the
left side of such a name ends with ``@pp:1``, for example.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import DisagreementError, SpecError
from ..layout.layout import Layout
from ..redistribute.mesh_move import MeshMove, join_axes, make_mesh_move
from ..redistribute.move import check_axes, local_shape
from ..redistribute.parts import columns_of
from ..redistribute.pattern import (
    AxisType,
    Mark,
    Pattern,
    Side,
    expand_dots,
    first_match,
    parse_pattern,
)
from ..text import count_noun, format_ranks, format_sizes, plural

# the global size of each dim, the name of the dtype, and whether the tensor is a DTensor
Fact = tuple[Mapping[str, int], str, bool]
Table = Mapping[str, Any]  # by name: a fact; on the target with the local shape in place of sizes
Tables = Sequence[tuple[Table, Sequence[int]]]  # different tables, each with its ranks
_KINDS = ("bool", "int", "float", "complex")  # each holds the numbers of those before it
MAX_DIFFERENCES = 5  # that an error names


class MovedTensor(NamedTuple):
    """A tensor of a state that moves, in one pattern."""

    name: str
    pattern: Pattern  # with a mark for each axis of which one coordinate alone has the tensor
    sizes: Mapping[str, int]  # the global size of each dim
    dtype: str
    move: MeshMove


class Disagreement(NamedTuple):
    """A fact that the two ends of a move state differently."""

    kind: str  # such as "dtypes"
    line: str  # with the facts of both
    fix: str = ""  # another way than equal facts


@dataclass(frozen=True)
class StatePatterns:
    """The patterns of a state by glob; the first glob that matches a whole name counts."""

    globs: Mapping[str, Pattern]

    @classmethod
    def of(cls, patterns: object) -> StatePatterns:
        """Return the parsed patterns."""
        if not isinstance(patterns, Mapping) or not patterns:
            fix = '{"*.weight": "o/dp i -> o i", "*": "d/dp -> d"}, for example.'
            raise SpecError(f"patterns is {patterns!r}.", fix=fix)
        return cls({str(glob): parse_pattern(text) for glob, text in patterns.items()})

    def check(self, layouts: tuple[Layout, Layout]) -> None:
        """Raise if a side names an axis that its mesh lacks."""
        for pattern in self.globs.values():
            for side, layout in zip((pattern.left, pattern.right), layouts, strict=True):
                check_axes(Pattern(side, side), layout.sizes)

    def find(self, name: str) -> Pattern:
        """Return the pattern of a name."""
        pattern = first_match(self.globs, name)
        if pattern is not None:
            return pattern
        line = f"no pattern matches {name}."
        raise SpecError(line, fix=f"a pattern for {name}, or a last one for all others.")


def plan_moves(
    patterns: StatePatterns,
    layouts: tuple[Layout, Layout],
    held: Tables,
    wanted: Tables,
    dtype: str,
    call: str,
) -> list[MovedTensor]:
    """Return the tensors that move, in the order of the source, equal on every rank.

    ``held`` are the tables of the ranks of the source, and ``wanted`` those of the ranks of the
    target alone, and of those in both that say what they fill; others in both want the same.
    Numbers travel in ``dtype``, see :func:`travel_dtype`.

    Raises:
        DisagreementError: if the target has other names, or tensors of other dtypes or shapes.
        SpecError: if some ranks of an axis alone have a tensor, and its pattern does not allow it.
    """
    source, target = layouts
    facts: dict[str, Fact] = {}
    for table, ranks in sorted(held, key=lambda pair: min(pair[1])):
        for name, fact in table.items():
            if facts.setdefault(name, fact) != fact:
                raise _fact_error(name, facts[name], fact, ranks)
    _raise_differences(call, _find_differences(facts, wanted, dtype))
    alone = [rank for _, ranks in wanted for rank in ranks]
    moved = []
    filled = {name for table, _ in wanted for name, fact in table.items() if fact[2]}
    for name, (sizes, own, is_dtensor) in facts.items():
        pattern = expand_dots(patterns.find(name), sum(dim.startswith("_") for dim in sizes))
        holders = [rank for table, ranks in held if name in table for rank in ranks]
        left = _mark(name, pattern.left, source, _held_along(name, source, holders)[0])
        takers = [rank for table, ranks in wanted if name in table for rank in ranks]
        choices: list[dict[str, int]] = [{}]
        if takers != alone:
            choices = _held_along(name, target, takers, alone)
        for chosen in choices:
            marked = Pattern(left, _mark(name, pattern.right, target, chosen))
            joined = join_axes(marked, source.sizes, target.sizes)
            dtensors = is_dtensor, name in filled
            move = make_mesh_move(joined, source, target, sizes, are_dtensors=dtensors)
            moved.append(MovedTensor(name, marked, sizes, own, move))
    _raise_differences(call, _find_misfits(moved, wanted))
    return moved


def travel_dtype(own: str, asked: str) -> str:
    """Return the dtype in which a tensor travels: the one asked for, or its own if it counts."""
    return asked if asked and own.startswith(("float", "bfloat")) else own


def loses_a_part(own: str, other: str) -> bool:
    """Return whether numbers of one dtype lose their fraction or another part, or wrap, in another.

    Floating-point numbers that are rounded, or become infinite, lose none.
    """
    if _kind(own) == _kind(other) == "int":
        return not np.can_cast(own, other)
    return _KINDS.index(_kind(own)) > _KINDS.index(_kind(other))


def _kind(dtype: str) -> str:
    return next((kind for kind in _KINDS if kind in dtype), "int")


def _raise_differences(call: str, differences: Sequence[Disagreement]) -> None:
    """Raise an error that names the first differences, if there are any."""
    if not differences:
        return
    lines = [difference.line for difference in differences[:MAX_DIFFERENCES]]
    if left := len(differences) - len(lines):
        lines.append(f"And {left} more {plural('difference', left)}.")
    kinds = dict.fromkeys(difference.kind for difference in differences)
    fix, others = f"the same {' and '.join(kinds)} on both sides.", {d.fix for d in differences}
    if len(others) == 1 and "" not in others:
        fix = f"{others.pop()}, or {fix}"
    summary = f"the source and the target disagree about {call}()."
    raise DisagreementError(summary, *lines, fix=fix)


def _find_differences(facts: Mapping[str, Fact], wanted: Tables, asked: str) -> list[Disagreement]:
    """Return the names that one end lacks, and the dtypes that cannot hold what arrives."""
    dtypes: dict[str, set[str]] = {}
    for table, _ in wanted:
        for name, (_, dtype, _) in table.items():
            dtypes.setdefault(name, set()).add(dtype)
    differences: list[Disagreement] = []
    if not wanted:  # each rank of the target is in the source too, and says nothing
        return differences
    for name in [name for name in {**facts, **dtypes} if (name in facts) != (name in dtypes)]:
        holder = "source" if name in facts else "target"
        differences.append(Disagreement("names", f"{name}: on the {holder} alone."))
    for name in [name for name in facts if name in dtypes]:
        own = facts[name][1]
        for dtype in sorted(dtypes[name] - {own, travel_dtype(own, asked)}):
            if loses_a_part(own, dtype):
                line = f"{name}: {own} on the source, {dtype} on the target."
                differences.append(Disagreement("dtypes", line))
    return differences


def _find_misfits(moved: Iterable[MovedTensor], wanted: Tables) -> list[Disagreement]:
    """Return the tensors to fill that have another shape than what a rank gets."""
    misfits = []
    for name, pattern, sizes, _, move in moved:
        entries, end = move.move.right_entries, move.target
        for table, ranks in wanted:
            if name not in table:
                continue
            columns = columns_of(end.layout, np.array(ranks))
            is_holder = np.ones(len(ranks), bool)
            for axis, index in end.fixed:
                is_holder &= columns[axis] == index
            shape, expected = table[name][0], local_shape(entries, end.cut.shape(columns))
            differs = np.full(len(ranks), len(shape) != len(expected))
            for given, size in zip(shape, expected, strict=False):
                differs |= size != given
            for position in np.flatnonzero(is_holder & differs)[:1]:
                gets = [int(np.broadcast_to(size, len(ranks))[position]) for size in expected]
                whole = format_sizes(sizes) or "no dims"
                line = f"{name}: {whole} on the source, so by {str(pattern)!r} a rank of "
                line += f"the target gets {gets}, and has {[*shape]}."
                misfits.append(Disagreement("shapes", line, "another right side of its pattern"))
    return misfits


def _held_along(
    name: str, layout: Layout, holders: Sequence[int], among: Sequence[int] | None = None
) -> list[dict[str, int]]:
    """Return the coordinates along the axes of which some indices alone have a tensor.

    ``among`` are the ranks of which it is known whether they have it; None is all of the mesh.
    """
    coordinates = [layout.coordinate(rank) for rank in holders]
    indices = {axis: sorted({c[axis] for c in coordinates}) for axis in layout.axes}
    known = [int(rank) for rank in layout.grid.flat] if among is None else among
    places = {rank: layout.coordinate(rank).items() for rank in known}
    expected = {rank for rank in known if all(i in indices[axis] for axis, i in places[rank])}
    if expected != {*holders}:
        raise SpecError(
            f"{name} is on ranks {format_ranks(sorted(holders))}.",
            "A tensor is on all ranks of a mesh, or on those with some indices along an axis.",
            fix="the tensor on all of them, for example on every rank of a pipeline stage.",
        )
    some = {a: found for a, found in indices.items() if len(found) < layout.sizes[a]}
    return [dict(zip(some, chosen, strict=True)) for chosen in itertools.product(*some.values())]


def _mark(name: str, side: Side, layout: Layout, place: Mapping[str, int]) -> Side:
    """Return a side with a mark for each axis of which one coordinate has the tensor."""
    for axis in place:
        if axis in side.types:
            raise SpecError(
                f"{name} is on some ranks of {axis} only, and its pattern names {axis}.",
                f"The side {str(side)!r} is of a mesh with {format_sizes(layout.sizes)}.",
                fix=f"leave {axis} out of the pattern of {name}.",
            )
    marks = (Mark(AxisType("@", index), axis) for axis, index in place.items())
    return Side((*side.items, *marks))


def _fact_error(name: str, first: Fact, other: Fact, ranks: Sequence[int]) -> SpecError:
    one, two = (
        f"{format_sizes(sizes)} in {dtype}{' as a DTensor' * is_dtensor}"
        for sizes, dtype, is_dtensor in (first, other)
    )
    summary = f"{name} differs between {count_noun(2, 'rank')} of the source: {one}, and {two}."
    line = "The parts of a tensor have equal sizes, and those of a DTensor those of torch.chunk."
    return SpecError(summary, line, fix=f"look at {name} on rank {min(ranks)}.")
