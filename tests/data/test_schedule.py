"""Schedules of the global batch, compared with a run that is simulated step by step."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshkit import BatchError, BatchPlan, BatchSchedule

quick = settings(deadline=None, max_examples=60, database=None)
PLAN = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    plan = BatchPlan.solve(
        dp=draw(st.integers(1, 4)), micro_batch=draw(st.integers(1, 3)), accumulation_steps=1
    )
    firsts = sorted(draw(st.sets(st.integers(1, 80), max_size=4)))
    stages = [(first, plan.global_batch * draw(st.integers(1, 5))) for first in [0, *firsts]]
    return BatchSchedule(plan, tuple(stages))


def simulate(schedule: BatchSchedule, steps: int) -> list[tuple[int, int]]:
    """Return consumed samples and global batch of each step, by a search of all stages."""
    steps_done, consumed = [], 0
    for _ in range(steps):
        size = [size for first, size in schedule.stages if first <= consumed][-1]
        steps_done.append((consumed, size))
        consumed += size
    return steps_done


@quick
@given(schedules(), st.integers(0, 20), st.integers(1, 6))
def test_a_run_resumes_at_any_step_on_another_mesh(
    schedule: BatchSchedule, step: int, dp: int
) -> None:
    run = simulate(schedule, step + 5)
    assert [(c, plan.global_batch) for c, plan in islice(schedule.steps(), step + 5)] == run
    again = schedule.resize(dp).steps(run[step][0])
    assert [(c, plan.global_batch) for c, plan in islice(again, 5)] == run[step:]


@quick
@given(schedules(), st.integers(0, 200), st.integers(1, 6))
def test_law_9_holds_for_every_stage_and_resize(
    schedule: BatchSchedule, consumed: int, dp: int
) -> None:
    for each in (schedule, schedule.resize(dp)):
        plan = each.at(consumed)
        assert plan.global_batch == schedule.at(consumed).global_batch
        assert plan.micro_batch == schedule.plan.micro_batch
        owned = [plan.samples(0, d, first=consumed).ravel() for d in range(plan.dp)]
        every = sorted(int(n) for part in owned for n in part)
        assert every == list(range(consumed, consumed + plan.global_batch))


@quick
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 8), st.integers(1, 1000))
def test_a_ramp_equals_that_of_megatron(start: int, step: int, k: int, samples: int) -> None:
    """Compare with start + floor(consumed / (samples / k)) * increment."""
    assume(k <= samples)
    plan = BatchPlan.solve(dp=1, global_batch=start + k * step, micro_batch=1)
    ramp = BatchSchedule.ramp_up(plan, start=start, increment=step, samples=samples)
    for consumed in {0, samples // 3, samples // 2, samples - 1, samples, samples + 7}:
        steps = min(k, consumed * k // samples)
        assert ramp.at(consumed).global_batch == start + steps * step


def test_uneven_stages_must_be_allowed_or_begin_with_an_uneven_plan() -> None:
    with pytest.raises(BatchError) as caught:
        BatchSchedule(PLAN, ((0, 6),))
    assert caught.value.fix_text.startswith("uneven=True, or ")
    uneven = BatchSchedule(PLAN, ((0, 6),), uneven=True)
    assert [uneven.at(0).num_micro_batches(d) for d in range(2)] == [2, 1]
    schedule = BatchSchedule(uneven.at(0), ((0, 8), (8, 6)))
    assert [(c, plan.global_batch) for c, plan in schedule.steps(until=9)] == [(0, 8), (8, 6)]


def test_the_schedule_of_a_rank_gives_plans_of_the_rank() -> None:
    schedule = BatchSchedule(replace(PLAN, data_index=1), ((0, 8), (16, 16)))
    assert schedule.at(16).samples(0, first=16)[0].tolist() == [18, 19]
