"""Micro batches of a step: their owners and weights, compared with plain lists of samples."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchPlan, CoordinateError
from meshkit.core.data.micro_batch import MicroBatch, micro_batches

quick = settings(deadline=None, max_examples=80, database=None)

steps = st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))


def split_samples(total: int, micro: int, first: int) -> list[list[int]]:
    """Return the samples of a step in lists of ``micro``; the last may be shorter."""
    samples = list(range(first, first + total))
    return [samples[i : i + micro] for i in range(0, total, micro)]


def ranks(total: int, micro: int, dp: int, first: int) -> list[list[MicroBatch]]:
    return [list(micro_batches(total, micro, dp, d, first)) for d in range(dp)]


@quick
@given(steps)
def test_each_sample_is_owned_once_and_ranks_run_equally_many_micro_batches(
    case: tuple[int, int, int, int],
) -> None:
    total, micro, dp, first = case
    batches_by_rank = ranks(total, micro, dp, first)
    assert len({len(row) for row in batches_by_rank}) == 1
    in_order = [row[a] for a in range(len(batches_by_rank[0])) for row in batches_by_rank]
    real = [batch.samples.tolist() for batch in in_order if not batch.is_filler]
    assert real == split_samples(total, micro, first)
    assert all(not batch.is_filler for batch in in_order[: len(real)])  # fillers come last


@quick
@given(steps)
def test_the_average_over_dp_is_the_mean_over_the_step(case: tuple[int, int, int, int]) -> None:
    total, micro, dp, first = case
    values = np.random.default_rng(0).standard_normal(first + total)
    per_rank = [
        sum(batch.weight * values[batch.samples].mean() for batch in row)
        for row in ranks(total, micro, dp, first)
    ]
    assert sum(per_rank) / dp == pytest.approx(values[first : first + total].mean(), abs=1e-12)


@quick
@given(steps)
def test_each_sample_has_the_same_weight(case: tuple[int, int, int, int]) -> None:
    total, micro, dp, first = case
    for row in ranks(total, micro, dp, first):
        for batch in row:
            exact = Fraction(0) if batch.is_filler else Fraction(dp * len(batch.samples), total)
            assert batch.weight == float(exact)


@quick
@given(steps)
def test_the_last_is_marked_and_fillers_have_samples(case: tuple[int, int, int, int]) -> None:
    for row in ranks(*case):
        assert [batch.is_last for batch in row] == [False] * (len(row) - 1) + [True]
        assert [batch.index for batch in row] == list(range(len(row)))
        assert all(len(batch.samples) > 0 and batch.samples.dtype == np.int64 for batch in row)


def test_more_ranks_than_micro_batches() -> None:
    batches_by_rank = [[(b.samples.tolist(), b.weight) for b in row] for row in ranks(3, 2, 4, 10)]
    assert batches_by_rank == [[([10, 11], 8 / 3)], [([12], 4 / 3)], [([10, 11], 0)], [([12], 0)]]


@pytest.mark.parametrize("uneven", [False, True])
def test_the_micro_batches_of_a_plan(uneven: bool) -> None:
    plan = BatchPlan.solve(dp=2, global_batch=12 - 2 * uneven, micro_batch=2, uneven=uneven)
    for d in range(2):
        batches_by_rank = list(plan.micro_batches(3, d, first=5))
        own = [batch.samples.tolist() for batch in batches_by_rank if not batch.is_filler]
        assert own == plan.samples(3, d, first=5).tolist()
        assert len(batches_by_rank) == plan.accumulation_steps == 3
    weights = {b.weight for d in range(2) for b in plan.micro_batches(0, d)}
    assert weights == ({0.4, 0.0} if uneven else {1 / 3})


@pytest.mark.parametrize(("step", "data_index", "first"), [(-1, 0, 0), (0, 2, 0), (0, 0, -1)])
def test_an_invalid_argument_raises_at_the_call(step: int, data_index: int, first: int) -> None:
    plan = BatchPlan.solve(dp=2, global_batch=4, micro_batch=2)
    with pytest.raises(CoordinateError, match=r"plan.micro_batches\("):
        plan.micro_batches(step, data_index, first=first)
    with pytest.raises(CoordinateError, match=r"plan.samples\("):
        plan.samples(step, data_index, first=first)


def test_micro_batches_are_computed_on_demand() -> None:
    plan = BatchPlan.solve(dp=2, micro_batch=1, accumulation_steps=2**40)
    assert next(plan.micro_batches(0, 1)).samples.tolist() == [1]
