"""Samplers and streams go on from every state as if nothing had stopped, in every style of loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

import meshkit
from meshkit import BatchPlan
from meshkit.data.epoch import Epoch, shuffle_indices
from meshkit.data.sampler import MicroBatchSampler
from tests.pool import Pool

Batches = list[list[int]]
Loop = Callable[[MicroBatchSampler, Any], Batches]


def loop_over(sampler: MicroBatchSampler, loader: Any) -> Batches:
    return [to_list(batch) for batch in loader]


def loop_over_steps(sampler: MicroBatchSampler, loader: Any) -> Batches:
    """Read a pass as the pages teach it."""
    batches, read = iter(loader), []
    for step in range(sampler.steps):
        for _ in sampler.micro_batches(step):
            read.append(to_list(next(batches)))
    return read


def loop_over_length(sampler: MicroBatchSampler, loader: Any) -> Batches:
    batches = iter(loader)
    return [to_list(next(batches)) for _ in range(len(loader))]


def loop_over_pairs(sampler: MicroBatchSampler, loader: Any) -> Batches:
    batches = iter(loader)
    return [
        to_list(batch)
        for step in range(sampler.steps)
        for _, batch in zip(sampler.micro_batches(step), batches, strict=False)
    ]


LOOPS: list[Loop] = [loop_over, loop_over_steps, loop_over_length, loop_over_pairs]


def to_list(batch: Any) -> list[int]:
    return [int(sample) for sample in batch]


def order_of(length: int, shuffle: bool, epoch: int) -> list[int]:
    positions = np.arange(length)
    return (shuffle_indices(positions, length, 3, epoch) if shuffle else positions).tolist()


def deal(order: list[int], plan: BatchPlan, index: int) -> Batches:
    """Deal the micro batches of an order to one data coordinate, by hand.

    A coordinate without a micro batch of a step reads one of the step again, as a filler.
    """
    size, dealt = plan.global_batch, []
    for begin in range(0, len(order), size):
        step = order[begin : begin + size]
        cuts = [step[i : i + plan.micro_batch] for i in range(0, len(step), plan.micro_batch)]
        for first in range(0, len(cuts), plan.dp):  # of the micro batches of one micro step
            has_own = first + index < len(cuts)
            dealt.append(cuts[first + index] if has_own else cuts[index % len(cuts)])
    return dealt


def sampler_of(plan: BatchPlan, length: int, shuffle: bool, index: int) -> MicroBatchSampler:
    return MicroBatchSampler(Epoch(length, replace(plan, data_index=index), shuffle, 3))


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    cuts, micro, dp = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return BatchPlan.solve(dp=dp, global_batch=cuts * micro, micro_batch=micro, uneven=True)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "length": draw(st.integers(1, 30)),
        "shuffle": draw(st.booleans()),
        "plan": draw(plans()),
        "other": draw(plans()),
        "epochs": draw(st.integers(0, 2)),  # whole ones before the state
        "done": draw(st.floats(0, 1)),  # the part of the steps of the next one
        "before": draw(st.sampled_from(LOOPS)),
        "after": draw(st.lists(st.sampled_from(LOOPS), min_size=4, max_size=4)),
        "set_epoch": draw(st.booleans()),
        "in_loader": draw(st.booleans()),
        "counts": draw(st.booleans()),  # whether the sampler counts the steps itself
    }


def check(case: dict[str, Any], workers: int = 0) -> None:
    """Compare the passes before and after a state with slices of the orders of the epochs."""
    length, shuffle, plan, other = (case[n] for n in ("length", "shuffle", "plan", "other"))

    def loader_of(sampler: MicroBatchSampler) -> Any:
        if not (workers or case["in_loader"]):
            return sampler
        options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        return DataLoader(range(length), batch_sampler=sampler, **options)  # type: ignore[arg-type]

    states = set()
    for index in range(plan.dp):
        first = sampler_of(plan, length, shuffle, index)
        loader = loader_of(first)
        for epoch in range(case["epochs"]):
            order = order_of(length, shuffle, epoch)
            assert case["before"](first, loader) == deal(order, plan, index)
        batches = iter(loader)
        done = round(case["done"] * first.steps)
        for step in range(done):
            for _ in first.micro_batches(step):
                next(batches)
        state = first.state_dict(**({} if case["counts"] and not workers else {"steps": done}))
        states.add(json.dumps(state))
    assert len(states) == 1  # equal on every rank
    begin = min(done * plan.global_batch, length)
    for index in range(other.dp):
        again = sampler_of(other, length, shuffle, index)
        again.load_state_dict(json.loads(min(states)))
        assert again.epoch == case["epochs"]
        loader, skipped = loader_of(again), begin
        for number, loop in enumerate(case["after"], case["epochs"]):
            if case["set_epoch"]:
                again.set_epoch(number)
            order = order_of(length, shuffle, number)[skipped:]
            assert loop(again, loader) == deal(order, other, index)
            assert again.epoch == number
            skipped = 0


@settings(deadline=None, max_examples=60, database=None)
@given(cases())
def test_a_sampler_goes_on_from_every_state(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.nightly
@settings(deadline=None, max_examples=500, database=None)
@given(cases())
def test_a_sampler_goes_on_from_every_state_500_times(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.parametrize(
    ("loop", "done"),
    [
        *((loop, 0.5) for loop in LOOPS),
        *((loop_over_steps, done) for done in (0, 1)),
        *(
            pytest.param(loop, done, marks=pytest.mark.slow)
            for loop in (loop_over, loop_over_length, loop_over_pairs)
            for done in (0, 1)
        ),
    ],
)
def test_a_sampler_of_workers_goes_on(loop: Loop, done: float) -> None:
    plans = {"plan": BatchPlan(1, 4, 2, 2), "other": BatchPlan(1, 3, 1, 3)}
    case = {"length": 10, "shuffle": True, "epochs": 0, "set_epoch": False, "counts": False}
    check({**case, **plans, "done": done, "before": loop, "after": [loop] * 2}, workers=2)


# ---------------------------------------------------------------- real ranks

RANKS = 4
SAMPLES = torch.arange(26)
STEPS = 3  # of 8 samples each
WEIGHTS = [1.0 + n for n in range(26)]


class Numbers(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from SAMPLES


def open_loader(mesh: meshkit.Mesh, kind: str, micro_batch: int, workers: int) -> Any:
    """Return a loader that drops the last two samples of 26."""
    plan = mesh.batch(global_batch=8, micro_batch=micro_batch)
    options: dict[str, Any] = {"num_workers": workers}
    options |= {"multiprocessing_context": "fork"} if workers else {}
    if kind == "stream":
        return mesh.loader(Numbers(), plan, **options)
    if kind == "weights":
        options["order"] = WeightedRandomSampler(WEIGHTS, 26)
    options |= {"seed": 5, "tail": "drop", "shuffle": kind == "shuffle"}
    return mesh.loader(SAMPLES, plan, **options)


def read_steps(loader: Any, micro_steps: int, steps: int, to_the_end: bool) -> list[Batches]:
    """Return the batches of some steps, in one of two styles of loop."""
    if to_the_end:
        batches = [to_list(batch) for batch in loader]
    else:
        iterator = iter(loader)
        batches = [to_list(next(iterator)) for _ in range(steps * micro_steps)]
    return [batches[i : i + micro_steps] for i in range(0, len(batches), micro_steps)]


def go_on(kind: str, workers: int, parts: list[int]) -> list[Any]:
    """Read two epochs on one mesh, of the second a part, and go on on another; for each part."""
    report = []
    torch.manual_seed(meshkit.init().rank)
    for done in parts:
        to_the_end, read = bool(done % 2), []
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            loader = open_loader(mesh, kind, 2, workers)
            source = loader.dataset if kind == "stream" else loader.batch_sampler
            read.append(read_steps(loader, 2, STEPS, to_the_end))
            read.append(read_steps(loader, 2, done, False))
            state = json.dumps(source.state_dict(steps=done), sort_keys=True)
        with meshkit.build_mesh(dp=4) as mesh:
            loader = open_loader(mesh, kind, 1, workers)
            source = loader.dataset if kind == "stream" else loader.batch_sampler
            source.load_state_dict(json.loads(state))
            for steps in (STEPS - done, STEPS, STEPS, STEPS):
                read.append(read_steps(loader, 2, steps, to_the_end))
        report.append((state, source.epoch, read))
    return report


def join(of_ranks: list[list[Batches]]) -> list[int]:
    """Return the samples of some steps in global order, from the batches of all coordinates."""
    return [
        sample
        for steps in zip(*of_ranks, strict=True)
        for micro_step in zip(*steps, strict=True)
        for batch in micro_step
        for sample in batch
    ]


ALL_PARTS = [*range(STEPS + 1)]
KINDS = "plain", "shuffle", "weights", "stream"


@pytest.mark.parametrize(
    ("kind", "workers", "parts"),
    [
        *((kind, 0, ALL_PARTS) for kind in KINDS),
        ("weights", 2, [0, 1]),  # for each part, 12 workers of each rank
        *(
            pytest.param(kind, 2, [2], marks=pytest.mark.slow)
            for kind in KINDS
            if kind != "weights"
        ),
        *(pytest.param(kind, 2, ALL_PARTS, marks=pytest.mark.nightly) for kind in KINDS),
    ],
)
def test_real_ranks_go_on_from_every_state_on_another_mesh(
    pool: Pool, kind: str, workers: int, parts: list[int]
) -> None:
    reports = pool.run(go_on, kind, workers, parts, timeout=300)
    for of_ranks in zip(*reports, strict=True):
        assert len({(state, epoch) for state, epoch, _ in of_ranks}) == 1
        assert of_ranks[0][1] == 4
        epochs = [
            [rank[2][number] for rank in (of_ranks[::2] if number < 2 else of_ranks)]
            for number in range(6)
        ]
        read = [join(epoch) for epoch in epochs]
        passes = [read[0], read[1] + read[2], *read[3:]]
        if kind in ("plain", "stream"):
            assert passes == [[*range(24)]] * 5
        elif kind == "shuffle":
            whole = [shuffle_indices(np.arange(26), 26, 5, epoch)[:24] for epoch in range(5)]
            assert passes == [order.tolist() for order in whole]
        else:
            assert all(len(each) == 24 and max(each) < 26 for each in passes)
            assert len({tuple(each) for each in passes}) == 5
            whole_epochs = [report[0][2] for report in reports]  # with a state at the beginning
            assert passes[1] == join([rank[2] for rank in whole_epochs])
