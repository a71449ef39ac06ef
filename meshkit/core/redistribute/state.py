"""Plan the move of a whole state between two meshes: which ranks hold each tensor, and its pattern.

A state is names with tensors. A dict of globs says how each tensor is cut before and after::

    {"*.q_proj.weight": "o/dp/tp i -> o/tp i", "*norm*": "d/dp -> d"}

Ranks of a pipeline have the names of their own stage. The axis of the stages is then marked, so the
left side of such a name ends with ``@pp:1``, for example.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..errors import SpecError
from ..layout import Layout
from ..text import count_noun, format_ranks, format_sizes
from .pattern import AxisType, Mark, Pattern, Side, parse_pattern

Fact = tuple[dict[str, int], str]  # the global size of each dim, and the name of the dtype
Table = Mapping[str, Any]  # by name: a fact on the source; the local shape on the target
Tables = Sequence[tuple[Table, Sequence[int]]]  # different tables, each with its ranks


class MovedTensor(NamedTuple):
    """A tensor of a state that moves, in one pattern."""

    name: str
    pattern: Pattern  # with a mark for each axis of which one coordinate alone has the tensor
    sizes: Mapping[str, int]  # the global size of each dim
    dtype: str


@dataclass(frozen=True)
class StatePatterns:
    """The patterns of a state by glob; the first glob that matches a whole name counts."""

    globs: tuple[tuple[str, Pattern], ...]

    @classmethod
    def of(cls, patterns: object) -> StatePatterns:
        """Return the parsed patterns."""
        if not isinstance(patterns, Mapping) or not patterns:
            fix = '{"*.weight": "o/dp i -> o i", "*": "d/dp -> d"}, for example.'
            raise SpecError(f"patterns is {patterns!r}.", fix=fix)
        return cls(tuple((str(glob), parse_pattern(text)) for glob, text in patterns.items()))

    def find(self, name: str) -> Pattern:
        """Return the pattern of a name."""
        for glob, pattern in self.globs:
            if fnmatchcase(name, glob):
                return pattern
        line = f"no pattern matches {name}."
        raise SpecError(line, fix=f"a pattern for {name}, or a last one for all others.")


def list_moved(
    patterns: StatePatterns, source: Layout, target: Layout, held: Tables, wanted: Tables
) -> list[MovedTensor]:
    """Return the tensors that move, in the order of the source, equal on every rank.

    Args:
        patterns: the patterns by name.
        source: the ranks that have the state.
        target: the ranks that get it.
        held: the tables of the ranks of the source.
        wanted: the tables of the ranks of the target alone; ranks in both want what others want.
    """
    facts: dict[str, Fact] = {}
    for table, ranks in sorted(held, key=lambda pair: min(pair[1])):
        for name, fact in table.items():
            if facts.setdefault(name, fact) != fact:
                raise _fact_error(name, facts[name], fact, ranks)
    alone = [rank for _, ranks in wanted for rank in ranks]
    if wanted:
        _check_names(facts, wanted)
    moved = []
    for name, (sizes, dtype) in facts.items():
        pattern = patterns.find(name)
        holders = [rank for table, ranks in held if name in table for rank in ranks]
        left = _mark(name, pattern.left, source, _held_along(name, source, holders)[0])
        takers = [rank for table, ranks in wanted if name in table for rank in ranks]
        choices: list[dict[str, int]] = [{}]
        if takers != alone:
            choices = _held_along(name, target, takers, alone)
        for chosen in choices:
            right = _mark(name, pattern.right, target, chosen)
            moved.append(MovedTensor(name, Pattern(left, right), sizes, dtype))
    return moved


def _check_names(facts: Mapping[str, Fact], wanted: Tables) -> None:
    """Check that the two sides have equal names."""
    names = {name for table, _ in wanted for name in table}
    for some, other, side in (
        (names, facts, "ranks of the source"),
        (facts, names, "ranks of the target"),
    ):
        missing = sorted(name for name in some if name not in other)
        if missing:
            few = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" * (len(missing) > 3))
            line = f"no {side} have {few}."
            raise SpecError(line, fix="equal names on both sides, in state and in like.")


def _held_along(
    name: str, layout: Layout, holders: Sequence[int], among: Sequence[int] | None = None
) -> list[dict[str, int]]:
    """Return the coordinates along the axes of which some indices alone have a tensor.

    Args:
        name: the tensor.
        layout: the mesh.
        holders: the ranks that have it.
        among: the ranks of which it is known; None is all of the mesh.
    """
    coordinates = [layout.coordinate(rank) for rank in holders]
    indices = {axis: sorted({c[axis] for c in coordinates}) for axis in layout.axes}
    known = [int(rank) for rank in layout.grid.flat] if among is None else among
    expected = {
        rank
        for rank in known
        if all(i in indices[axis] for axis, i in layout.coordinate(rank).items())
    }
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
    one, two = (f"{format_sizes(sizes)} in {dtype}" for sizes, dtype in (first, other))
    summary = f"{name} differs between {count_noun(2, 'rank')} of the source: {one}, and {two}."
    fix = f"look at {name} on rank {min(ranks)}."
    return SpecError(summary, fix=fix)
