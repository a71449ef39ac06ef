"""BatchPlan: sizes that divide and sizes that do not, owned samples, micro batches, data axes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan, CoordinateError, MeshkitError, SpecError
from meshkit.data.batch import (
    MicroBatch,
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
)
from meshkit.testing import batch_plans

quick = settings(deadline=None, max_examples=60, database=None)
EVEN = BatchPlan.solve(dp=2, global_batch=4, micro_batch=2)


# ---------------------------------------------------------------- sizes


@quick
@given(st.integers(1, 9), st.integers(1, 200), st.integers(1, 9))
def test_the_nearest_batches_divide_and_none_is_nearer(dp: int, total: int, micro: int) -> None:
    valid = [n for n in range(1, 400) if n % (dp * micro) == 0]
    assume(total not in valid)
    with pytest.raises(BatchError) as caught:
        BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro)
    error = caught.value
    assert error.below == max((n for n in valid if n < total), default=None)
    assert error.above == min(n for n in valid if n > total)
    assert [*error.micro_batches] == [m for m in range(1, total + 1) if total % (m * dp) == 0]
    # the fix that keeps the training comes first
    fills_ranks = total % micro == 0 and total // micro >= dp  # each rank gets a batch
    assert error.fix_text.startswith("uneven=True, or ") == fills_ranks


@quick
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_uneven_plans_assign_round_robin(dp: int, cuts: int, micro: int) -> None:
    plan = BatchPlan.solve(dp=dp, global_batch=cuts * micro, micro_batch=micro, uneven=True)
    counts = [0] * dp
    for number in range(cuts):
        counts[number % dp] += 1
    assert [plan.num_micro_batches(d) for d in range(dp)] == counts
    assert plan.accumulation_steps == max(counts)
    assert plan.uneven == (min(counts) != max(counts))
    assert BatchPlan(dp, cuts * micro, micro, max(counts), True) == plan


@quick
@given(batch_plans(), st.integers(1, 12))
def test_resize_keeps_the_global_batch_and_is_invertible(plan: BatchPlan, dp: int) -> None:
    other = plan.resize(dp)
    sizes = (other.dp, other.global_batch, other.micro_batch)
    assert sizes == (dp, plan.global_batch, plan.micro_batch)
    owned = sum(other.num_micro_batches(d) for d in range(dp)) * other.micro_batch
    assert owned == plan.global_batch
    assert other.resize(plan.dp) == plan
    assert not other.resize(plan.dp).uneven


# ---------------------------------------------------------------- samples and micro batches


def test_a_plan_of_a_rank_has_its_index_by_default_and_equals_that_of_another_rank() -> None:
    plans = [dataclasses.replace(EVEN, data_index=d) for d in range(2)]
    assert [plan.samples(0).tolist() for plan in plans] == [[[0, 1]], [[2, 3]]]
    assert plans[0].samples(0, 1).tolist() == [[2, 3]]
    assert [next(plan.micro_batches(0)).samples[0] for plan in plans] == [0, 2]
    assert plans[0] == plans[1] == EVEN
    assert {repr(plan) for plan in (*plans, EVEN)} == {repr(EVEN)}
    grown = plans[1].with_global_batch(6, uneven=True)  # three micro batches over two ranks
    assert (grown.data_index, grown.num_micro_batches(), grown.uneven) == (1, 1, True)
    with pytest.raises(BatchError):
        plans[1].with_global_batch(6)
    assert plans[1].resize(3).data_index is None


def test_a_size_by_the_name_of_another_library_names_the_one_here() -> None:
    plan: Any = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)  # whose type lacks the names
    for name, size in (
        ("gradient_accumulation_steps", "accumulation_steps"),
        ("batch_size", "micro_batch"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute {name!r}; use plan.{size}"):
            getattr(plan, name)
    assert not hasattr(plan, "length")
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan


@pytest.mark.parametrize("number", [-1, True, 1.0, "0", None, 2**62])
def test_an_invalid_step_first_sample_or_data_index_raises(number: int) -> None:
    first: int = 2 * number if number == 2**62 else number
    for method in (EVEN.samples, EVEN.micro_batches):
        for step, index, options in ((number, 0, {}), (0, number, {}), (0, 0, {"first": first})):
            with pytest.raises(CoordinateError):  # at the call
                method(step, index, **options)


steps = st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))


def ranks(total: int, micro: int, dp: int, first: int) -> list[list[MicroBatch]]:
    plan = BatchPlan.solve(dp=dp, micro_batch=micro, accumulation_steps=1)
    return [[*plan.cut_step(total, first, d)] for d in range(dp)]


@quick
@given(steps)
def test_a_step_is_cut_into_the_lists_of_its_samples(case: tuple[int, int, int, int]) -> None:
    total, micro, _, first = case
    rows = ranks(*case)
    assert len({len(row) for row in rows}) == 1
    in_order = [row[a] for a in range(len(rows[0])) for row in rows]
    real = [batch.samples.tolist() for batch in in_order if not batch.is_filler]
    samples = [*range(first, first + total)]
    assert real == [samples[i : i + micro] for i in range(0, total, micro)]
    assert all(not batch.is_filler for batch in in_order[: len(real)])  # fillers come last
    for row in rows:
        assert [batch.is_last for batch in row] == [False] * (len(row) - 1) + [True]
        assert [batch.index for batch in row] == [*range(len(row))]
        assert all(len(batch.samples) > 0 and batch.samples.dtype == np.int64 for batch in row)


@quick
@given(steps)
def test_the_average_over_dp_is_the_mean_over_the_step(case: tuple[int, int, int, int]) -> None:
    total, _, dp, first = case
    values = np.random.default_rng(0).standard_normal(first + total)
    sums = []
    for row in ranks(*case):
        for batch in row:
            exact = Fraction(0) if batch.is_filler else Fraction(dp * len(batch.samples), total)
            assert batch.weight == float(exact)
        sums.append(sum(batch.weight * values[batch.samples].mean() for batch in row))
    assert sum(sums) / dp == pytest.approx(values[first : first + total].mean(), abs=1e-12)


# ---------------------------------------------------------------- data axes

NAMES = ["dp", "ep", "cp", "sp", "tp", "pp", "fsdp", "model", "x", "rows"]
DATA, UNKNOWN = {"dp", "ep", "fsdp"}, {"x", "rows"}
mesh_sizes = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1, max_size=5)


@quick
@given(mesh_sizes, st.integers(1, 16))
def test_an_axis_of_unknown_role_is_refused_with_options_that_work(
    sizes: dict[str, int], dp: int
) -> None:
    assume(any(axis in UNKNOWN and sizes[axis] > 1 for axis in sizes))
    with pytest.raises(SpecError) as caught:
        resolve_data_axes(None, sizes)
    for axes in data_choices(sizes):
        assert f"data={' '.join(axes)!r}" in caught.value.fix_text
        assert resolve_data_axes(" ".join(axes), sizes) == axes
        assert DATA & sizes.keys() <= {*axes} <= (DATA | UNKNOWN) & sizes.keys()
    products = {num_data_coordinates(sizes, axes) for axes in data_choices(sizes, dp)}
    assert products == {dp} or dp not in products


def test_named_axes_override_the_roles() -> None:
    assert resolve_data_axes("sp dp", {"dp": 2, "ep": 2, "sp": 2}) == ("sp", "dp")
    assert resolve_data_axes((), {"dp": 2, "x": 2}) == ()
    for data in ("dq", 3):
        with pytest.raises(MeshkitError):
            resolve_data_axes(data, {"dp": 2})


def test_the_line_about_the_data_axes() -> None:
    assert describe_data({"dp": 4, "ep": 1}, ("dp", "ep")) == ()
    assert describe_data({"tp": 4}, ()) == ()
    product = "dp 2 x ep 4 = 8 divides the samples."
    assert describe_data({"dp": 2, "ep": 4, "tp": 2}, ("dp", "ep")) == (product,)


@pytest.mark.parametrize(("dp", "global_batch", "micro_batch"), [(8, 8, 8), (8, 16, 4), (4, 4, 2)])
def test_a_plan_that_leaves_ranks_without_a_batch_is_not_proposed_first(
    dp: int, global_batch: int, micro_batch: int
) -> None:
    with pytest.raises(BatchError) as caught:
        BatchPlan.solve(dp=dp, global_batch=global_batch, micro_batch=micro_batch)
    fix = caught.value.fix_text
    idle = dp - global_batch // micro_batch
    most = global_batch // dp
    choice = "micro_batch=1" if most == 1 else f"micro_batch one of 1, {most}"
    assert fix == (
        f"{choice}, or global_batch={dp * micro_batch}, "
        f"or uneven=True, which leaves {idle} of dp {dp} without a batch."
    )
