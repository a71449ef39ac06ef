"""Ranks and positions: the rank at each position, and the members of a group."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit import SpecError
from meshkit.core.ranks import RankPositions

SHUFFLED = [3, 0, 7, 5]


def positions_of(ranks: object) -> RankPositions:
    return RankPositions.of(ranks, len(ranks))  # type: ignore[arg-type]


def test_an_arithmetic_progression_is_kept_as_a_range() -> None:
    for ranks, expected in (
        ([5], range(5, 6)),
        ((8, 10, 12), range(8, 13, 2)),
        (np.array([9, 6, 3], dtype=np.uint8), range(9, 2, -3)),
    ):
        kept = positions_of(ranks).ranks
        assert isinstance(kept, range)
        assert kept == expected


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
    assert order.find(2**70) is order.find(-(2**70)) is None


def test_invalid_ranks_raise_an_error() -> None:
    invalid = [[0, 0], [1, 2, 1], [-1, 0], range(-1, 1), range(1, -2, -1), [0, True], [0, 1.0]]
    invalid += ["01", ["0", "1"], np.array([0.0, 1.0]), np.array([[0, 1], [2, 3]])]
    invalid += [[2**63, 0], [2**64, 0, 7], range(2**63, 2**63 + 2)]
    for ranks in invalid:
        with pytest.raises(SpecError):
            positions_of(ranks)
