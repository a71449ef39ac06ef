"""Sizes and strides, by hand. Their laws are in tests/laws."""

from __future__ import annotations

import numpy as np

from meshkit import Layout
from meshkit.core.grid.strides import (
    group_start,
    indices,
    offsets,
    shift_position,
)

SHAPE = 2, 3, 1, 4


def test_positions_of_a_group() -> None:
    steps = ((3, 4), (2, 1))
    assert offsets(steps).tolist() == [0, 1, 4, 5, 8, 9]
    assert offsets(()).tolist() == [0]
    assert group_start(12 + 8 + 3, steps) == 12 + 2


def test_indices_keep_the_shape() -> None:
    assert indices(np.array([[23], [4]]), SHAPE).tolist() == [[[1, 2, 0, 3]], [[0, 1, 0, 0]]]
    assert indices(np.array(5), SHAPE).tolist() == [0, 1, 0, 1]
    assert indices(np.zeros((0, 3), dtype=np.int64), SHAPE).shape == (0, 3, 4)


def test_shift_a_position_along_an_axis() -> None:
    assert shift_position(4, 3, 4, 1, wrap=True) == 8
    assert shift_position(8, 3, 4, 1, wrap=True) == 0
    assert shift_position(8, 3, 4, 1, wrap=False) is None
    assert shift_position(0, 3, 4, -1, wrap=False) is None
    assert shift_position(0, 3, 4, -4, wrap=True) == 8


def test_rings() -> None:
    layout = Layout(dp=2, sp=4)
    assert layout.ring(6, "sp").tolist() == [6, 7, 4, 5]
    assert layout.ring(6, "dp").tolist() == [6, 2]
    assert Layout(dp=1).ring(0, "dp").tolist() == [0]
