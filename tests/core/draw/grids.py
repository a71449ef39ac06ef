"""A grid of ranks, drawn as a Layout is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshkit.core.draw import draw_positions


def draw_grid(
    axes: tuple[str, ...], grid: NDArray[np.int64], *, mark: int | None = None, width: int = 80
) -> str:
    """The grid as text, with a marked rank if the grid has it."""
    ranks = grid.ravel().tolist()
    position = ranks.index(mark) if mark in ranks else None
    return draw_positions(axes, grid.shape, ranks.__getitem__, mark=position, width=width)
