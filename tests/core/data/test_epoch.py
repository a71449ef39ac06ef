"""The samples of each step of an epoch, compared with list arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan, CoordinateError
from meshkit.core.data.epoch import Epoch, validate_epoch
from meshkit.core.data.micro_batch import MicroBatch
from meshkit.core.data.shuffle import shuffle_indices

quick = settings(deadline=None, max_examples=80, database=None)


def plan_of(dp: int, global_batch: int, micro_batch: int) -> BatchPlan:
    whole = {"global_batch": global_batch, "micro_batch": micro_batch}
    return BatchPlan.solve(dp=dp, **whole, uneven=True)


@st.composite
def epochs(draw: st.DrawFn, tails: tuple[str, ...] = ("keep", "drop", "pad")) -> Epoch:
    """Draw an epoch of data coordinate 0, with uneven plans and all tails."""
    dp, micro, cuts = (draw(st.integers(1, 5)) for _ in range(3))
    tail = draw(st.sampled_from(tails))
    least = micro * cuts if tail == "drop" else 1
    numbers = draw(st.booleans()), draw(st.integers(-9, 9)), tail, draw(st.integers(0, 3))
    return Epoch(draw(st.integers(least, 90)), plan_of(dp, micro * cuts, micro), 0, *numbers)


def order(epoch: Epoch) -> list[int]:
    """Return the whole order of an epoch."""
    indices = np.arange(epoch.length)
    if not epoch.shuffle:
        return indices.tolist()
    return shuffle_indices(indices, epoch.length, epoch.seed, epoch.number).tolist()


def all_micro_batches(epoch: Epoch, step: int) -> list[list[MicroBatch]]:
    """Return the micro batches of each data coordinate in a step."""
    return [replace(epoch, data_index=d).micro_batches(step) for d in range(epoch.plan.dp)]


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


@quick
@given(epochs(tails=("keep",)))
def test_every_sample_is_owned_once(epoch: Epoch) -> None:
    owned = read_samples(epoch)
    assert sorted(owned) == list(range(epoch.length))
    assert owned == order(epoch)


@quick
@given(epochs(), st.integers(0, 90))
def test_each_tail_from_any_position(epoch: Epoch, begin: int) -> None:
    remaining = replace(epoch, begin=min(begin, epoch.length))
    assert read_samples(remaining) == expected_samples(remaining)
    assert remaining.steps == math.ceil(
        len(expected_samples(remaining)) / remaining.plan.global_batch
    )


@quick
@given(epochs(), st.integers(1, 5))
def test_two_meshes_read_the_same_order(epoch: Epoch, dp: int) -> None:
    assert read_samples(replace(epoch, plan=epoch.plan.resize(dp))) == read_samples(epoch)


@quick
@given(epochs(tails=("keep", "pad")), epochs(), st.data())
def test_an_epoch_resumed_on_another_mesh_equals_an_uninterrupted_one(
    epoch: Epoch, other: Epoch, data: st.DataObject
) -> None:
    done = data.draw(st.integers(0, epoch.steps))
    consumed = epoch.consumed(done)
    assert consumed == min(done * epoch.plan.global_batch, epoch.length)
    remaining = replace(epoch, plan=other.plan, tail="keep", begin=consumed)
    assert order(epoch)[:consumed] + read_samples(remaining) == order(epoch)


@quick
@given(epochs(), st.integers(0, 60))
def test_weights_add_up_to_one_and_are_equal_for_each_sample(epoch: Epoch, begin: int) -> None:
    epoch = replace(epoch, begin=min(begin, epoch.length))
    for step in range(epoch.steps):
        shares = all_micro_batches(epoch, step)
        weights = [micro.weight / epoch.plan.dp for share in shares for micro in share]
        assert math.isclose(sum(weights), 1)
        counts = [(m.weight / len(m.samples)) for s in shares for m in s if not m.is_filler]
        assert max(counts) - min(counts) < 1e-12
        assert [m.is_last for m in shares[0]] == [False] * (len(shares[0]) - 1) + [True]


@quick
@given(epochs(), st.integers(0, 60))
def test_num_micro_batches_is_the_number_on_every_rank(epoch: Epoch, begin: int) -> None:
    epoch = replace(epoch, begin=min(begin, epoch.length))
    for index in range(epoch.plan.dp):
        own = replace(epoch, data_index=index)
        result = sum(len(own.micro_batches(step)) for step in range(epoch.steps))
        assert result == own.num_micro_batches == epoch.num_micro_batches


def test_short_epochs() -> None:
    epoch = Epoch(10, plan_of(2, 4, 1), 1, False, 0, "keep")
    result = [[m.samples.tolist() for m in epoch.micro_batches(step)] for step in range(3)]
    assert result == [[[1], [3]], [[5], [7]], [[9]]]
    assert [epoch.total(step) for step in range(3)] == [4, 4, 2]
    short = Epoch(5, plan_of(2, 4, 2), 1, False, 0, "keep").micro_batches(1)
    assert [(m.samples.tolist(), m.weight, m.is_filler) for m in short] == [([4], 0.0, True)]
    padded = Epoch(3, plan_of(2, 8, 2), 1, False, 0, "pad").micro_batches(0)
    assert [m.samples.tolist() for m in padded] == [[2, 0], [0, 1]]


def test_no_step_remains_at_the_end() -> None:
    for tail in ("keep", "drop", "pad"):
        end = Epoch(8, plan_of(1, 4, 2), 0, True, 0, tail, begin=8)
        assert (end.steps, end.num_micro_batches) == (0, 0)


def test_numpy_integers_become_plain_ints() -> None:
    plan = plan_of(1, 4, 2)
    fields: Any = (np.int64(8), plan, 0, True, np.int8(3), "keep", np.uint8(2))
    result = validate_epoch(Epoch(*fields))
    assert (result.length, result.seed, result.number) == (8, 3, 2)
    assert {type(n) for n in (result.length, result.seed, result.number)} == {int}


@pytest.mark.parametrize(
    "change",
    [
        {"length": 0},
        {"length": -4},
        {"length": True},
        {"length": 2**62 + 1},
        {"tail": "wrap"},
        {"tail": True},
        {"seed": 1.0},
        {"seed": "1"},
        {"number": -1},
        {"number": None},
        {"shuffle": 1},
        {"length": 3, "tail": "drop"},
    ],
)
def test_an_invalid_epoch_raises(change: dict[str, Any]) -> None:
    epoch = Epoch(8, plan_of(1, 4, 2), 0, True, 0, "keep")
    validate_epoch(epoch)
    with pytest.raises(BatchError):
        validate_epoch(replace(epoch, **change))


@pytest.mark.parametrize("step", [-1, 2, True, 0.0, None])
def test_an_invalid_step_raises(step: Any) -> None:
    with pytest.raises(CoordinateError) as caught:
        Epoch(8, plan_of(1, 4, 2), 0, True, 0, "keep").micro_batches(step)
    assert (caught.value.index, caught.value.size) == (step, 2)


def test_the_cost_of_a_step_does_not_depend_on_the_length() -> None:
    plan = BatchPlan.solve(dp=2**40, micro_batch=2, accumulation_steps=2)
    far = Epoch(2**60, plan, 3, True, 0, "keep").micro_batches(10**4)
    assert len({int(sample) for micro in far for sample in micro.samples}) == 4


def test_data_of_exactly_one_step_is_kept_whole_by_drop() -> None:
    plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
    assert validate_epoch(Epoch(8, plan, 0, False, 0, "drop")).steps == 1
    with pytest.raises(BatchError):
        validate_epoch(Epoch(7, plan, 0, False, 0, "drop"))
