"""Any of the four sizes from the others, rounded or uneven where asked, beside counting by hand."""

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


def dealt(cards: int, dp: int) -> list[int]:
    """How many each of dp players has, when cards are dealt round one by one."""
    hands = [0] * dp
    for card in range(cards):
        hands[card % dp] += 1
    return hands


@quick
@given(batch_plans(), st.sampled_from(BATCH_FIELDS))
def test_any_three_give_the_last(plan: BatchPlan, unknown: str) -> None:
    known: dict[str, Any] = {n: size for n, size in sizes(plan).items() if n != unknown}
    assert BatchPlan.solve(**known) == plan


@quick
@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 6), st.sampled_from(["down", "up"]))
def test_rounding_takes_the_nearest_on_that_side_and_says_so(
    dp: int, total: int, micro: int, way: str
) -> None:
    works = [n for n in range(1, 200) if n % (dp * micro) == 0]
    side = [n for n in works if (n <= total if way == "down" else n >= total)]
    if not side:  # nothing below
        with pytest.raises(BatchError):
            BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro, round=way)
        return
    nearest = max(side) if way == "down" else min(side)
    plan = BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro, round=way)
    assert plan.global_batch == nearest
    assert plan.asked == (None if nearest == total else total)
    assert (f"({total} asked)" in str(plan)) == (nearest != total)


@pytest.mark.parametrize(("way", "total"), [("down", 8), ("up", None)])
def test_three_that_contradict_are_rounded_to_their_product(way: str, total: int | None) -> None:
    asked = {"dp": 2, "global_batch": 12, "micro_batch": 2, "accumulation_steps": 2}
    if total is None:
        with pytest.raises(BatchError):
            BatchPlan.solve(**asked, round=way)  # type: ignore[arg-type]
        return
    assert BatchPlan.solve(**asked, round=way).global_batch == total  # type: ignore[arg-type]


@quick
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_uneven_plans_deal_as_cards_are_dealt(dp: int, cuts: int, micro: int) -> None:
    plan = BatchPlan.solve(dp=dp, global_batch=cuts * micro, micro_batch=micro, uneven=True)
    hands = dealt(cuts, dp)
    assert [plan.num_micro_batches(d) for d in range(dp)] == hands
    assert plan.accumulation_steps == max(hands)
    assert plan.uneven == (min(hands) != max(hands))
    assert BatchPlan(dp, cuts * micro, micro, max(hands), True) == plan


def test_the_case_of_seven() -> None:
    plan = BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True)
    assert [plan.num_micro_batches(d) for d in range(7)] == [5, 5, 5, 5, 4, 4, 4]
    assert str(plan) == "global_batch 32 = micro_batch 1 x 32, of which dp 7 run 5 or 4 each"


def test_an_uneven_plan_that_divides_is_even() -> None:
    plan = BatchPlan.solve(dp=4, global_batch=32, micro_batch=2, uneven=True)
    assert not plan.uneven
    assert plan == BatchPlan.solve(dp=4, global_batch=32, micro_batch=2)


def test_uneven_and_rounded_to_whole_micro_batches() -> None:
    plan = BatchPlan.solve(dp=4, global_batch=100, micro_batch=3, uneven=True, round="down")
    assert (plan.global_batch, plan.asked) == (99, 100)
    assert [plan.num_micro_batches(d) for d in range(4)] == dealt(33, 4)


@quick
@given(batch_plans(), st.integers(1, 12))
def test_resize_holds_the_global_batch_and_there_and_back_is_the_identity(
    plan: BatchPlan, dp: int
) -> None:
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


@pytest.mark.parametrize("dp", [0, -1, 2.0, True, None])
def test_resize_to_what_is_no_size(dp: int) -> None:
    with pytest.raises(BatchError, match=rf"plan.resize\(dp={dp}\)"):
        BatchPlan.solve(dp=2, global_batch=4, micro_batch=2).resize(dp)


def test_an_unknown_rounding() -> None:
    with pytest.raises(BatchError, match="round is 'nearest'"):
        BatchPlan.solve(dp=2, global_batch=5, micro_batch=1, round="nearest")
