"""Parse patterns such as ``"b s/sp h d -> b s h/sp d"``: einops' notation with mesh axes.

::

    pattern := side "->" side        side := (dim | "(" dim+ ")" | "..." | mark)*
    dim     := NAME ("/" AXIS)* | "1"        mark := ("+" | "*" | "=") AXIS | "@" AXIS ":" INT

``s/a`` is cut over axis a. ``+a`` is a sum over a whose parts are on its ranks. ``*a`` and ``=a``
are copies on all ranks of a. With ``*`` each rank goes on with its own part of the work. With ``=``
all ranks do the same work. ``@a:k`` is on the rank with coordinate k only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

from ..call import format_value
from ..errors import SpecError
from ..text import article, shorten

NAME = r"[^\W\d_]\w*"
TOKEN = re.compile(
    rf"\s*(?:(?P<bracket>[()])|(?:(?P<dots>\.\.\.)|(?P<dim>{NAME}|1)(?P<cuts>(?:/{NAME})*)"
    rf"|(?P<symbol>[+*=])(?P<axis>{NAME})|@(?P<holder>{NAME}):(?P<index>[0-9]{{1,9}}))(?=[\s()]|$))"
)
DOTS = "..."
MAX_NAMES = 3  # tensors that an error shows
EXAMPLE = 'for example "b s/sp h d -> b s h/sp d".'
LAYOUT_EXAMPLE = 'for example layout={"*.up.weight": "o/tp i"}.'
MIRROR = {"+": "*", "*": "+"}

Value = TypeVar("Value")


class AxisType(NamedTuple):
    """The relation between a tensor and one axis of the mesh."""

    symbol: str  # ``/``, ``+``, ``*``, ``=``, ``@``, or ``?`` if only the other side names the axis
    holder: int = 0  # the coordinate of the rank that holds the tensor, for ``@``


UNMARKED = AxisType("?")


class Dim(NamedTuple):
    """A dim of the global tensor and the axes that cut it, the outer axis first."""

    name: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.name, *self.axes))


class Mark(NamedTuple):
    """A mark such as ``+tp`` or ``@dp:0``."""

    type: AxisType
    axis: str

    def __str__(self) -> str:
        place = f":{self.type.holder}" if self.type.symbol == "@" else ""
        return f"{self.type.symbol}{self.axis}{place}"


class Joined(NamedTuple):
    """The dims between a pair of brackets, which are one dim of the local tensor."""

    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.dims))})"


@dataclass(frozen=True)
class Side:
    """One side of a pattern, in the order written."""

    items: tuple[Dim | Joined | Mark, ...]  # dims, dims in brackets, and marks

    @cached_property
    def entries(self) -> tuple[tuple[Dim, ...], ...]:
        """The dims of the local tensor, each with the dims of the global tensor in it."""
        parts = [item for item in self.items if not isinstance(item, Mark)]
        entries = (part.dims if isinstance(part, Joined) else (part,) for part in parts)
        return tuple(tuple(dim for dim in entry if dim.name != "1") for entry in entries)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the global tensor."""
        return tuple(dim for entry in self.entries for dim in entry)

    @cached_property
    def types(self) -> dict[str, AxisType]:
        """The type of each axis that the side names."""
        cut = {axis: AxisType("/") for dim in self.dims for axis in dim.axes}
        return {**cut, **{mark.axis: mark.type for mark in self.marks}}

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """The marks, in the order written."""
        return tuple(item for item in self.items if isinstance(item, Mark))

    @property
    def axes(self) -> list[str]:
        """The axes, dims before marks, also those that occur twice."""
        cuts = (axis for dim in self.dims for axis in dim.axes)
        return [*cuts, *(mark.axis for mark in self.marks)]

    def rewrite(self, change: Callable[[Dim | Mark], Iterable[Dim | Mark]]) -> Side:
        """Return the side with each dim and mark replaced by those that a function returns."""
        items: list[Dim | Joined | Mark] = []
        for item in self.items:
            if isinstance(item, Joined):
                dims = (changed for dim in item.dims for changed in change(dim))
                items.append(Joined(tuple(dim for dim in dims if isinstance(dim, Dim))))
            else:
                items += change(item)
        return Side(tuple(items))

    def __str__(self) -> str:
        return " ".join(map(str, self.items))


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern. ``str`` gives it back, with single spaces."""

    left: Side
    right: Side

    @cached_property
    def types(self) -> dict[str, tuple[AxisType, AxisType]]:
        """The types of each axis on the left and on the right, in the order written."""
        left, right = self.left.types, self.right.types
        axes = dict.fromkeys([*self.left.axes, *self.right.axes])
        return {axis: (left.get(axis, UNMARKED), right.get(axis, UNMARKED)) for axis in axes}

    @cached_property
    def mirror(self) -> Pattern:
        """The pattern of the backward: the sides are exchanged, and so are ``+`` and ``*``."""

        def mirror(item: Dim | Mark) -> list[Dim | Mark]:
            if isinstance(item, Dim):
                return [item]
            symbol = MIRROR.get(item.type.symbol, item.type.symbol)
            return [Mark(item.type._replace(symbol=symbol), item.axis)]

        return Pattern(self.right.rewrite(mirror), self.left.rewrite(mirror))

    def __str__(self) -> str:
        return f"{self.left} -> {self.right}"


def parse_pattern(text: str) -> Pattern:
    """Return the parsed pattern of a text, from a cache if it was parsed before."""
    if not isinstance(text, str):  # a list has no hash for the cache
        raise SpecError(
            f"the pattern is {format_value(text, article(type(text).__name__))}, not a str.",
            fix="the tensor first, then the pattern." if hasattr(text, "shape") else EXAMPLE,
        )
    return parse_text(text)


@lru_cache(maxsize=1000)
def parse_text(text: str) -> Pattern:
    """Return the parsed pattern of a text."""
    try:
        return _parse_sides(text)
    except SpecError as error:
        usual = re.sub("[-=]*[>\u2192]", "->", text).replace(",", " ")
        fix = error.fix
        with suppress(SpecError):
            fix = f"{str(_parse_sides(usual))!r}."
        raise error.but(fix=fix) from None


def _parse_sides(text: str) -> Pattern:
    if text.count("->") != 1:
        raise SpecError("the pattern has no arrow, or several.", fix=EXAMPLE)
    left, right = (_parse_side(side) for side in text.split("->"))
    pattern = Pattern(left, right)
    for side in left, right:
        _check_unique([dim.name for dim in side.dims], "dim", side)
        _check_unique(side.axes, "axis", side)
    _check_same_dims(pattern)
    return pattern


def _parse_side(text: str) -> Side:
    items: list[Dim | Joined | Mark] = []
    bracket: list[Dim] | None = None
    position, end = 0, len(text.rstrip())
    while position < end:
        match = TOKEN.match(text, position)
        if match is None:
            raise _syntax_error(text, position)
        position = match.end()
        if match["bracket"] == "(" and bracket is None:
            bracket = []
        elif match["bracket"] == ")" and bracket:
            items.append(Joined(tuple(bracket)))
            bracket = None
        elif match["bracket"] or (bracket is not None and not match["dim"]):
            raise _syntax_error(text, match.start())
        elif bracket is not None:
            bracket.append(_parse_dim(match))
        else:
            items.append(_parse_dim(match) if match["dim"] else _parse_mark(match))
    if bracket is not None:
        raise _syntax_error(text, end)
    return Side(tuple(items))


def _parse_dim(match: re.Match[str]) -> Dim:
    dim = Dim(match["dim"], tuple(match["cuts"].split("/")[1:]))
    if dim.name == "1" and dim.axes:
        fix = f"a name for the dim, such as n/{'/'.join(dim.axes)}."
        raise SpecError("a dim of size 1 cannot be cut.", fix=fix)
    return dim


def _parse_mark(match: re.Match[str]) -> Dim | Mark:
    if match["dots"]:
        return Dim(DOTS)
    if match["holder"]:
        return Mark(AxisType("@", int(match["index"])), match["holder"])
    return Mark(AxisType(match["symbol"]), match["axis"])


def _syntax_error(text: str, position: int) -> SpecError:
    """Return the error for a text that does not follow the grammar."""
    cut = re.search(rf"\(([^()]+)\)((?:/{NAME})+)", text)
    if cut and (dims := cut[1].split()):
        ways = (" ".join([*dims[:n], dims[n] + cut[2], *dims[n + 1 :]]) for n in range(len(dims)))
        return SpecError(
            f"{cut[0]} cuts a pair of brackets.",
            "A cut belongs to one dim.",
            fix=f"{', or '.join(f'({way})' for way in ways)}.",
        )
    rest = text[position:].strip()
    place = f"at {rest!r}" if rest else "at the end of a side"
    return SpecError(
        f"the pattern cannot be parsed {place}.",
        "A side is dims (s, s/sp, 1), brackets of dims, ... and marks (+tp, *tp, =tp, @pp:0).",
        fix=EXAMPLE,
    )


def _check_unique(names: list[str], noun: str, side: Side) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        summary = f"the {noun} {repeated} occurs twice in {str(side)!r}."
        raise SpecError(summary, fix=f"name {repeated} once on each side.")


def _check_same_dims(pattern: Pattern) -> None:
    left, right = ([dim.name for dim in side.dims] for side in (pattern.left, pattern.right))
    for name in [*left, *right]:
        if name not in left or name not in right:
            side, other = ("left", "right") if name in left else ("right", "left")
            noun = "the ellipsis" if name == DOTS else f"the dim {name}"
            fix = f"{name} on both sides. A size of 1 is written 1."
            raise SpecError(f"{noun} is on the {side} side, and not on the {other} one.", fix=fix)


def drop_axes(pattern: Pattern, axes: Collection[str]) -> Pattern:
    """Return the pattern without the axes that a mesh does not have, whose size is 1."""
    if pattern.types.keys() <= {*axes}:
        return pattern

    def drop(item: Dim | Mark) -> list[Dim | Mark]:
        if isinstance(item, Dim):
            return [Dim(item.name, tuple(axis for axis in item.axes if axis in axes))]
        return [item] if item.axis in axes else []

    return Pattern(pattern.left.rewrite(drop), pattern.right.rewrite(drop))


def expand_dots(pattern: Pattern, count: int) -> Pattern:
    """Return the pattern with the ellipsis replaced by the dims ``_0``, ``_1``, ..."""
    names = [Dim(f"_{index}") for index in range(count)]

    def expand(item: Dim | Mark) -> Iterable[Dim | Mark]:
        return names if item == Dim(DOTS) else [item]

    return Pattern(pattern.left.rewrite(expand), pattern.right.rewrite(expand))


# ------------------------------------------------------------------ sides by names


def first_match(globs: Mapping[str, Value], name: str) -> Value | None:
    """Return the value of the first glob that matches a whole name."""
    return next((value for glob, value in globs.items() if fnmatchcase(name, glob)), None)


def check_globs(globs: Iterable[str], names: Collection[str], what: str) -> None:
    """Check that each glob of a layout matches a name of a tensor."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            shown = ", ".join(shorten([*names], MAX_NAMES)) or "none"
            line = f"layout[{glob!r}] matches no {what}."
            raise SpecError(line, f"The names are {shown}.", fix="a glob of these names.")


def parse_side(text: str) -> Side:
    """Return one side of a pattern."""
    return parse_pattern(f"{text} -> {text}").left


def parse_layout(layout: object) -> dict[str, Side]:
    """Return the side of a pattern for each glob of names.

    Raises:
        SpecError: if the layout is no mapping, or a side cannot be parsed.
    """
    if not isinstance(layout, Mapping):
        raise SpecError(f"layout is {layout!r}, not a mapping.", fix=LAYOUT_EXAMPLE)
    sides = {}
    for glob, text in layout.items():
        if not isinstance(glob, str) or not isinstance(text, str):
            raise SpecError(f"layout has {text!r} for {glob!r}, not two str.", fix=LAYOUT_EXAMPLE)
        if "->" in text:
            line = f"layout[{glob!r}] is {text!r}, which has an arrow."
            left = text.partition("->")[0].strip()
            raise SpecError(line, "A tensor has one side of a pattern.", fix=f"{left!r}.")
        try:
            sides[glob] = parse_side(text)
        except SpecError as error:
            fix = LAYOUT_EXAMPLE if error.fix == EXAMPLE else error.fix
            line = f"layout[{glob!r}] is {text!r}: {error.summary}"
            raise error.but(summary=line, fix=fix) from None
    return sides
