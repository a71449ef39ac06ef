"""Schedules of the global batch, compared with a run that is simulated step by step."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan, BatchSchedule, CoordinateError

quick = settings(deadline=None, max_examples=60, database=None)
PLAN = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule[BatchPlan]:
    plan = BatchPlan.solve(
        dp=draw(st.integers(1, 4)), micro_batch=draw(st.integers(1, 3)), accumulation_steps=1
    )
    firsts = sorted(draw(st.sets(st.integers(1, 80), max_size=4)))
    unit = plan.global_batch
    stages = [(first, unit * draw(st.integers(1, 5))) for first in [0, *firsts]]
    return BatchSchedule(plan, tuple(stages))


def simulate(schedule: BatchSchedule[BatchPlan], steps: int) -> list[tuple[int, int]]:
    """Return consumed samples and global batch of each step, by a search of all stages."""
    steps_done, consumed = [], 0
    for _ in range(steps):
        size = [size for first, size in schedule.stages if first <= consumed][-1]
        steps_done.append((consumed, size))
        consumed += size
    return steps_done


@quick
@given(schedules(), st.integers(0, 30))
def test_steps_equal_a_simulated_run(schedule: BatchSchedule[BatchPlan], step: int) -> None:
    run = simulate(schedule, step + 1)
    assert [(c, plan.global_batch) for c, plan in islice(schedule.steps(), step + 1)] == run
    assert schedule.consumed(step) == run[-1][0]
    assert schedule.at(run[-1][0]).global_batch == run[-1][1]


@quick
@given(schedules(), st.integers(0, 30), st.integers(1, 6))
def test_law_9_holds_for_every_stage_and_resize(
    schedule: BatchSchedule[BatchPlan], step: int, dp: int
) -> None:
    consumed = schedule.consumed(step)
    for each in (schedule, schedule.resize(dp)):
        plan = each.at(consumed)
        assert plan.global_batch == schedule.at(consumed).global_batch
        assert plan.micro_batch == schedule.plan.micro_batch
        owned = [plan.samples(0, d, first=consumed).ravel() for d in range(plan.dp)]
        every = sorted(int(n) for part in owned for n in part)
        assert every == list(range(consumed, consumed + plan.global_batch))


@quick
@given(schedules(), st.integers(0, 20), st.integers(1, 5))
def test_a_resumed_run_equals_an_uninterrupted_one(
    schedule: BatchSchedule[BatchPlan], step: int, dp: int
) -> None:
    whole = [c for c, _ in islice(schedule.steps(), step + 5)]
    again = schedule.resize(dp).steps(schedule.consumed(step))
    assert [c for c, _ in islice(again, 5)] == whole[step:]


@quick
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 8), st.integers(1, 1000))
def test_a_ramp_equals_that_of_megatron(start: int, step: int, k: int, samples: int) -> None:
    """Compare with start + floor(consumed / (samples / k)) * increment."""
    if k > samples:
        return
    plan = BatchPlan.solve(dp=1, global_batch=start + k * step, micro_batch=1)
    ramp = BatchSchedule.ramp_up(plan, start=start, increment=step, samples=samples)
    for consumed in {0, samples // 3, samples // 2, samples - 1, samples, samples + 7}:
        steps = min(k, consumed * k // samples)
        assert ramp.at(consumed).global_batch == start + steps * step


def test_a_ramp_of_numpy_integers() -> None:
    plan = BatchPlan.solve(dp=1, global_batch=8, micro_batch=1)
    options: Any = {"start": np.uint8(2), "increment": np.int8(2), "samples": np.int32(2 * 10**9)}
    stages = BatchSchedule.ramp_up(plan, **options).stages
    assert stages == ((0, 2), (666_666_667, 4), (1_333_333_334, 6), (2 * 10**9, 8))


def test_stages_by_samples_and_by_tokens() -> None:
    text = "0:4 200000:8"
    assert BatchSchedule.from_text(PLAN, text).stages == ((0, 4), (200_000, 8))
    by_tokens = BatchSchedule.from_text(PLAN, text, tokens_per_sample=4096)
    assert by_tokens.stages == ((0, 4), (49, 8))  # 200,000 tokens are 48.8 samples
    assert [by_tokens.at(c).global_batch for c in (0, 48, 49, 10**9)] == [4, 4, 8, 8]


def test_constant() -> None:
    schedule = BatchSchedule.constant(PLAN)
    assert schedule.at(10**12) == PLAN
    assert schedule.consumed(1000) == 8000
    assert [c for c, _ in schedule.steps(16, until=40)] == [16, 24, 32]


def test_stages_are_plain_ints_and_picklable() -> None:
    schedule = BatchSchedule(PLAN, [[0, 4], [8, 8]])  # type: ignore[arg-type]
    assert schedule.stages == ((0, 4), (8, 8))
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedule.resize(3).resize(2) == schedule


def test_uneven_stages_must_be_allowed() -> None:
    with pytest.raises(BatchError):
        BatchSchedule.from_text(PLAN, "0:6")
    uneven = BatchSchedule.from_text(PLAN, "0:6", uneven=True)
    assert [uneven.at(0).num_micro_batches(d) for d in range(2)] == [2, 1]


@pytest.mark.parametrize("consumed", [-1, 1.0, True, None])
def test_an_invalid_position_raises(consumed: Any) -> None:
    schedule = BatchSchedule.constant(PLAN)
    with pytest.raises(CoordinateError):
        schedule.at(consumed)
    with pytest.raises(CoordinateError):
        schedule.consumed(consumed)
    with pytest.raises(CoordinateError):
        next(schedule.steps(consumed))


def test_the_schedule_of_an_uneven_plan_is_uneven() -> None:
    plan = BatchPlan.solve(dp=2, global_batch=6, micro_batch=2, uneven=True)
    schedule = BatchSchedule(plan, ((0, 8), (8, 6)))
    assert [(at, step.global_batch) for at, step in schedule.steps(until=15)] == [
        (0, 8),
        (8, 6),
        (14, 6),
    ]
