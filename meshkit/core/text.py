"""Parts of messages: articles, plurals, and short forms of sizes, ranks and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # no import of numpy: launchers are detected without it
    pass

Value = TypeVar("Value")

MAX_SHOWN = 6  # items of a list that is shown in full


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


def format_range(first: int, last: int) -> str:
    """Return consecutive numbers by their ends.

    Example:
        >>> format_range(4, 7), format_range(4, 4)
        ('4-7', '4')
    """
    return f"{first}-{last}" if last > first else f"{first}"


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
