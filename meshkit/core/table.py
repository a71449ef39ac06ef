"""Rows in columns that line up, as text of a width, with an ASCII twin.

::

    axis  size  first group         axis  size  first group
    ────  ────  ───────────         ----  ----  -----------
    dp       4  0, 2, 4, 6          dp       4  0, 2, 4, 6
    sp       2  0, 1                sp       2  0, 1
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from operator import le
from typing import TypeVar

import numpy as np

from .seats import Ints
from .words import count_noun

Value = TypeVar("Value")

BETWEEN = "  "
NARROW = 40  # columns that are always used
FEW = 6  # items of a list that are shown in full


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 80, ascii: bool = False
) -> str:
    """The rows under their header. Pure.

    Columns of numbers are aligned at the right, others at the left. Where all is too wide, the
    widest column of words is broken over several lines.

    Args:
        header: what each column is called.
        rows: the cells, as many in each row as there are in the header.
        width: columns to fit into. At least 40 are used; a number is never cut.
        ascii: whether to draw with ASCII characters only.

    Returns:
        Lines without a final newline, and without blanks at their ends.

    Example:
        >>> print(table(["axis", "size"], [["dp", "4"], ["sp", "2"]], ascii=True))
        axis  size
        ----  ----
        dp       4
        sp       2
    """
    columns = list(zip(header, *rows, strict=True))
    numbers = [all(map(_is_number, column[1:])) and len(column) > 1 for column in columns]
    wide = _fitted([max(map(len, column)) for column in columns], numbers, max(width, NARROW))
    rule = BETWEEN.join(("-" if ascii else "─") * size for size in wide)
    lines = [*_row(header, wide, numbers), rule]
    for row in rows:
        lines += _row(row, wide, numbers)
    return "\n".join(line.rstrip() for line in lines)


def items(pairs: Sequence[tuple[str, str]], *, width: int = 80) -> str:
    """Names and what is said of each, one below the other; long words go on below themselves.

    Example:
        >>> print(items([("node", "1"), ("slot", "1 of 4")]))
        node  1
        slot  1 of 4
    """
    lead = max((len(name) for name, _ in pairs), default=0) + len(BETWEEN)
    lines = []
    for name, said in pairs:
        broken = [part for line in said.split("\n") for part in _broken(line, width - lead)]
        lines += [f"{name:{lead}}{broken[0]}", *(" " * lead + line for line in broken[1:])]
    return "\n".join(line.rstrip() for line in lines)


def few(values: Sequence[Value], say: Callable[[Value], str] = str) -> str:
    """A list in full where it is short, else its first, its last and how many there are.

    Args:
        values: as many as there may be; only those that are shown are looked at.
        say: what to write for one of them.

    Example:
        >>> few(range(4)), few(range(0, 64, 2))
        ('0, 1, 2, 3', '0, 2, 4, ..., 62 (32)')
    """
    if len(values) <= FEW:
        return ", ".join(map(say, values))
    return f"{', '.join(map(say, values[:3]))}, ..., {say(values[-1])} ({len(values)})"


def some(ranks: Ints, noun: str = "rank") -> str:
    """So many of a noun and which: their runs, shortened where there are many. O(ranks).

    Args:
        ranks: ascending.
        noun: what one of them is.

    Example:
        >>> some(np.array([0, 1, 2, 3, 9])), some(np.arange(0))
        ('5 ranks: 0-3, 9', '0 ranks')
    """
    if not len(ranks):
        return count_noun(0, noun)
    cuts = np.flatnonzero(np.diff(ranks) != 1)
    firsts, lasts = ranks[np.append(0, cuts + 1)], ranks[np.append(cuts, -1)]
    shown = range(len(firsts)) if len(firsts) <= FEW else (0, 1, 2, -1)
    said = [run(int(firsts[i]), int(lasts[i])) for i in shown]
    said[3:3] = ["..."] * (len(firsts) > FEW)
    return f"{count_noun(len(ranks), noun)}: {', '.join(said)}"


def run(first: int, last: int) -> str:
    """Numbers in a row.

    Example:
        >>> run(4, 7), run(4, 4)
        ('4-7', '4')
    """
    return f"{first}-{last}" if last > first else f"{first}"


def _is_number(cell: str) -> bool:
    return cell.isdigit() or cell in ("", "-")


def _fitted(wide: list[int], numbers: list[bool], width: int) -> list[int]:
    """The widths, that of the widest column of words reduced where all do not fit."""
    over = sum(wide) + len(BETWEEN) * (len(wide) - 1) - width
    words = [i for i, number in enumerate(numbers) if not number]
    if over > 0 and words:
        widest = max(words, key=lambda i: wide[i])
        wide[widest] = max(wide[widest] - over, 8)
    return wide


def _row(cells: Sequence[str], wide: list[int], numbers: list[bool]) -> list[str]:
    """A row, over as many lines as its longest cell needs."""
    if all(map(le, map(len, cells), wide)):
        return [_line(cells, wide, numbers)]
    broken = [_broken(cell, size) for cell, size in zip(cells, wide, strict=True)]
    lines = []
    for i in range(max(map(len, broken))):
        parts = [lines_of[i] if i < len(lines_of) else "" for lines_of in broken]
        lines.append(_line(parts, wide, numbers))
    return lines


def _line(parts: Sequence[str], wide: list[int], numbers: list[bool]) -> str:
    sized = zip(parts, wide, numbers, strict=True)
    return BETWEEN.join(part.rjust(size) if n else part.ljust(size) for part, size, n in sized)


def _broken(text: str, width: int) -> list[str]:
    """A text in lines of a width; words longer than that stay whole, an indent is kept."""
    if len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    wrapper = textwrap.TextWrapper(
        max(width, 8),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text)
