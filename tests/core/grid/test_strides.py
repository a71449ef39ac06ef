"""Sizes and strides, by hand. Their laws are in tests/laws."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit import Layout
from meshkit.core.grid.strides import (
    BLOCK,
    group_start,
    indices,
    offsets,
    shift_position,
)

AXES = (("pp", 2, 12), ("dp", 3, 4), ("sp", 1, 4), ("tp", 4, 1))


def test_positions_of_a_group() -> None:
    steps = ((3, 4), (2, 1))
    assert offsets(steps).tolist() == [0, 1, 4, 5, 8, 9]
    assert offsets(()).tolist() == [0]
    assert group_start(12 + 8 + 3, steps) == 12 + 2


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_indices_equal_those_of_numpy(count: int) -> None:
    positions = np.arange(count)[::-1] * 7 % 24  # not contiguous, not ascending
    expected = np.stack(np.unravel_index(positions, (2, 3, 1, 4)), axis=-1)
    assert np.array_equal(indices(positions, AXES), expected)
    assert positions.tolist() == (np.arange(count)[::-1] * 7 % 24).tolist(), "changed its input"


def test_indices_keep_the_shape() -> None:
    assert indices(np.array([[23], [4]]), AXES).tolist() == [[[1, 2, 0, 3]], [[0, 1, 0, 0]]]
    assert indices(np.array(5), AXES).tolist() == [0, 1, 0, 1]
    assert indices(np.zeros((0, 3), dtype=np.int64), AXES).shape == (0, 3, 4)


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
