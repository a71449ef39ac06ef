"""BatchPlan: sizes that divide and sizes that do not, the nearest batches, owned samples."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan, CoordinateError
from meshkit.testing import batch_plans

quick = settings(deadline=None, max_examples=60, database=None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dp": 4, "global_batch": 1024, "micro_batch": 4}, (4, 1024, 4, 64)),
        ({"dp": 4, "global_batch": 1024, "accumulation_steps": 64}, (4, 1024, 4, 64)),
        ({"dp": 4, "micro_batch": 4, "accumulation_steps": 64}, (4, 1024, 4, 64)),
        ({"dp": 1, "global_batch": 1, "micro_batch": 1}, (1, 1, 1, 1)),
        ({"dp": 3, "global_batch": 30, "micro_batch": 2, "accumulation_steps": 5}, (3, 30, 2, 5)),
    ],
)
def test_two_sizes_and_dp_determine_the_third(
    given: dict[str, int], expected: tuple[int, ...]
) -> None:
    plan = BatchPlan.solve(**given)
    assert (plan.dp, plan.global_batch, plan.micro_batch, plan.accumulation_steps) == expected
    assert BatchPlan(*expected) == plan


def test_str() -> None:
    plan = BatchPlan.solve(dp=4, global_batch=1024, micro_batch=4)
    assert str(plan) == "global_batch 1024 = micro_batch 4 x accumulation_steps 64 x dp 4"


@pytest.mark.parametrize(
    ("given", "below", "above", "micro"),
    [
        # OpenRLHF's formula gives 4 and 0 accumulation steps here, and trains on 96 and on none
        ({"dp": 8, "global_batch": 100, "micro_batch": 3}, 96, 120, ()),
        ({"dp": 8, "global_batch": 4, "micro_batch": 2}, None, 16, ()),
        ({"dp": 4, "global_batch": 100, "micro_batch": 3}, 96, 108, (1, 5, 25)),
        ({"dp": 4, "global_batch": 100, "accumulation_steps": 3}, 96, 108, (1, 5, 25)),
        ({"dp": 1, "global_batch": 36, "micro_batch": 5}, 35, 40, (1, 2, 3, 4, 6, 9, 12, 18, 36)),
        ({"dp": 2, "global_batch": 7, "micro_batch": 1}, 6, 8, ()),
        (
            {"dp": 2, "global_batch": 12, "micro_batch": 2, "accumulation_steps": 2},
            8,
            None,
            (1, 2, 3, 6),
        ),
        (
            {"dp": 2, "global_batch": 4, "micro_batch": 2, "accumulation_steps": 2},
            None,
            8,
            (1, 2),
        ),
    ],
)
def test_a_batch_that_does_not_divide_raises(
    given: dict[str, int], below: int | None, above: int | None, micro: tuple[int, ...]
) -> None:
    with pytest.raises(BatchError) as caught:
        BatchPlan.solve(**given)
    error = caught.value
    assert error.global_batch == given["global_batch"]
    assert (error.below, error.above, error.micro_batches) == (below, above, micro)


@quick
@given(st.integers(1, 9), st.integers(1, 200), st.integers(1, 9))
def test_the_nearest_batches_divide_and_none_is_nearer(dp: int, total: int, micro: int) -> None:
    valid = [n for n in range(1, 400) if n % (dp * micro) == 0]
    if total in valid:
        assert BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro).global_batch == total
        return
    with pytest.raises(BatchError) as caught:
        BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro)
    error = caught.value
    assert error.below == max((n for n in valid if n < total), default=None)
    assert error.above == min(n for n in valid if n > total)
    divisors = [m for m in range(1, total + 1) if total % (m * dp) == 0]
    assert list(error.micro_batches) == divisors
    for micro_batch in divisors:
        BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro_batch)


@pytest.mark.parametrize("name", ["dp", "global_batch", "micro_batch"])
@pytest.mark.parametrize("value", [0, -4, True, 4.5, "4"])
def test_an_invalid_size_raises(name: str, value: object) -> None:
    given: dict[str, Any] = {"dp": 1, "global_batch": 4, "micro_batch": 4, name: value}
    with pytest.raises(BatchError, match=f"{name} is {value!r}"):
        BatchPlan.solve(**given)


@pytest.mark.parametrize("given", [{}, {"global_batch": 8}, {"micro_batch": 8}])
def test_too_few_sizes_raise(given: dict[str, int]) -> None:
    with pytest.raises(BatchError, match="Any two of the three give the third"):
        BatchPlan.solve(dp=2, **given)


@pytest.mark.parametrize(
    "fields", [(2, 8, 2, 3), (2, 0, 2, 0), (2, 8, 4.5, 1), (True, 4, 4, 1), (-2, 8, -4, 1)]
)
def test_the_constructor_validates(fields: tuple[int, ...]) -> None:
    with pytest.raises(BatchError):
        BatchPlan(*fields)


def test_numpy_integers_become_plain_ints() -> None:
    solved = BatchPlan.solve(dp=np.int64(4), global_batch=np.int32(16), micro_batch=np.uint8(2))
    assert solved == BatchPlan(4, 16, 2, 2)
    direct = BatchPlan(np.int64(4), np.int32(16), np.uint8(2), np.int8(2))
    for plan in (solved, direct):
        assert [type(value) for value in dataclasses.astuple(plan)[:4]] == [int] * 4


def test_samples_by_hand() -> None:
    plan = BatchPlan.solve(dp=2, global_batch=12, micro_batch=2)
    assert plan.samples(0, 0).tolist() == [[0, 1], [4, 5], [8, 9]]
    assert plan.samples(0, 1).tolist() == [[2, 3], [6, 7], [10, 11]]
    assert plan.samples(1, 1).tolist() == [[14, 15], [18, 19], [22, 23]]
    assert plan.samples(np.int64(1), np.int32(1)).tolist() == [[14, 15], [18, 19], [22, 23]]


def test_samples_of_a_late_step() -> None:
    plan = BatchPlan.solve(dp=2, global_batch=4, micro_batch=2)
    assert plan.samples(10**12, 1).tolist() == [[4 * 10**12 + 2, 4 * 10**12 + 3]]


@pytest.mark.parametrize("index", [-1, 2, True, 0.0, "0", None])
def test_a_data_index_outside_dp_raises(index: int) -> None:
    with pytest.raises(CoordinateError) as caught:
        BatchPlan.solve(dp=2, global_batch=4, micro_batch=2).samples(0, index)
    assert (caught.value.axis, caught.value.index, caught.value.size) == ("dp", index, 2)


@pytest.mark.parametrize("step", [-1, True, 1.0, "0", None])
def test_an_invalid_step_raises(step: int) -> None:
    with pytest.raises(CoordinateError) as caught:
        BatchPlan.solve(dp=2, global_batch=4, micro_batch=2).samples(step, 0)
    assert caught.value.index is step


def test_samples_beyond_int64_raise() -> None:
    with pytest.raises(CoordinateError):
        BatchPlan.solve(dp=2, global_batch=4, micro_batch=2).samples(2**62, 0)


def test_the_cost_of_samples_does_not_depend_on_the_global_batch() -> None:
    plan = BatchPlan.solve(dp=2**40, micro_batch=2, accumulation_steps=2)
    assert plan.samples(0, 3).tolist() == [[6, 7], [2**41 + 6, 2**41 + 7]]


@quick
@given(batch_plans())
def test_equal_frozen_hashable_and_picklable(plan: BatchPlan) -> None:
    copied = pickle.loads(pickle.dumps(plan))
    assert copied == plan == copy.deepcopy(plan)
    assert hash(copied) == hash(plan)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.dp = 3  # type: ignore[misc]


def test_the_error_of_the_constructor_quotes_its_call() -> None:
    with pytest.raises(BatchError) as caught:
        BatchPlan(2, 8, 2, accumulation_steps=3)
    assert str(caught.value).startswith(
        "BatchPlan(2, 8, 2, accumulation_steps=3): 8 is not dp 2 x "
    )
