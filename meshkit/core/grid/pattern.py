"""Patterns of axes: einops over a grid, and brackets that join axes into one."""

from __future__ import annotations

import re
from collections.abc import Mapping

import einops
import numpy as np

from ..arrays import Ints
from ..errors import CALL, SpecError
from ..text import format_sizes
from ..validate import parse_integer
from .axis_names import check_axes_exist

PART = re.compile(r"\(\s*\w+(?:\s+\w+)*\s*\)|\w+")  # tp, or (dp sp)
TOKEN = re.compile(r"\([^)]*\)|[^\s()]+")
PATTERN = re.compile(rf"\s*(?:(?:{PART.pattern})\s*)+")


def parse_axis_pattern(pattern: str, axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The axes of each word or bracket of a pattern.

    Args:
        pattern: axis names, some of them joined by a pair of brackets; each axis once at most.
        axes: the axes there are.

    Raises:
        SpecError: for a pattern that cannot be read.
        UnknownAxisError: for an axis that is not there.

    Example:
        >>> parse_axis_pattern(Call("f"), "(dp sp) tp", ("dp", "sp", "tp"))
        (('dp', 'sp'), ('tp',))
    """
    if not isinstance(pattern, str) or not PATTERN.fullmatch(pattern):
        raise SpecError(
            "not a pattern of axes.",
            "A pattern is axis names, some of them joined by a pair of brackets.",
            fix=f'"{" ".join(axes)}", or some of these joined: "(dp sp) tp".',
        )
    parts = tuple(tuple(token.strip("()").split()) for token in PART.findall(pattern))
    check_axes_exist([axis for part in parts for axis in part], axes)
    return parts


def rearrange_grid(
    grid: Ints, axes: tuple[str, ...], pattern: str, sizes: Mapping[str, int]
) -> Ints:
    """The grid, rearranged by einops.

    Raises:
        SpecError: where einops refuses, or an axis stands in another axis' place: einops would
            take ``"sp dp -> ..."`` on axes dp, sp as new names for dp and sp.
    """
    right = f'rearrange("{" ".join(axes)} -> ({" ".join(axes)})"), say.'
    if not isinstance(pattern, str) or pattern.count("->") != 1:
        raise SpecError("a pattern is a str with one ->.", fix=right)
    for name, size in sizes.items():
        if parse_integer(size) is None:
            raise SpecError(f"{name} is {size!r}, not an int.", fix=right)
    _check_places(pattern, axes)
    try:
        return np.asarray(einops.rearrange(grid, pattern, **sizes))
    except einops.EinopsError as error:
        shape = format_sizes(dict(zip(axes, grid.shape, strict=True)))
        said = str(error).strip().splitlines()[-1].strip()
        raise SpecError(f"{CALL} on {shape}: einops refuses.", said, fix=right) from error


def _check_places(pattern: str, axes: tuple[str, ...]) -> None:
    """Refuse an axis in another axis' place on the left side."""
    left, _, right = pattern.partition("->")
    front, dots, back = left.partition("...")
    places = [*zip(TOKEN.findall(front), axes, strict=False)]
    if dots:  # what follows the dots is counted from the end
        places += zip(reversed(TOKEN.findall(back)), reversed(axes), strict=False)
    for token, axis in places:
        if token in axes and token != axis:
            fix = f'rearrange("{" ".join(axes)} ->{right}").'
            raise SpecError(f"{token} stands in the place of {axis}.", fix=fix)
