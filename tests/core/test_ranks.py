"""Ranks and positions: the rank at each position, and the members of a group."""

from __future__ import annotations

import copy
import pickle

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


def test_any_other_order_is_a_read_only_copy() -> None:
    given = np.array(SHUFFLED)
    order = positions_of(given)
    given[0] = 99
    assert isinstance(order.ranks, np.ndarray)
    assert order.ranks.tolist() == SHUFFLED
    assert order.ranks.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        order.ranks[0] = 99


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_the_array_of_a_copy_is_read_only(duplicate: object) -> None:
    order = duplicate(positions_of(SHUFFLED))  # type: ignore[operator]
    assert order == positions_of(SHUFFLED)
    assert not order.ranks.flags.writeable


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


def test_equal_orders_are_equal_for_every_way_to_write_them() -> None:
    same = [
        positions_of([0, 2]),
        positions_of(range(0, 4, 2)),
        positions_of(range(0, 3, 2)),
        positions_of(np.array([0, 2])),
    ]
    assert all(order == same[0] and hash(order) == hash(same[0]) for order in same)
    shuffled = [
        positions_of(SHUFFLED),
        positions_of(np.array(SHUFFLED)),
        positions_of(tuple(SHUFFLED)),
    ]
    assert all(order == shuffled[0] and hash(order) == hash(shuffled[0]) for order in shuffled)
    assert positions_of([0, 2]) != positions_of([0, 3])
    assert positions_of(SHUFFLED) != positions_of(sorted(SHUFFLED))
    assert positions_of(SHUFFLED) != positions_of(SHUFFLED[::-1])
    assert positions_of([0]) != [0]


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
