"""Ranks as a person writes them: runs collapsed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def runs(ranks: Iterable[int]) -> str:
    """Ascending ranks with their runs collapsed; ``none`` for none.

    Example:
        >>> runs([0, 1, 2, 5, 7, 8]), runs([])
        ('0-2, 5, 7-8', 'none')
    """
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    return ", ".join("-".join(map(str, run)) for run in found) or "none"


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ascending ranks with their noun.

    Example:
        >>> ranks_named([0, 1, 2, 5]), ranks_named([3])
        ('ranks 0-2 and 5', 'rank 3')
    """
    first, comma, last = runs(ranks).rpartition(", ")
    text = f"{first} and {last}" if comma else last
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"
