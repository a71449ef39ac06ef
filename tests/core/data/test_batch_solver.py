"""Any size from the other three, rounded or uneven on request, compared with a simple count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan
from meshkit.core.data.batch_solver import BATCH_FIELDS
from meshkit.testing import batch_plans

quick = settings(deadline=None, max_examples=60, database=None)


def sizes(plan: BatchPlan) -> dict[str, int]:
    return {name: getattr(plan, name) for name in BATCH_FIELDS}


def assign_round_robin(num_micro_batches: int, dp: int) -> list[int]:
    """Return the micro batches of each rank, assigned round-robin one by one."""
    counts = [0] * dp
    for number in range(num_micro_batches):
        counts[number % dp] += 1
    return counts


@quick
@given(batch_plans(), st.sampled_from(BATCH_FIELDS))
def test_three_sizes_determine_the_fourth(plan: BatchPlan, unknown: str) -> None:
    known: dict[str, Any] = {n: size for n, size in sizes(plan).items() if n != unknown}
    assert BatchPlan.solve(**known) == plan


@quick
@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 6), st.sampled_from(["down", "up"]))
def test_rounding_takes_the_nearest_batch_and_shows_the_requested_one(
    dp: int, total: int, micro: int, way: str
) -> None:
    valid = [n for n in range(1, 200) if n % (dp * micro) == 0]
    side = [n for n in valid if (n <= total if way == "down" else n >= total)]
    if not side:  # no smaller batch divides
        with pytest.raises(BatchError):
            BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro, round=way)
        return
    nearest = max(side) if way == "down" else min(side)
    plan = BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro, round=way)
    assert plan.global_batch == nearest
    assert plan.asked == (None if nearest == total else total)
    assert (f"({total} asked)" in str(plan)) == (nearest != total)


@pytest.mark.parametrize(("way", "total"), [("down", 8), ("up", None)])
def test_contradicting_sizes_are_rounded_to_their_product(way: str, total: int | None) -> None:
    given = {"dp": 2, "global_batch": 12, "micro_batch": 2, "accumulation_steps": 2}
    if total is None:
        with pytest.raises(BatchError):
            BatchPlan.solve(**given, round=way)  # type: ignore[arg-type]
        return
    assert BatchPlan.solve(**given, round=way).global_batch == total  # type: ignore[arg-type]


@quick
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_uneven_plans_assign_round_robin(dp: int, cuts: int, micro: int) -> None:
    plan = BatchPlan.solve(dp=dp, global_batch=cuts * micro, micro_batch=micro, uneven=True)
    counts = assign_round_robin(cuts, dp)
    assert [plan.num_micro_batches(d) for d in range(dp)] == counts
    assert plan.accumulation_steps == max(counts)
    assert plan.uneven == (min(counts) != max(counts))
    assert BatchPlan(dp, cuts * micro, micro, max(counts), True) == plan


def test_thirty_two_micro_batches_over_seven_ranks() -> None:
    plan = BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True)
    assert [plan.num_micro_batches(d) for d in range(7)] == [5, 5, 5, 5, 4, 4, 4]
    assert str(plan) == "global_batch 32 = micro_batch 1 x 32, of which dp 7 run 5 or 4 each"


def test_uneven_sizes_that_divide_are_even() -> None:
    plan = BatchPlan.solve(dp=4, global_batch=32, micro_batch=2, uneven=True)
    assert not plan.uneven
    assert plan == BatchPlan.solve(dp=4, global_batch=32, micro_batch=2)


def test_uneven_and_rounded_to_whole_micro_batches() -> None:
    plan = BatchPlan.solve(dp=4, global_batch=100, micro_batch=3, uneven=True, round="down")
    assert (plan.global_batch, plan.asked) == (99, 100)
    assert [plan.num_micro_batches(d) for d in range(4)] == assign_round_robin(33, 4)


@quick
@given(batch_plans(), st.integers(1, 12))
def test_resize_keeps_the_global_batch_and_is_invertible(plan: BatchPlan, dp: int) -> None:
    other = plan.resize(dp)
    assert (other.dp, other.global_batch, other.micro_batch) == (
        dp,
        plan.global_batch,
        plan.micro_batch,
    )
    assert (
        sum(other.num_micro_batches(d) for d in range(dp)) * other.micro_batch == plan.global_batch
    )
    assert other.resize(plan.dp) == plan
    assert not other.resize(plan.dp).uneven


@pytest.mark.parametrize("dp", [0, -1, 2.5, True, None])
def test_an_invalid_dp_of_resize_raises(dp: int) -> None:
    with pytest.raises(BatchError, match=rf"plan.resize\({dp}\)"):
        BatchPlan.solve(dp=2, global_batch=4, micro_batch=2).resize(dp)


def test_an_unknown_rounding_raises() -> None:
    with pytest.raises(BatchError, match="round is 'nearest'"):
        BatchPlan.solve(dp=2, global_batch=5, micro_batch=1, round="nearest")
