"""Small words of English, so that messages read well."""

from __future__ import annotations

from collections.abc import Mapping


def article(noun: str) -> str:
    """The noun with its article.

    Example:
        >>> article("int"), article("str")
        ('an int', 'a str')
    """
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def count(number: int, noun: str) -> str:
    """So many of a noun.

    Example:
        >>> count(1, "rank"), count(8, "rank")
        ('1 rank', '8 ranks')
    """
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """More than one of a noun.

    Example:
        >>> plural("rack"), plural("switch")
        ('racks', 'switches')
    """
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def pairs(sizes: Mapping[str, object]) -> str:
    """Names with their numbers, such as axes with their sizes or indices.

    Example:
        >>> pairs({"dp": 4, "sp": 2})
        'dp=4 sp=2'
    """
    return " ".join(f"{name}={number}" for name, number in sizes.items())
