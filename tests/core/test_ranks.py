"""Ranks and positions: the rank at each position, and the members of a group."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit import SpecError
from meshkit.core.ranks import RankPositions, group_start, indices, offsets, shift_position

SHUFFLED = [3, 0, 7, 5]


def positions_of(ranks: object) -> RankPositions:
    return RankPositions.of(ranks, len(ranks))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([0, 1, 2], range(3)),
        ([5], range(5, 6)),
        ((8, 10, 12), range(8, 13, 2)),
        (np.array([2, 1, 0]), range(2, -1, -1)),
        (np.array([9, 6, 3], dtype=np.uint8), range(9, 2, -3)),
        (range(4, 8), range(4, 8)),
    ],
)
def test_an_arithmetic_progression_is_kept_as_a_range(ranks: object, expected: range) -> None:
    ranks_kept = positions_of(ranks).ranks
    assert isinstance(ranks_kept, range)
    assert ranks_kept == expected


@pytest.mark.parametrize(
    "ranks", [range(4), range(8, 12), range(3, 15, 3), range(9, -1, -3), range(3, -1, -1), SHUFFLED]
)
def test_the_position_of_one_rank_and_of_many(ranks: object) -> None:
    expected = list(ranks)  # type: ignore[call-overload]
    order = positions_of(ranks)
    queries = np.arange(-3, 20).reshape(-1, 1)
    positions = [expected.index(rank) if rank in expected else -1 for rank in range(-3, 20)]
    assert order.find_all(queries).tolist() == [[position] for position in positions]
    singly = [order.find(rank) for rank in range(-3, 20)]
    assert [-1 if position is None else position for position in singly] == positions
    assert [order.at(position) for position in range(len(expected))] == expected
    assert order.take(np.array([[0, 3]])).tolist() == [[expected[0], expected[3]]]
    assert order.array().tolist() == expected
    assert order.array().dtype == np.int64
    assert len(order) == 4


@pytest.mark.parametrize("ranks", [range(4), range(1, 8, 2), SHUFFLED])
def test_ranks_beyond_int64_have_no_position(ranks: object) -> None:
    assert positions_of(ranks).find(2**70) is None
    assert positions_of(ranks).find(-(2**70)) is None


@pytest.mark.parametrize(
    "ranks",
    [
        [0, 0],
        [1, 2, 1],
        [-1, 0],
        range(-1, 1),
        range(1, -2, -1),
        [0, True],
        [0, 1.0],
        ["0", "1"],
        "01",
        np.array([0.0, 1.0]),
        np.array([[0, 1], [2, 3]]),
        [2**63, 0],
        [2**64, 0, 7],
        range(2**63, 2**63 + 2),
    ],
)
def test_invalid_ranks_raise_an_error(ranks: object) -> None:
    with pytest.raises(SpecError):
        positions_of(ranks)


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
