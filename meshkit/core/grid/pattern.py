"""Patterns of axes: einops patterns over a grid, and brackets that join axes into one."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ..arrays import Ints
from ..errors import CALL, SpecError
from ..text import format_sizes
from ..validate import parse_integer
from .axis_names import STANDARD, Names, check_axes_exist, parse_axes

PART = re.compile(r"\(\s*\w+(?:[\s,]+\w+)*\s*\)|\w+")  # tp, or (dp sp)
TOKEN = re.compile(r"\([^)]*\)|[^\s()]+")
PATTERN = re.compile(rf"\s*(?:(?:{PART.pattern})[\s,]*)+")


def parse_axis_pattern(pattern: Names, axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each name or bracket of a pattern.

    A sequence is a pattern too: each of its items is a name or, as a bracket, several.
    """
    if isinstance(pattern, str) and PATTERN.fullmatch(pattern):
        parts = tuple(map(parse_axes, PART.findall(pattern)))
    elif isinstance(pattern, list | tuple) and all(map(parse_axes, pattern)) and pattern:
        parts = tuple(map(parse_axes, pattern))
    else:
        raise SpecError(
            "the pattern cannot be parsed.",
            "A pattern is axis names, some of them joined by a pair of brackets.",
            fix=f'"{" ".join(axes)}", or some of these joined: "(dp sp) tp".',
        )
    check_axes_exist([axis for part in parts for axis in part], axes)
    return parts


def rearrange_grid(
    grid: Ints, axes: tuple[str, ...], pattern: str, sizes: Mapping[str, int]
) -> Ints:
    """Return the grid, rearranged by einops."""
    import einops  # a layout that is never rearranged does not import it

    example = f'for example rearrange("{" ".join(axes)} -> ({" ".join(axes)})").'
    if not isinstance(pattern, str) or pattern.count("->") != 1:
        raise SpecError("the pattern is not a str with one ->.", fix=example)
    for name, size in sizes.items():
        if parse_integer(size) is None:
            raise SpecError(f"{name} is {size!r}, not an int.", fix=example)
    nested = _insert_absent_axes(pattern, axes, sizes)
    _check_positions(pattern, nested)
    shaped = grid.reshape([grid.shape[axes.index(n)] if n in axes else 1 for n in nested])
    try:
        return np.asarray(einops.rearrange(shaped, pattern, **sizes))
    except einops.EinopsError as error:
        shape = format_sizes(dict(zip(nested, shaped.shape, strict=True)))
        reason = str(error).strip().splitlines()[-1].strip()
        line = f"{CALL} on {shape}: einops rejects the pattern."
        raise SpecError(line, reason, fix=example) from error


def _insert_absent_axes(
    pattern: str, axes: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the axes with the absent standard ones that the left side names, in its positions."""
    front, dots, back = pattern.partition("->")[0].partition("...")
    names, tokens = [*axes], TOKEN.findall(front)
    for position, token in enumerate(tokens):
        if token in STANDARD and token not in (*axes, *sizes):
            names.insert(position, token)
    for position, token in enumerate(reversed(TOKEN.findall(back)) if dots else ()):
        if token in STANDARD and token not in (*axes, *sizes):
            names.insert(len(names) - position, token)
    return tuple(names)


def _check_positions(pattern: str, axes: tuple[str, ...]) -> None:
    """Check that no axis is in the position of another one on the left side."""
    left, _, right = pattern.partition("->")
    front, dots, back = left.partition("...")
    pairs = [*zip(TOKEN.findall(front), axes, strict=False)]
    if dots:  # the axes after the dots are counted from the end
        pairs += zip(reversed(TOKEN.findall(back)), reversed(axes), strict=False)
    for token, axis in pairs:
        if token in axes and token != axis:
            fix = f'rearrange("{" ".join(axes)} ->{right}").'
            raise SpecError(f"{token} is in the position of {axis}.", fix=fix)
