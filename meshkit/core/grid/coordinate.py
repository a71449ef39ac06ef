"""The coordinate of a rank: axis name to index."""

from __future__ import annotations

from .axis_names import check_axes_exist


class Coordinate(dict[str, int]):
    """A coordinate, with index 0 along an absent standard axis, whose size is 1.

    Iteration and ``in`` show the axes of the mesh alone.

    Example:
        >>> at = Coordinate(dp=1, sp=0)
        >>> at["tp"], "tp" in at, at
        (0, False, {'dp': 1, 'sp': 0})
    """

    def __missing__(self, axis: str) -> int:
        """Return 0 for an absent standard axis. Raises UnknownAxisError for any other name."""
        check_axes_exist([axis], tuple(self))
        return 0
