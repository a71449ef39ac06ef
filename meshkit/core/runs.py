"""Text of ranks, with consecutive ranks collapsed."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ascending ranks with consecutive ones collapsed; ``none`` if there are none.

    Example:
        >>> format_ranks([0, 1, 2, 5, 7, 8]), format_ranks([])
        ('0-2, 5, 7-8', 'none')
    """
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and ranges[-1][-1] == rank - 1:
            ranges[-1][1:] = [rank]
        else:
            ranges.append([rank])
    return ", ".join("-".join(map(str, ends)) for ends in ranges) or "none"
