"""Streams go on from every state as if nothing had stopped, with and without workers."""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from meshkit import BatchError, BatchPlan
from meshkit.data.epoch import Epoch, SampleOrder
from meshkit.data.loaders import make_loader
from meshkit.data.sampler import MicroBatchSampler, make_stream
from meshkit.data.stream import MicroBatchStream
from meshkit.launch.worker import context_for

Loop = Callable[[Any, int], list[list[int]]]
PLAN = BatchPlan.solve(dp=2, global_batch=4, micro_batch=1)


class Counting(IterableDataset[int]):
    """The stream 0, 1, 2, ..."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


def loop_to_the_end(loader: Any, num_batches: int) -> list[list[int]]:
    return [list(batch) for batch in loader]


def loop_by_count(loader: Any, num_batches: int) -> list[list[int]]:
    """Read a pass of known length, and never its end."""
    batches = iter(loader)
    return [list(next(batches)) for _ in range(num_batches)]


def count_samples(loader: Any) -> int:
    return sum(len(batch) for batch in loader)


LOOPS: list[Loop] = [loop_to_the_end, loop_by_count]


def stream_of(plan: BatchPlan, length: int, data_index: int) -> MicroBatchStream[int]:
    return MicroBatchStream(Counting(length), replace(plan, data_index=data_index))


def loader_of(stream: MicroBatchStream[int], workers: int, persistent: bool = False) -> Any:
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
    return DataLoader(stream, batch_size=None, num_workers=workers, **(options if workers else {}))


def own_batches(plan: BatchPlan, begin: int, length: int, data_index: int) -> list[list[int]]:
    """Return the samples of whole steps, counted by hand."""
    batches = []
    while begin + plan.global_batch <= length:
        batches += [m.samples.tolist() for m in plan.micro_batches(0, data_index, first=begin)]
        begin += plan.global_batch
    return batches


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    cuts, micro, dp = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return BatchPlan.solve(dp=dp, global_batch=cuts * micro, micro_batch=micro, uneven=True)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "length": draw(st.integers(0, 40)),
        "plan": draw(plans()),
        "other": draw(plans()),
        "epochs": draw(st.integers(0, 2)),  # whole ones before the state
        "done": draw(st.floats(0, 1)),  # the part of the steps of the next one
        "before": draw(st.sampled_from(LOOPS)),
        "after": draw(st.lists(st.sampled_from(LOOPS), min_size=4, max_size=4)),
        "set_epoch": draw(st.booleans()),
        "in_loader": draw(st.booleans()),
    }


def check(case: dict[str, Any], workers: int = 0, persistent: bool = False) -> None:
    """Compare the passes of each data coordinate before and after a state with those by hand."""
    length, plan, other = case["length"], case["plan"], case["other"]

    def read_by(stream: MicroBatchStream[int]) -> Any:
        is_in_loader = workers or case["in_loader"]
        return loader_of(stream, workers, persistent) if is_in_loader else stream

    states = []
    for data_index in range(plan.dp):
        stream = stream_of(plan, length, data_index)
        loader = read_by(stream)
        whole = own_batches(plan, 0, length, data_index)
        for _ in range(case["epochs"]):
            assert case["before"](loader, len(whole)) == whole
        done = round(case["done"] * (length // plan.global_batch))
        batches = iter(loader)
        for _ in range(done * plan.accumulation_steps):
            next(batches)
        states.append(json.dumps(stream.state_dict(steps=done)))
        del batches
    assert len({*states}) == 1
    state = json.loads(states[0])
    assert state["epoch"] == case["epochs"]
    for data_index in range(other.dp):
        stream = stream_of(other, length, data_index)
        stream.load_state_dict(state)
        loader, begin = read_by(stream), done * plan.global_batch
        for number, loop in enumerate(case["after"], case["epochs"]):
            if case["set_epoch"]:
                stream.set_epoch(number)
            rest = own_batches(other, begin, length, data_index)
            assert loop(loader, len(rest)) == rest
            assert stream.epoch == number
            begin = 0


@settings(deadline=None, max_examples=60, database=None)
@given(cases())
def test_a_stream_goes_on_from_every_state(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.nightly
@settings(deadline=None, max_examples=500, database=None)
@given(cases())
def test_a_stream_goes_on_from_every_state_500_times(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("persistent", "done"),
    [
        *((persistent, 0.5) for persistent in (False, True)),
        *((True, done) for done in (0, 1)),
        *(pytest.param(False, done, marks=pytest.mark.slow) for done in (0, 1)),
    ],
)
def test_a_stream_of_workers_goes_on(loop: Loop, persistent: bool, done: float) -> None:
    after = [loop_to_the_end] * 3 if done == 1 else [loop] * 3
    case = {"length": 18, "plan": PLAN, "other": replace(PLAN, dp=1, accumulation_steps=4)}
    check(
        {**case, "epochs": 1 if done else 0, "done": done, "before": loop, "after": after}
        | {"set_epoch": False},
        workers=2,
        persistent=persistent,
    )


@pytest.mark.parametrize(
    ("order", "fix"),
    [
        ({"seed": 1}, "leave out seed."),
        ({"shuffle": True}, "leave out shuffle, and shuffle in the dataset."),
        (
            {"order": [2, 0, 1]},
            "leave out order, and yield the samples in that order in the dataset.",
        ),
        (
            {"order": WeightedRandomSampler([1.0, 2.0], 2), "seed": 1},
            "leave out seed; leave out order, and yield the samples in that order in the dataset.",
        ),
    ],
)
def test_a_stream_refuses_another_order_with_a_fix_for_what_was_given(
    order: dict[str, Any], fix: str
) -> None:
    with pytest.raises(BatchError) as caught:
        make_stream(Counting(3), PLAN, SampleOrder(**order))
    assert caught.value.fix == fix


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_iter_of_a_loader_of_the_mesh_begins_the_pass(workers: int, persistent: bool) -> None:
    plan = BatchPlan(1, 2, 2, 1, data_index=0)
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
    options |= {"worker_init_fn": lambda _: time.sleep(0.3)}  # begins after the trainer goes on
    stream = MicroBatchStream(Counting(8), plan)
    stream.load_state_dict(stream.state_dict(steps=4))  # the end of an epoch
    loader = make_loader(None, stream, {"num_workers": workers} | (options if workers else {}))
    batches = iter(loader)  # empty, and nothing is read of it
    assert stream.epoch == 0
    for epoch in (1, 2):
        batches = iter(loader)
        assert stream.state_dict(steps=0) == {"version": 1, "epoch": epoch, "consumed": 0}
        assert stream.micro_batches(0)[0].samples.tolist() == [0, 1]
        assert [next(batches).tolist() for _ in range(4)] == own_batches(plan, 0, 8, 0)
    assert count_samples(loader) == 8
    assert (next(batches, None), stream.epoch) == (None, 3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_resumed_stream_reads_whole_epochs_after_its_first(
    workers: int, persistent: bool
) -> None:
    stream = MicroBatchStream(Counting(16), BatchPlan(1, 4, 4, 1, data_index=0))
    stream.load_state_dict(stream.state_dict(steps=3))
    loader = loader_of(stream, workers, persistent)
    assert [count_samples(loader) for _ in range(3)] == [4, 16, 16]
    assert stream.epoch == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_stream_left_early_begins_again(workers: int, persistent: bool) -> None:
    plan = BatchPlan(1, 2, 2, 1, data_index=0)
    stream = MicroBatchStream(Counting(100), plan)
    stream.load_state_dict(stream.state_dict(steps=3))
    loader = loader_of(stream, workers, persistent)
    for left_after in (0, 1, 3):
        batches = iter(loader)
        read = [next(batches) for _ in range(left_after)]
        assert read == [[6 + 2 * n, 7 + 2 * n] for n in range(left_after)]
    assert loop_to_the_end(loader, 0) == own_batches(plan, 6, 100, 0)
    assert (loop_to_the_end(loader, 0), stream.epoch) == (own_batches(plan, 0, 100, 0), 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_whose_seeds_repeat(workers: int) -> None:
    """A trainer that seeds torch before each epoch gives equal seeds to the workers of each."""
    stream = MicroBatchStream(Counting(8), BatchPlan(1, 1, 1, 1, data_index=0))
    stream.load_state_dict(stream.state_dict(steps=6))
    loader, counts = loader_of(stream, workers), []
    for _ in range(4):
        torch.manual_seed(0)
        counts.append(count_samples(loader))
    assert counts == [2, 8, 8, 8]


def test_other_loaders_go_on_with_the_passes_of_a_stream() -> None:
    stream = MicroBatchStream(Counting(8), BatchPlan(1, 2, 2, 1, data_index=0))
    stream.load_state_dict(stream.state_dict(steps=3))
    counts = [count_samples(loader_of(stream, workers)) for workers in (1, 0, 2)]
    assert (counts, stream.epoch) == ([2, 8, 8], 2)


def test_a_copy_goes_on_by_itself() -> None:
    stream = MicroBatchStream(Counting(8), BatchPlan(1, 2, 2, 1, data_index=0))
    stream.load_state_dict(stream.state_dict(steps=3))
    copies = [copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    for each in (stream, *copies):
        loader = loader_of(each, 2)
        assert [count_samples(loader) for _ in range(3)] == [2, 8, 8]


def test_a_worker_goes_on_that_is_no_fork_of_the_trainer() -> None:
    """A worker gets the stream by pickle, as from ``spawn``, but torch is imported already."""
    stream = MicroBatchStream(Counting(8), BatchPlan(1, 2, 2, 1, data_index=0))
    stream.load_state_dict(stream.state_dict(steps=3))
    context = context_for(count_samples)
    loader: Any = DataLoader(
        stream, batch_size=None, num_workers=1, multiprocessing_context=context
    )
    assert [count_samples(loader) for _ in range(2)] == [2, 8]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("left_after", [0, 1, 5, 7])
def test_a_loader_of_the_mesh_left_early_begins_again_whatever_workers_have_read(
    workers: int, left_after: int
) -> None:
    plan = BatchPlan(1, 2, 2, 1, data_index=0)
    stream = MicroBatchStream(Counting(20), plan)
    stream.load_state_dict(stream.state_dict(steps=2))
    options = {"multiprocessing_context": "fork", "prefetch_factor": 4}
    loader = make_loader(None, stream, {"num_workers": workers} | (options if workers else {}))
    for _ in range(2):
        batches = iter(loader)
        for _ in range(left_after):
            next(batches)
        time.sleep(0.3 if workers else 0)  # the workers read to the end
    assert count_samples(loader) == 16
    assert stream.epoch == 0
    for epoch in (1, 2):
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(10)] == own_batches(plan, 0, 20, 0)
        assert stream.epoch == epoch
    assert count_samples(loader_of(stream, workers)) == 20  # also a plain one
    assert stream.epoch == 3


def test_a_stream_refuses_the_state_of_a_sampler() -> None:
    sampler = MicroBatchSampler(Epoch(40, replace(PLAN, data_index=0), shuffle=True))
    stream = stream_of(PLAN, 40, 0)
    with pytest.raises(BatchError, match="length, shuffle, seed") as caught:
        stream.load_state_dict(sampler.state_dict(steps=2))
    assert "stream.state_dict" in caught.value.fix
    assert next(iter(stream)) == [0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_beyond_the_end_of_a_stream_is_refused(workers: int) -> None:
    state = stream_of(PLAN, 40, 0).state_dict(steps=6)
    shorter = stream_of(PLAN, 22, 0)
    shorter.load_state_dict(state)
    with pytest.raises(BatchError, match="has consumed 24 samples") as caught:
        next(iter(loader_of(shorter, workers)))
    assert "has 22 samples" in str(caught.value)
    of_equal_length = stream_of(PLAN, 24, 0)
    of_equal_length.load_state_dict(state)
    loader = loader_of(of_equal_length, workers)
    assert [count_samples(loader), count_samples(loader)] == [0, 12]


def test_an_epoch_without_a_step_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stream = stream_of(PLAN, 3, 0)
    assert [[*stream], [*stream]] == [[], []]
    assert "epoch 0 of the stream has no step: 3 samples do not fill" in caplog.text
    caplog.clear()
    full = stream_of(PLAN, 6, 0)
    full.load_state_dict(full.state_dict(steps=1))
    assert [[*full], [*full]] == [[], [[0], [2]]]
    assert not caplog.text
