"""The samples of each step of an epoch, its shuffled order, and its state."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan
from meshkit.data.batch import MicroBatch
from meshkit.data.epoch import Epoch, shuffle_indices

quick = settings(deadline=None, max_examples=80, database=None)
SEEDS = st.integers(-(2**70), 2**70)


def plan_of(dp: int, global_batch: int, micro_batch: int, data_index: int = 0) -> BatchPlan:
    plan = BatchPlan.solve(dp=dp, global_batch=global_batch, micro_batch=micro_batch, uneven=True)
    return replace(plan, data_index=data_index)


@st.composite
def epochs(draw: st.DrawFn, tails: tuple[str, ...] = ("keep", "drop", "pad")) -> Epoch:
    """Draw an epoch of data coordinate 0, with uneven plans and all tails."""
    dp, micro, cuts = (draw(st.integers(1, 5)) for _ in range(3))
    tail = draw(st.sampled_from(tails))
    least = micro * cuts if tail == "drop" else 1
    numbers = draw(st.booleans()), draw(st.integers(-9, 9)), tail, draw(st.integers(0, 3))
    return Epoch(draw(st.integers(least, 90)), plan_of(dp, micro * cuts, micro), *numbers)


def shuffled(length: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return shuffle_indices(np.arange(length), length, seed, epoch).tolist()


def order(epoch: Epoch) -> list[int]:
    """Return the whole order of an epoch."""
    if not epoch.shuffle:
        return [*range(epoch.length)]
    return shuffled(epoch.length, epoch.seed, epoch.number)


def with_index(epoch: Epoch, data_index: int) -> Epoch:
    return replace(epoch, plan=replace(epoch.plan, data_index=data_index))


def all_micro_batches(epoch: Epoch, step: int) -> list[list[MicroBatch]]:
    """Return the micro batches of each data coordinate in a step."""
    return [with_index(epoch, d).micro_batches(step) for d in range(epoch.plan.dp)]


def read_samples(epoch: Epoch) -> list[int]:
    """Return the samples of all ranks by micro step and data coordinate, without fillers."""
    return [
        int(sample)
        for step in range(epoch.steps)
        for column in zip(*all_micro_batches(epoch, step), strict=True)
        for micro in column
        if not micro.is_filler
        for sample in micro.samples
    ]


def expected_samples(epoch: Epoch) -> list[int]:
    """Return the samples of all ranks by list arithmetic."""
    remaining, size = order(epoch)[epoch.begin :], epoch.plan.global_batch
    if epoch.tail == "drop":
        return remaining[: len(remaining) // size * size]
    if epoch.tail == "pad":
        more = -len(remaining) % size
        return remaining + (order(epoch) * (more // epoch.length + 1))[:more]
    return remaining


# ---------------------------------------------------------------- steps


@quick
@given(epochs(), st.integers(0, 90), st.integers(1, 5))
def test_each_tail_from_any_position_on_any_mesh(epoch: Epoch, begin: int, dp: int) -> None:
    remaining = replace(epoch, begin=min(begin, epoch.length))
    expected = expected_samples(remaining)
    assert read_samples(remaining) == expected
    assert remaining.steps == math.ceil(len(expected) / epoch.plan.global_batch)
    assert read_samples(replace(remaining, plan=epoch.plan.resize(dp))) == expected
    rows = [all_micro_batches(remaining, step) for step in range(remaining.steps)]
    each = {sum(len(shares[d]) for shares in rows) for d in range(epoch.plan.dp)}
    assert each == {remaining.num_micro_batches}
    if begin == 0 and epoch.tail == "keep":  # every sample once
        assert sorted(expected) == [*range(epoch.length)]


@quick
@given(epochs(tails=("keep", "pad")), epochs(), st.data())
def test_an_epoch_resumed_on_another_mesh_equals_an_uninterrupted_one(
    epoch: Epoch, other: Epoch, data: st.DataObject
) -> None:
    done = data.draw(st.integers(0, epoch.steps))
    state = json.loads(json.dumps(epoch.state(done)))
    assert state["consumed"] == min(done * epoch.plan.global_batch, epoch.length)
    remaining = replace(epoch, plan=other.plan, tail="keep", number=0).resume(state)
    assert order(epoch)[: state["consumed"]] + read_samples(remaining) == order(epoch)


# ---------------------------------------------------------------- states

EPOCH = Epoch(10, plan_of(2, 4, 1), True, 7, "keep", number=3)


@pytest.mark.parametrize(
    "change",
    [
        *({"length": 11}, {"seed": 8}, {"shuffle": False}, {"version": 2}, {"epoch": -1}),
        *({"epoch": 1.0}, {"consumed": -1}, {"consumed": 11}, {"consumed": True}),
    ],
)
def test_a_state_of_other_data_or_of_invalid_fields_raises(change: dict[str, Any]) -> None:
    with pytest.raises(BatchError):
        EPOCH.resume({**EPOCH.state(1), **change})


# ---------------------------------------------------------------- the shuffled order


@quick
@given(st.integers(1, 3000), SEEDS, st.integers(0, 2**40))
def test_every_length_seed_and_epoch_gives_a_permutation(
    length: int, seed: int, epoch: int
) -> None:
    assert sorted(shuffled(length, seed, epoch)) == list(range(length))


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
    assert samples.tolist() == [shuffle_one(place, length, seed, epoch) for place in positions]


def test_recorded_orders_never_change() -> None:
    assert shuffled(12, seed=1, epoch=2) == [7, 4, 10, 0, 3, 2, 11, 1, 9, 6, 5, 8]
    late = shuffle_indices(np.array([0, 10**12 - 1]), 10**12, 7, 3)
    assert late.tolist() == [461592631910, 28507241282]


def test_orders_differ_by_seed_epoch_and_length() -> None:
    orders = [shuffled(200, *numbers) for numbers in ((0, 0), (1, 0), (0, 1), (1, 1), (-1, 0))]
    orders.append([position for position in shuffled(201) if position < 200])
    for i, permutation in enumerate(orders):
        for other in orders[:i]:
            equal = sum(a == b for a, b in zip(permutation, other, strict=True))
            assert equal < 10  # 1 is expected


def excess(counts: np.ndarray, free: int) -> float:
    """Return the distance of chi-square from its mean, in standard deviations."""
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free))


@pytest.mark.slow
@pytest.mark.parametrize("length", [13, 16, 50])
def test_orders_are_uniform_over_positions_and_neighboring_pairs(length: int) -> None:
    rows = np.array([shuffled(length, seed) for seed in range(400)])
    where = np.array([np.bincount(column, minlength=length) for column in rows.T])
    assert abs(excess(where, (length - 1) ** 2)) < 4
    pairs = np.bincount((rows[:, :-1] * length + rows[:, 1:]).ravel(), minlength=length**2)
    apart = ~np.eye(length, dtype=bool).ravel()
    assert not pairs[~apart].any()
    assert abs(excess(pairs[apart], length * (length - 1) - 1)) < 4


@quick
@given(epochs(), st.data())
def test_positions_count_from_the_start_of_the_epoch(epoch: Epoch, data: st.DataObject) -> None:
    rest = replace(epoch, begin=data.draw(st.integers(0, epoch.length - 1)))
    ranks = [with_index(rest, index) for index in range(rest.plan.dp)]
    read = []
    for step in range(rest.steps):
        for rank in ranks:
            for micro, indices in zip(rank.positions(step), rank.micro_batches(step), strict=True):
                expected = [order(rest)[position % rest.length] for position in micro.samples]
                assert indices.samples.tolist() == expected
                read += [] if micro.is_filler else micro.samples.tolist()
    end = rest.begin + sum(rest.total(step) for step in range(rest.steps))
    assert sorted(read) == [*range(rest.begin, end)]
