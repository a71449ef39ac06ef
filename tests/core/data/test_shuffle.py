"""The shuffled order: a permutation, determined by its arguments, and uniform."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError
from meshkit.core.data.shuffle import shuffle_indices

quick = settings(deadline=None, max_examples=60, database=None)
SEEDS = st.integers(-(2**70), 2**70)


def order(length: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return shuffle_indices(np.arange(length), length, seed, epoch).tolist()


def excess(counts: np.ndarray, free: int) -> float:
    """Return the distance of chi-square from its mean, in standard deviations."""
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free))


@quick
@given(st.integers(1, 3000), SEEDS, st.integers(0, 2**40))
def test_every_length_seed_and_epoch_gives_a_permutation(
    length: int, seed: int, epoch: int
) -> None:
    assert sorted(order(length, seed, epoch)) == list(range(length))


@pytest.mark.parametrize("length", [2**k + d for k in range(1, 13) for d in (-1, 0, 1)])
def test_lengths_around_powers_of_two_give_permutations(length: int) -> None:
    assert sorted(order(length)) == list(range(length))


def shuffle_one(position: int, length: int, seed: int, epoch: int) -> int:
    """Apply the network with plain ints to one position."""
    digest = hashlib.blake2b(f"{seed} {epoch} {length}".encode()).digest()
    keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 64, 8)]
    bits = max((length - 1).bit_length(), 6)
    low = bits // 2
    while True:
        high, low_half = position >> low, position % 2**low
        for number, key in enumerate(keys):
            word = ((low_half if number % 2 == 0 else high) + key) % 2**64
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
            word ^= word >> 31
            if number % 2 == 0:
                high ^= word % 2 ** (bits - low)
            else:
                low_half ^= word % 2**low
        position = high * 2**low + low_half
        if position < length:
            return position


@quick
@given(st.integers(1, 2**62), SEEDS, st.integers(0, 9), st.data())
def test_samples_equal_those_of_plain_ints(
    length: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, length - 1), max_size=5))
    samples = shuffle_indices(np.array(positions, dtype=np.int64), length, seed, epoch)
    assert samples.tolist() == [
        shuffle_one(position, length, seed, epoch) for position in positions
    ]


def test_recorded_orders_never_change() -> None:
    assert order(12, seed=1, epoch=2) == [7, 4, 10, 0, 3, 2, 11, 1, 9, 6, 5, 8]
    late = shuffle_indices(np.array([0, 10**12 - 1]), 10**12, 7, 3)
    assert late.tolist() == [461592631910, 28507241282]


def test_orders_differ_by_seed_epoch_and_length() -> None:
    orders = [order(200, *numbers) for numbers in ((0, 0), (1, 0), (0, 1), (1, 1), (-1, 0))]
    orders.append([position for position in order(201) if position < 200])
    for i, permutation in enumerate(orders):
        for other in orders[:i]:
            assert (
                sum(a == b for a, b in zip(permutation, other, strict=True)) < 10
            )  # 1 is expected


def test_positions_of_any_shape() -> None:
    whole = np.array(order(100, 5))
    selected = np.array([[3, 4], [99, 3]])
    assert shuffle_indices(selected, 100, 5, 0).tolist() == whole[selected].tolist()
    assert shuffle_indices(np.array(7), 100, 5, 0).shape == ()
    assert shuffle_indices(np.zeros(0, np.int64), 100, 5, 0).dtype == np.int64
    selected = np.arange(5)
    shuffle_indices(selected, 100, 5, 0)
    assert selected.tolist() == [0, 1, 2, 3, 4]  # left as it was


@pytest.mark.parametrize(("length", "bound"), [(2, 15.1), (3, 25.7)])
def test_all_permutations_are_equally_likely(length: int, bound: float) -> None:
    """Chi-square over the permutations exceeds the bound with probability 1 in 10,000."""
    cases = math.factorial(length)
    counts = Counter(tuple(order(length, seed)) for seed in range(100 * cases))
    cells = np.array([counts[permutation] for permutation in permutations(range(length))])
    assert ((cells - 100) ** 2 / 100).sum() < bound


@pytest.mark.parametrize("length", [13, 16, 50])
def test_orders_are_uniform_over_positions_and_neighboring_pairs(length: int) -> None:
    rows = np.array([order(length, seed) for seed in range(400)])
    where = np.array([np.bincount(column, minlength=length) for column in rows.T])
    assert abs(excess(where, (length - 1) ** 2)) < 4
    pairs = np.bincount((rows[:, :-1] * length + rows[:, 1:]).ravel(), minlength=length**2)
    apart = ~np.eye(length, dtype=bool).ravel()
    assert not pairs[~apart].any()
    assert abs(excess(pairs[apart], length * (length - 1) - 1)) < 4


def test_samples_two_positions_apart_are_independent() -> None:
    """Check 8 samples, which fail with halves of one and two bits."""
    rows = np.array([order(8, seed) for seed in range(500)])
    apart = ~np.eye(8, dtype=bool).ravel()
    starts = [rows[:, first] * 8 + rows[:, first + 2] for first in (0, 1, 4, 5)]
    cells = np.array([np.bincount(pairs, minlength=64)[apart] for pairs in starts])
    assert abs(excess(cells, 4 * 55)) < 4


def test_one_long_order_is_uniform() -> None:
    length = 200_000
    samples = np.array(order(length, seed=3))
    steps = np.diff(samples) % length  # between neighbours
    assert abs(excess(np.bincount(steps * 100 // length), 99)) < 4
    # of a hundred parts of the order, how many samples each takes from a hundred parts of the data
    cells = np.bincount(np.arange(length) * 100 // length * 100 + samples * 100 // length)
    assert abs(excess(cells, 99 * 99)) < 4


@pytest.mark.parametrize("position", [-1, 8, 2**62])
def test_a_position_outside_the_order_raises(position: int) -> None:
    with pytest.raises(CoordinateError) as caught:
        shuffle_indices(np.array([0, position]), 8, 0, 0)
    assert (caught.value.index, caught.value.size) == (position, 8)
