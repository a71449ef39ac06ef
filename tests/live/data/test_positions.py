"""Samplers and streams go on from every state as if nothing had stopped, in every style of loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from meshkit import BatchPlan
from meshkit.core.epoch import Epoch, shuffle_indices
from meshkit.live.data.sampler import MicroBatchSampler

Loop = Callable[[MicroBatchSampler, Any], list[int]]


def loop_over(sampler: MicroBatchSampler, loader: Any) -> list[int]:
    return [int(sample) for batch in loader for sample in batch]


def loop_over_steps(sampler: MicroBatchSampler, loader: Any) -> list[int]:
    """Read a pass as the pages teach it."""
    batches, read = iter(loader), []
    for step in range(sampler.steps):
        for _ in sampler.micro_batches(step):
            read += [int(sample) for sample in next(batches)]
    return read


def loop_over_length(sampler: MicroBatchSampler, loader: Any) -> list[int]:
    batches = iter(loader)
    return [int(sample) for _ in range(len(loader)) for sample in next(batches)]


def loop_over_pairs(sampler: MicroBatchSampler, loader: Any) -> list[int]:
    batches = iter(loader)
    return [
        int(sample)
        for step in range(sampler.steps)
        for _, batch in zip(sampler.micro_batches(step), batches, strict=False)
        for sample in batch
    ]


LOOPS: list[Loop] = [loop_over, loop_over_steps, loop_over_length, loop_over_pairs]


def order_of(length: int, shuffle: bool, epoch: int) -> list[int]:
    positions = np.arange(length)
    return (shuffle_indices(positions, length, 3, epoch) if shuffle else positions).tolist()


def sampler_of(plan: BatchPlan, length: int, shuffle: bool) -> MicroBatchSampler:
    return MicroBatchSampler(Epoch(length, plan, shuffle, 3))


def alone(global_batch: int, micro: int = 1) -> BatchPlan:
    """Return the plan of one data coordinate, which reads the global order."""
    return replace(
        BatchPlan.solve(dp=1, global_batch=global_batch * micro, micro_batch=micro), data_index=0
    )


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(1, 30))
    return {
        "length": length,
        "shuffle": draw(st.booleans()),
        "plan": alone(draw(st.integers(1, 5)), draw(st.integers(1, 3))),
        "other": alone(draw(st.integers(1, 5)), draw(st.integers(1, 3))),
        "epochs": draw(st.integers(0, 2)),  # whole ones before the state
        "done": draw(st.floats(0, 1)),  # the part of the steps of the next one
        "before": draw(st.sampled_from(LOOPS)),
        "after": draw(st.lists(st.sampled_from(LOOPS), min_size=4, max_size=4)),
        "set_epoch": draw(st.booleans()),
        "in_loader": draw(st.booleans()),
    }


def check(case: dict[str, Any], workers: int = 0) -> None:
    """Compare the passes before and after a state with slices of the orders of the epochs."""
    length, shuffle = case["length"], case["shuffle"]

    def loader_of(sampler: MicroBatchSampler) -> Any:
        if not (workers or case["in_loader"]):
            return sampler
        options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        return DataLoader(range(length), batch_sampler=sampler, **options)  # type: ignore[arg-type]

    first = sampler_of(case["plan"], length, shuffle)
    loader = loader_of(first)
    for epoch in range(case["epochs"]):
        assert case["before"](first, loader) == order_of(length, shuffle, epoch)
    batches = iter(loader)
    done = round(case["done"] * first.steps)
    for step in range(done):
        for _ in first.micro_batches(step):
            next(batches)
    state = json.loads(json.dumps(first.state_dict(steps=done)))
    begin = min(done * case["plan"].global_batch, length)
    again = sampler_of(case["other"], length, shuffle)
    again.load_state_dict(state)
    assert again.epoch == case["epochs"]
    loader = loader_of(again)
    for number, loop in enumerate(case["after"], case["epochs"]):
        if case["set_epoch"]:
            again.set_epoch(number)
        assert loop(again, loader) == order_of(length, shuffle, number)[begin:]
        assert again.epoch == number
        begin = 0


@settings(deadline=None, max_examples=200, database=None)
@given(cases())
def test_a_sampler_goes_on_from_every_state(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.slow
@settings(deadline=None, max_examples=2000, database=None)
@given(cases())
def test_a_sampler_goes_on_from_every_state_2000_times(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("done", [0, 0.5, 1])
def test_a_sampler_of_workers_goes_on(loop: Loop, done: float) -> None:
    case = {"length": 10, "shuffle": True, "plan": alone(2, 2), "other": alone(3), "epochs": 0}
    check(
        {**case, "done": done, "before": loop, "after": [loop] * 2, "set_epoch": False}, workers=2
    )
