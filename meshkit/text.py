"""Parts of messages (plurals, ranges of ranks, bytes, dtypes) and tables with aligned columns.

::

    axis  size  first group         axis  size  first group
    ────  ────  ───────────         ----  ----  -----------
    dp       4  0, 2, 4, 6          dp       4  0, 2, 4, 6
    sp       2  0, 1                sp       2  0, 1
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Seconds = Floats
Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_SHOWN = 6  # items of a list that is shown in full
GAP = "  "  # between two columns
MIN_WIDTH = 40  # columns of text that are always used
MIN_CELL = 8  # characters that a wrapped cell keeps
EMPTY = ("", "-")  # cells that a column of numbers may hold
INTEGER = re.compile(r"-?[0-9]{1,18}")  # it fits into int64
NUMBER = re.compile(r"[0-9]+\.?[0-9]*(e[+-]?[0-9]+)?", re.IGNORECASE)

KB, MB, GB = 10**3, 10**6, 10**9  # bytes
BYTE_UNITS = {"GB": GB, "MB": MB, "kB": KB}
DTYPE_BYTES = {  # of an element
    **dict.fromkeys(("float64", "int64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    "complex128": 16,
}
SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def article(noun: str) -> str:
    """Return a noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {plural(noun, number)}"


def plural(noun: str, number: int = 2) -> str:
    """Return the plural of a noun, or the noun itself if the number is 1."""
    if number == 1:
        return noun
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def format_sizes(sizes: Mapping[str, object], between: str = " ") -> str:
    """Return names with their values, for example axes with their sizes or indices."""
    return between.join(f"{name}={value}" for name, value in sizes.items())


def group_by(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return each key of some pairs with its values, in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def summarize(values: Sequence[Value], text_of: Callable[[Value], str] = str) -> str:
    """Return up to 6 values in full; of more, the first three, the last one and their number."""
    if len(values) <= MAX_SHOWN:
        return ", ".join(map(text_of, values))
    first = ", ".join(map(text_of, values[:3]))
    return f"{first}, ..., {text_of(values[-1])} ({len(values)})"


def shorten(texts: Sequence[str], most: int, end: str = "") -> list[str]:
    """Return the first texts, and a last one with the number of the others if there are any."""
    left = len(texts) - most
    return [*texts[:most], *([f"and {left} more{end}"] if left > 0 else [])]


def format_figure(number: float) -> str:
    """Return a number of 0 or more with three digits, without an exponent."""
    if number >= 100 or number < 1e-6:
        return f"{number:.0f}"
    return f"{float(f'{number:.3g}'):.8f}".rstrip("0").rstrip(".")


def format_bytes(number: int) -> str:
    """Return bytes in kB, MB or GB."""
    if number < KB:
        return f"{number} B"
    unit = byte_unit(number)
    return f"{format_figure(number / BYTE_UNITS[unit])} {unit}"


def byte_unit(number: int) -> str:
    """Return the largest unit that a number of bytes reaches, at least kB."""
    return next((unit for unit, size in BYTE_UNITS.items() if number >= size), "kB")


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype as torch has it, without ``torch.``: bfloat16, also for bf16."""
    text = str(dtype).removeprefix("torch.")
    return SHORT_DTYPES.get(text, text)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ascending ranks as a phrase."""
    first, comma, last = format_ranks(ranks).rpartition(", ")
    return f"{plural('rank', len(ranks))} {first}{' and ' if comma else ''}{last}"


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ascending ranks with consecutive ones collapsed; ``none`` if there are none."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and ranges[-1][-1] == rank - 1:
            ranges[-1][1:] = [rank]
        else:
            ranges.append([rank])
    return ", ".join("-".join(map(str, ends)) for ends in ranges) or "none"


def format_table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = (),
    *,
    width: int | None = None,
    ascii: bool = False,
) -> str:
    """Return rows with aligned columns, at most ``width`` wide if given, by wrapping texts.

    Under a header, columns of numbers are aligned at the right. Their headings are wrapped last.
    """
    columns = [*zip(*([header] if header else []), *rows, strict=True)]
    numeric = [
        bool(header) and len(c) > 1 and all(x in EMPTY or NUMBER.fullmatch(x) for x in c[1:])
        for c in columns
    ]
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    if width is not None:
        widths = _fit(columns, widths, numeric, max(width, MIN_WIDTH))
    lines = [line for row in rows for line in _row(row, widths, numeric)]
    if header:
        rule = GAP.join(("-" if ascii else "─") * size for size in widths)
        lines = [*_row(header, widths, numeric), rule, *lines]
    return "\n".join(line.rstrip() for line in lines)


def wrap_lines(text: str, width: int) -> list[str]:
    """Return a text in lines of a width, all but the first indented."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _fit(
    columns: Sequence[Sequence[str]], widths: list[int], numeric: list[bool], width: int
) -> list[int]:
    """Return the column widths, reduced if the table is too wide: first those of texts."""
    for i in sorted(range(len(widths)), key=lambda i: (numeric[i], -widths[i])):
        excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
        if excess > 0:
            longest_word = max(map(len, " ".join(columns[i]).split()), default=0)
            least = longest_word if numeric[i] else min(widths[i], MIN_CELL)
            widths[i] = max(widths[i] - excess, least)
    return widths


def _row(cells: Sequence[str], widths: list[int], numeric: list[bool]) -> list[str]:
    """Return a row as the lines that its longest cell needs."""
    wrapped = [
        [part for line in cell.split("\n") for part in _wrap(line, size)]
        for cell, size in zip(cells, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped]
    return [_line(parts, widths, numeric) for parts in zip(*padded, strict=True)]


def _line(cells: Sequence[str], widths: list[int], numeric: list[bool]) -> str:
    columns = zip(cells, widths, numeric, strict=True)
    return GAP.join(
        cell.strip().rjust(size) if is_numeric else cell.ljust(size)
        for cell, size, is_numeric in columns
    )


def _wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of at most ``width``; long words stay whole, the indent is kept."""
    if len(text) <= width:
        return [text]
    wrapper = textwrap.TextWrapper(
        width,
        subsequent_indent=" " * (len(text) - len(text.lstrip()) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text)
