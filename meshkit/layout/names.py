"""Patterns of axis names: names in brackets are joined.

::

    (dp sp) tp                   two dims: dp and sp joined, and tp        of a DeviceMesh
    dp sp tp -> (dp sp) tp       the same of a grid, in the notation of einops
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import einops
import numpy as np

from ..call import parse_integer
from ..errors import CALL, SpecError
from ..synonyms import STANDARD
from ..text import Ints, format_sizes
from .axes import Names, check_axes_exist, parse_axes

# Compiled at the first use, so that an import does not pay for them.
PART = r"\(\s*\w+(?:[\s,]+\w+)*\s*\)|\w+"  # tp, or (dp sp)
TOKEN = r"\([^)]*\)|[^\s()]+"
PATTERN = rf"\s*(?:(?:{PART})[\s,]*)+"


def parse_axis_pattern(pattern: Names, axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each name or bracket of a pattern."""
    if isinstance(pattern, str) and re.fullmatch(PATTERN, pattern):
        parts = tuple(map(parse_axes, re.findall(PART, pattern)))
    elif isinstance(pattern, list | tuple) and all(map(parse_axes, pattern)) and pattern:
        parts = tuple(map(parse_axes, pattern))
    else:
        if isinstance(pattern, int):  # as DeviceMesh counts its dims
            check_axes_exist(parse_axes(pattern), axes)
        raise SpecError(
            "the pattern cannot be parsed.",
            "A pattern is axis names, some of them joined by a pair of brackets.",
            fix=f'"{" ".join(axes)}", or joined: "({" ".join(axes)})".',
        )
    check_axes_exist([axis for part in parts for axis in part], axes)
    return parts


def rearrange_grid(
    grid: Ints, axes: tuple[str, ...], pattern: str, sizes: Mapping[str, int]
) -> Ints:
    """Return the grid, rearranged by einops."""
    example = f'for example rearrange("{" ".join(axes)} -> ({" ".join(axes)})").'
    if not isinstance(pattern, str) or pattern.count("->") != 1:
        raise SpecError("the pattern is not a str with one ->.", fix=example)
    for name, size in sizes.items():
        if parse_integer(size) is None:
            raise SpecError(f"{name} is {size!r}, not an int.", fix=example)
    names = _axes_on_the_left(pattern, axes, sizes)
    shaped = grid.reshape([grid.shape[axes.index(n)] if n in axes else 1 for n in names])
    try:
        return np.asarray(einops.rearrange(shaped, pattern, **sizes))
    except einops.EinopsError as error:
        shape = format_sizes(dict(zip(names, shaped.shape, strict=True)))
        reason = str(error).strip().splitlines()[-1].strip()
        line = f"{CALL} on {shape}: einops rejects the pattern."
        raise SpecError(line, reason, fix=example) from error


def _axes_on_the_left(
    pattern: str, axes: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the axes with the absent standard ones that the left side names, in its positions."""
    left, _, right = pattern.partition("->")
    front, _, back = (re.findall(TOKEN, part) for part in left.partition("..."))
    absent = {t for t in (*front, *back) if t in STANDARD and t not in (*axes, *sizes)}
    before, after = (sum(token not in absent for token in part) for part in (front, back))
    covered = axes[before : len(axes) - after]  # by the dots; without them einops rejects the rest
    names, remaining = [], iter(axes)
    for token in (*front, *covered, *back):
        axis = token if token in absent else next(remaining, None)
        if axis and token in axes and token != axis:
            fix = f'rearrange("{" ".join(axes)} ->{right}").'
            raise SpecError(f"{token} is in the position of {axis}.", fix=fix)
        names += [axis] if axis else []
    return tuple(names)
