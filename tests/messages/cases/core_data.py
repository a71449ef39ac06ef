"""Cases of errors that core/data raises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from meshkit import (
    BatchPlan,
    BatchSchedule,
    Layout,
    SequencePlan,
    stream_seed,
)
from meshkit.core.arrays import Ints
from meshkit.core.call import quotes_call
from meshkit.core.data.data_axes import resolve_data_axes
from meshkit.core.data.epoch import Epoch, validate_epoch
from meshkit.core.data.parameter_check import EqualAxes
from meshkit.core.data.random_streams import select_coordinate
from meshkit.core.data.sampler_state import epoch_state, parse_count, resume_epoch
from meshkit.core.data.sequence import plan_sequence
from meshkit.core.data.shuffle import shuffle_indices
from tests.messages.snapshot import unique

LAYOUT = Layout(dp=4, sp=2, tp=1)
PLAN = BatchPlan.solve(dp=4, global_batch=16, micro_batch=2)
EPOCH = Epoch(100, PLAN, 0, True, 1, "keep", number=2)
STATE = epoch_state(EPOCH, 1)


@quotes_call("mesh.check_parameters", by_name=("model",))
def check_parameters(model: object, *, axes: object = None) -> object:
    return EqualAxes.of({"dp": 2, "rows": 4, "tp": 2}, axes)


@quotes_call("mesh.seed")
def mesh_seed(*, vary: object) -> object:
    return select_coordinate(LAYOUT, 0, vary)


@quotes_call("mesh.seed")
def mesh_seed_on_rank_9(*, vary: object) -> object:
    return select_coordinate(LAYOUT, 9, vary)


@quotes_call("mesh.batch")
def mesh_batch_with_rows(*, global_batch: int, micro_batch: int) -> object:
    return resolve_data_axes(None, {"dp": 2, "rows": 4, "tp": 2})


@quotes_call("mesh.batch")
def mesh_batch_of_x_and_y(*, global_batch: int, micro_batch: int) -> object:
    return resolve_data_axes(None, {"x": 4, "y": 2})


@quotes_call("mesh.sampler", by_name=("plan",))
def mesh_sampler(length: int, plan: BatchPlan, **changes: Any) -> object:
    return validate_epoch(replace(EPOCH, length=length, plan=plan, **changes))


@quotes_call("mesh.sequence")
def mesh_sequence(length: int, *, axes: str) -> object:
    return plan_sequence(Layout(cp=2, sp=2), tuple(axes.split()), length)


@quotes_call("sampler.load_state_dict", by_name=("state",))
def load_state(state: object) -> object:
    return resume_epoch(EPOCH, state)


@quotes_call("sampler.load_state_dict", by_name=("state",))
def load_state_of_other_data(state: object) -> object:
    return resume_epoch(replace(EPOCH, length=90, seed=3), state)


@quotes_call("sampler.state_dict")
def save_state(*, steps: int) -> object:
    return parse_count("steps", steps, 7)


@quotes_call("shuffle_indices")
def read_positions(indices: Ints, length: int) -> object:
    return shuffle_indices(indices, length, 0, 0)


@quotes_call("sampler.micro_batches")
def read_step(step: int) -> object:
    return EPOCH.micro_batches(step)


CASES = unique(
    (
        "a batch over an axis of unknown role",
        lambda: mesh_batch_with_rows(global_batch=16, micro_batch=2),
    ),
    (
        "a batch over axes of unknown role alone",
        lambda: mesh_batch_of_x_and_y(global_batch=16, micro_batch=2),
    ),
    (
        "a batch that does not divide",
        lambda: BatchPlan.solve(dp=4, global_batch=100, micro_batch=3),
    ),
    ("a batch with many divisors", lambda: BatchPlan.solve(dp=1, global_batch=720, micro_batch=50)),
    ("a batch from one size", lambda: BatchPlan.solve(dp=4, micro_batch=2)),
    ("a global batch of 0", lambda: BatchPlan.solve(dp=4, global_batch=0, micro_batch=2)),
    ("samples of a negative step", lambda: PLAN.samples(-1, 0)),
    (
        "a batch that rounds down to 0",
        lambda: BatchPlan.solve(dp=4, global_batch=8, micro_batch=3, round="down"),
    ),
    (
        "a batch that does not divide to give dp",
        lambda: BatchPlan.solve(global_batch=100, micro_batch=3, accumulation_steps=2),
    ),
    ("a batch from two sizes without dp", lambda: BatchPlan.solve(global_batch=100, micro_batch=3)),
    (
        "an uneven batch with a partial micro batch",
        lambda: BatchPlan.solve(dp=7, global_batch=32, micro_batch=3, uneven=True),
    ),
    (
        "an uneven batch with wrong accumulation steps",
        lambda: BatchPlan.solve(
            dp=7, global_batch=32, micro_batch=1, accumulation_steps=4, uneven=True
        ),
    ),
    (
        "an unknown rounding",
        lambda: BatchPlan.solve(dp=4, global_batch=8, micro_batch=3, round="near"),
    ),
    ("a negative first sample", lambda: PLAN.samples(0, 0, first=-3)),
    ("a stage that does not divide", lambda: BatchSchedule(PLAN, ((0, 8), (100, 12)))),
    ("stages that do not ascend from 0", lambda: BatchSchedule(PLAN, ((5, 8), (5, 16)))),
    (
        "a stage with a float",
        lambda: BatchSchedule(PLAN, ((0, 8.0),)),
    ),
    ("stages with a comma", lambda: BatchSchedule.from_text(PLAN, "0:8, 100:16")),
    (
        "stages with 0 tokens a sample",
        lambda: BatchSchedule.from_text(PLAN, "0:8", tokens_per_sample=0),
    ),
    (
        "a ramp with more increments than samples",
        lambda: BatchSchedule.ramp_up(PLAN, start=8, increment=1, samples=5),
    ),
    (
        "a ramp with a batch that does not divide",
        lambda: BatchSchedule.ramp_up(PLAN, start=7, increment=3, samples=100, uneven=True),
    ),
    ("stages as text that do not divide", lambda: BatchSchedule.from_text(PLAN, "0:8 100:12")),
    (
        "stages that are None",
        lambda: BatchSchedule.from_text(PLAN, None),
    ),
    (
        "a schedule of a str",
        lambda: BatchSchedule("x", ((0, 8),)),
    ),
    (
        "uneven as a str",
        lambda: BatchPlan.solve(dp=4, global_batch=8, micro_batch=2, uneven="no"),
    ),
    (
        "a ramp with too many stages",
        lambda: BatchSchedule.ramp_up(
            BatchPlan.solve(dp=1, global_batch=10**9, micro_batch=1),
            start=1,
            increment=1,
            samples=10**12,
        ),
    ),
    (
        "a huge batch that does not divide",
        lambda: BatchPlan.solve(dp=1, global_batch=10**18, micro_batch=3),
    ),
    (
        "a ramp from 0 samples",
        lambda: BatchSchedule.ramp_up(PLAN, start=0, increment=8, samples=100),
    ),
    (
        "a ramp whose increments miss its end",
        lambda: BatchSchedule.ramp_up(PLAN, start=8, increment=5, samples=100),
    ),
    ("the batch at a negative sample", lambda: BatchSchedule.constant(PLAN).at(-1)),
    ("the samples consumed at a negative step", lambda: BatchSchedule.constant(PLAN).consumed(-1)),
    ("a data index outside the plan", lambda: PLAN.samples(0, 4)),
    ("a sequence that does not divide", lambda: SequencePlan(10, 4)),
    ("a zigzag sequence that does not divide", lambda: SequencePlan(6, 4, "zigzag")),
    ("a sequence over two axes that does not divide", lambda: mesh_sequence(10, axes="cp sp")),
    ("a sequence of length 0", lambda: SequencePlan(0, 4, "zigzag")),
    (
        "an unknown order of tokens",
        lambda: SequencePlan(8, 4, "striped"),
    ),
    (
        "padding that is an int",
        lambda: SequencePlan(8, 4, pad=1),
    ),
    ("parameters on axes of unknown role", lambda: check_parameters(object())),
    ("a part outside a sequence", lambda: SequencePlan(8, 4).positions(4)),
    ("a position outside a shuffled order", lambda: read_positions(np.array([0, 8, -1]), 8)),
    ("a step beyond an epoch", lambda: read_step(7)),
    ("an epoch without data", lambda: mesh_sampler(0, PLAN)),
    ("an unknown tail", lambda: mesh_sampler(100, PLAN, tail="wrap")),
    ("a shuffle with a float seed", lambda: mesh_sampler(100, PLAN, seed=1.5)),
    ("an epoch shorter than a step", lambda: mesh_sampler(9, PLAN, tail="drop")),
    ("a sampler state of other data", lambda: load_state_of_other_data(STATE)),
    (
        "a sampler state with too many consumed samples",
        lambda: load_state({**STATE, "consumed": 101}),
    ),
    ("a sampler state that is a list", lambda: load_state([1])),
    (
        "a sampler state with missing fields",
        lambda: load_state({"version": 1, "length": 100, "epoch": 2, "consumed": 0}),
    ),
    ("a sampler state of another version", lambda: load_state({**STATE, "version": 2})),
    ("a sampler state of a negative epoch", lambda: load_state({**STATE, "epoch": -1})),
    ("more steps than an epoch has", lambda: save_state(steps=9)),
    (
        "a stream seed with a float base",
        lambda: stream_seed(1.0, dp=2),
    ),
    (
        "a stream with an int as its name",
        lambda: stream_seed(1, 3),
    ),
    ("a stream at a negative index", lambda: stream_seed(1, "init", dp=2, tp=-1)),
    ("a stream at a bool index", lambda: stream_seed(1, "init", dp=True)),
    ("a stream at an index beyond its limit", lambda: stream_seed(1, "init", sample=2**40)),
    ("the seed of a rank outside the layout", lambda: mesh_seed_on_rank_9(vary="dp")),
    ("vary as an int", lambda: mesh_seed(vary=3)),
    ("a batch in the words of another library", lambda: BatchPlan.solve(dp=2, batch_size=4)),
    ("a batch of text", lambda: BatchPlan.solve(dp=2, global_batch="1e3", micro_batch=4)),
    ("vary with an unknown axis", lambda: mesh_seed(vary="xx")),
)
