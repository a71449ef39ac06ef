"""Ranks and positions: the rank at each position, and the members of a group."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError
from meshkit.layout.ranks import MAX_MESSAGES, RankPositions, message_batches

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


Message = tuple[int, int, int]  # from, to, number among those of the pair
Batches = list[list[Message]]  # of one rank, in the order in which it runs them


def list_batches(num_ranks: int, pairs: list[tuple[int, int]]) -> list[Batches]:
    """Return the batches of every rank for messages between pairs of ranks."""
    numbers: defaultdict[tuple[int, int], int] = defaultdict(int)
    messages = []
    for pair in pairs:
        messages.append((*pair, numbers[pair]))
        numbers[pair] += 1
    batches = []
    for rank in range(num_ranks):
        sent = [message for message in messages if message[0] == rank]
        received = [message for message in messages if message[1] == rank]
        indexes = message_batches(rank, num_ranks, [m[1] for m in sent], [m[0] for m in received])
        batches.append(
            [[*map(sent.__getitem__, s), *map(received.__getitem__, r)] for s, r in indexes]
        )
    return batches


def run(batches: list[Batches]) -> set[Message]:
    """Run the batches as NCCL does: a batch ends when all its messages have met their peers."""
    done: set[Message] = set()
    current = [0] * len(batches)
    moves = True
    while moves:
        active = [
            set(own[at]) if at < len(own) else set()
            for own, at in zip(batches, current, strict=True)
        ]
        met = {m for own in active for m in own if m in active[m[0]] & active[m[1]]} - done
        done |= met
        ended = [bool(own) and own <= done for own in active]
        current = [at + is_over for at, is_over in zip(current, ended, strict=True)]
        moves = bool(met) or any(ended)
    return done


@settings(deadline=None)
@given(st.data())
def test_batches_of_messages_are_small_and_never_wait_for_one_another(data: st.DataObject) -> None:
    num_ranks = data.draw(st.sampled_from([2, 3, 64, 66, 130, 300]))
    rank = st.integers(0, num_ranks - 1)
    pairs = data.draw(st.lists(st.tuples(rank, rank).filter(lambda pair: pair[0] != pair[1])))
    check_batches(num_ranks, pairs)


def test_all_ranks_may_send_to_all_in_batches() -> None:
    num_ranks = 150
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    batches = check_batches(num_ranks, pairs)
    assert [len(batch) for batch in batches[7]] == [128, 128, 42]
    check_batches(3, [(0, 1), (0, 2)] * 200 + [(2, 1)] * 150)


def check_batches(num_ranks: int, pairs: list[tuple[int, int]]) -> list[Batches]:
    batches = list_batches(num_ranks, pairs)
    assert all(0 < len(batch) <= MAX_MESSAGES for own in batches for batch in own)
    assert len(run(batches)) == len(pairs)
    for rank, own in enumerate(batches):
        for peer in range(num_ranks):
            for way in (rank, peer), (peer, rank):
                numbers = [m[2] for batch in own for m in batch if m[:2] == way]
                assert numbers == sorted(numbers)
    return batches
