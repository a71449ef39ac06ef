"""The state of a rank that does not answer: how certain it is that the rank is the reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Life(IntEnum):
    """The state of a rank that does not answer, from the most certain cause of a hang on."""

    ENDED = 0
    STOPPED = 1
    UNKNOWN = 2  # it gives no sign of life here
    BUSY = 3  # its process runs

    @property
    def is_certain(self) -> bool:
        """Whether such a rank cannot answer."""
        return self <= Life.STOPPED


def most_certain(lives: Mapping[int, Life]) -> tuple[int, ...]:
    """Return the ranks that have ended or are stopped; else those without a sign of life, or all.

    A rank whose process runs may only be slow, so it never stands beside one that cannot answer.
    """
    certain = [rank for rank, life in lives.items() if life.is_certain]
    unknown = [rank for rank, life in lives.items() if life is Life.UNKNOWN]
    return tuple(certain or unknown or lives)
