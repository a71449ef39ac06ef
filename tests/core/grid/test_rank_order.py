"""Which rank sits where, and where each rank sits."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from meshkit import SpecError
from meshkit.core.call import Call
from meshkit.core.grid.rank_order import RankOrder

CALL = Call("f")
SHUFFLED = [3, 0, 7, 5]


def seats(ranks: object) -> RankOrder:
    return RankOrder.of(ranks, len(ranks))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "kept"),
    [
        ([0, 1, 2], range(3)),
        ([5], range(5, 6)),
        ((8, 10, 12), range(8, 13, 2)),
        (np.array([2, 1, 0]), range(2, -1, -1)),
        (np.array([9, 6, 3], dtype=np.uint8), range(9, 2, -3)),
        (range(4, 8), range(4, 8)),
    ],
)
def test_an_arithmetic_progression_is_kept_as_a_range(ranks: object, kept: range) -> None:
    found = seats(ranks).ranks
    assert isinstance(found, range)
    assert found == kept


def test_any_other_order_is_one_read_only_array_of_its_own() -> None:
    given = np.array(SHUFFLED)
    found = seats(given)
    given[0] = 99
    assert isinstance(found.ranks, np.ndarray)
    assert found.ranks.tolist() == SHUFFLED
    assert found.ranks.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        found.ranks[0] = 99


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_the_array_of_a_copy_is_read_only_too(again: object) -> None:
    found = again(seats(SHUFFLED))  # type: ignore[operator]
    assert found == seats(SHUFFLED)
    assert not found.ranks.flags.writeable


@pytest.mark.parametrize(
    "ranks", [range(4), range(8, 12), range(3, 15, 3), range(9, -1, -3), range(3, -1, -1), SHUFFLED]
)
def test_where_each_rank_sits_one_by_one_and_at_once(ranks: object) -> None:
    held = list(ranks)  # type: ignore[call-overload]
    found = seats(ranks)
    asked = np.arange(-3, 20).reshape(-1, 1)
    wanted = [held.index(rank) if rank in held else -1 for rank in range(-3, 20)]
    assert found.find_all(asked).tolist() == [[place] for place in wanted]
    one_by_one = [found.find(rank) for rank in range(-3, 20)]
    assert [-1 if place is None else place for place in one_by_one] == wanted
    assert [found.at(place) for place in range(len(held))] == held
    assert found.take(np.array([[0, 3]])).tolist() == [[held[0], held[3]]]
    assert found.array().tolist() == held
    assert found.array().dtype == np.int64
    assert len(found) == 4


@pytest.mark.parametrize("ranks", [range(4), range(1, 8, 2), SHUFFLED])
def test_ranks_beyond_int64_are_simply_not_there(ranks: object) -> None:
    assert seats(ranks).find(2**70) is None
    assert seats(ranks).find(-(2**70)) is None


def test_equal_orders_are_equal_however_they_were_written() -> None:
    same = [seats([0, 2]), seats(range(0, 4, 2)), seats(range(0, 3, 2)), seats(np.array([0, 2]))]
    assert all(found == same[0] and hash(found) == hash(same[0]) for found in same)
    shuffled = [seats(SHUFFLED), seats(np.array(SHUFFLED)), seats(tuple(SHUFFLED))]
    assert all(found == shuffled[0] and hash(found) == hash(shuffled[0]) for found in shuffled)
    assert seats([0, 2]) != seats([0, 3])
    assert seats(SHUFFLED) != seats(sorted(SHUFFLED))
    assert seats(SHUFFLED) != seats(SHUFFLED[::-1])
    assert seats([0]) != [0]


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
def test_ranks_that_cannot_be_are_refused(ranks: object) -> None:
    with pytest.raises(SpecError):
        seats(ranks)


@pytest.mark.parametrize("ranks", [[], range(0)])
def test_no_ranks(ranks: object) -> None:
    with pytest.raises(SpecError, match="ranks is empty"):
        RankOrder.of(ranks, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2], range(3)])
def test_one_rank_a_position(ranks: object) -> None:
    with pytest.raises(SpecError, match=f"has 2 positions and {len(ranks)} rank"):  # type: ignore[arg-type]
        RankOrder.of(ranks, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [5, None])
def test_ranks_that_are_no_sequence_are_refused_by_name(ranks: object) -> None:
    with pytest.raises(SpecError):
        RankOrder.of(ranks, 2)  # type: ignore[arg-type]


def test_a_range_costs_nothing() -> None:
    many = RankOrder.of(range(0, 2**60, 2), 2**59)
    assert many.find(2**59) == 2**58
    assert many.find(2**59 + 1) is None
    assert many.at(2**59 - 1) == 2**60 - 2
    assert many == RankOrder.of(range(0, 2**60 - 1, 2), 2**59)
