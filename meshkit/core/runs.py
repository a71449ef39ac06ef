"""Ranks as a person writes them: runs collapsed."""

from __future__ import annotations

from collections.abc import Iterable


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
