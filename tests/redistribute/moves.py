"""Hypothesis strategies for moves: patterns in all forms, with sizes of axes and dims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.redistribute.move import Move, make_move
from meshkit.redistribute.pattern import parse_pattern

AXES = ("pp", "dp", "sp", "tp")
DIMS = ("b", "s", "h", "d")
MARKS = "+*=@"


@dataclass(frozen=True)
class Case:
    """A pattern with the sizes of axes and dims."""

    pattern: str
    axes: Mapping[str, int]
    sizes: Mapping[str, int]

    @property
    def move(self) -> Move:
        """The move of the pattern."""
        return make_move(parse_pattern(self.pattern), self.axes, self.sizes)


@st.composite
def axis_sizes(draw: st.DrawFn, max_ranks: int = 16) -> dict[str, int]:
    """Return the sizes of one to four axes, sizes of 1 included."""
    names = draw(st.lists(st.sampled_from(AXES), min_size=1, unique=True).map(sorted))
    sizes: dict[str, int] = {}
    for name in names:
        limit = max_ranks // math.prod(sizes.values())
        sizes[name] = draw(st.sampled_from([n for n in (2, 1, 3, 4) if n <= max(limit, 1)]))
    return sizes


@st.composite
def sides(
    draw: st.DrawFn, axes: Mapping[str, int], dims: Sequence[str], marks: str = MARKS
) -> tuple[dict[str, list[str]], str]:
    """Return the axes that cut each dim on one side, and the marks of the others."""
    cuts: dict[str, list[str]] = {dim: [] for dim in dims}
    text = ""
    for axis in draw(st.permutations([*axes])):
        place = draw(st.sampled_from([*dims, *marks]))
        if place in cuts:
            cuts[place].append(axis)
        else:
            index = f":{draw(st.integers(0, axes[axis] - 1))}" if place == "@" else ""
            text += f" {place}{axis}{index}"
    return cuts, text


@st.composite
def side_texts(
    draw: st.DrawFn, cuts: Mapping[str, Sequence[str]], marks: str, *, in_order: bool
) -> str:
    """Return a side as text, with its dims in some order, some of them joined by brackets."""
    names = [*cuts] if in_order else draw(st.permutations([*cuts]))
    words = ["/".join([name, *cuts[name]]) for name in names]
    if not in_order and draw(st.booleans()):
        words.insert(draw(st.integers(0, len(words))), "1")
    start = draw(st.integers(0, len(words) - 1))
    stop = draw(st.integers(start, len(words)))
    if stop > start and not in_order and draw(st.booleans()):
        words[start:stop] = [f"({' '.join(words[start:stop])})"]
    return " ".join(words) + marks


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    marks: str = MARKS,
    uneven: bool = False,
    in_order: bool = False,
    axes: Mapping[str, int] | None = None,
) -> Case:
    """Return moves.

    Args:
        draw: the function of hypothesis.
        marks: the marks that may occur.
        uneven: whether parts may have different sizes.
        in_order: whether both sides have the same dims, without brackets.
        axes: the axes; None for any.
    """
    sizes_of_axes = axes if axes is not None else draw(axis_sizes())
    dims = DIMS[: draw(st.integers(1, 3))]
    texts, factors = [], dict.fromkeys(dims, 1)
    for _ in range(2):
        cuts, text = draw(sides(sizes_of_axes, dims, marks))
        texts.append(draw(side_texts(cuts, text, in_order=in_order)))
        for dim in dims:
            parts = math.prod(sizes_of_axes[axis] for axis in cuts[dim])
            factors[dim] = math.lcm(factors[dim], parts)
    if uneven:
        sizes = {dim: draw(st.integers(1, 9)) for dim in dims}
    else:
        sizes = {dim: factors[dim] * draw(st.integers(1, 2)) for dim in dims}
    return Case(" -> ".join(texts), sizes_of_axes, sizes)


class Bracketed(NamedTuple):
    """A tensor whose first dim is three dims in brackets, and its parts on a mesh."""

    layout: Layout
    side: str
    given: dict[str, int]  # the sizes of two of the three dims
    sizes: dict[str, int]
    whole: np.ndarray[Any, Any]
    parts: dict[int, np.ndarray[Any, Any]]


@st.composite
def bracketed(draw: st.DrawFn) -> Bracketed:
    """Draw a tensor in parts of any sizes, also of none."""
    layout = Layout(sp=draw(st.integers(1, 3)), tp=draw(st.integers(1, 3)))
    dims = draw(st.sampled_from(["q h/tp d", "q h/tp/sp d", "q h/sp d/tp", "q/sp h/tp d"])).split()
    cuts = {dim.split("/")[0]: dim.split("/")[1:] for dim in dims}
    sizes = {name: draw(st.integers(0, 4)) for name in cuts}
    block = np.arange(math.prod(sizes.values()) * 2.0).reshape(*sizes.values(), 2)
    parts = {}
    for rank in range(layout.num_ranks):
        part = block
        for number, axes in enumerate(cuts.values()):
            for axis in axes:
                index = layout.coordinate(rank)[axis]
                part = np.array_split(part, layout.size(axis), number)[index]
        parts[rank] = part.reshape(math.prod(part.shape[:-1]), 2)
    unknown = draw(st.sampled_from([*sizes]))
    given = {name: size for name, size in sizes.items() if name != unknown}
    if not math.prod(given.values()):  # no part shows the size
        sizes[unknown] = 0
    whole = block.reshape(math.prod(block.shape[:-1]), 2)
    return Bracketed(layout, f"({' '.join(dims)}) i", given, sizes, whole, parts)
