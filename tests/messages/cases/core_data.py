"""Cases of errors that core/data raises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshkit import (
    BatchPlan,
    BatchSchedule,
    SequencePlan,
    stream_seed,
)
from meshkit.core.data.epoch import Epoch, checked_epoch
from meshkit.core.data.sampler_state import checked_count, resume_epoch, state
from meshkit.core.data.sequence import sequence_plan
from meshkit.core.data.shuffle import shuffled
from tests.messages.snapshot import unique

PLAN = BatchPlan.solve(dp=4, global_batch=16, micro_batch=2)
EPOCH = Epoch(100, PLAN, 0, True, 1, "keep", number=2)
STATE = state(EPOCH, 1)

CASES = unique(
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
    (
        "a sequence over two axes that does not divide",
        lambda: sequence_plan(10, 4, "contiguous", False, "cp 2 x sp 2"),
    ),
    ("a sequence of length 0", lambda: SequencePlan(0, 4, "zigzag")),
    (
        "an unknown order of tokens",
        lambda: SequencePlan(8, 4, "striped"),
    ),
    (
        "padding that is an int",
        lambda: SequencePlan(8, 4, pad=1),
    ),
    ("a part outside a sequence", lambda: SequencePlan(8, 4).positions(4)),
    ("a position outside a shuffled order", lambda: shuffled(np.array([0, 8, -1]), 8, 0, 0)),
    ("a step beyond an epoch", lambda: EPOCH.micro_batches(7)),
    ("an epoch without data", lambda: checked_epoch(replace(EPOCH, length=0))),
    ("an unknown tail", lambda: checked_epoch(replace(EPOCH, tail="wrap"))),
    ("a shuffle with a float seed", lambda: checked_epoch(replace(EPOCH, seed=1.5))),
    ("an epoch shorter than a step", lambda: checked_epoch(replace(EPOCH, length=9, tail="drop"))),
    (
        "a sampler state of other data",
        lambda: resume_epoch(replace(EPOCH, length=90, seed=3), STATE),
    ),
    (
        "a sampler state with too many consumed samples",
        lambda: resume_epoch(EPOCH, {**STATE, "consumed": 101}),
    ),
    ("a sampler state that is a list", lambda: resume_epoch(EPOCH, [1])),
    (
        "a sampler state with missing fields",
        lambda: resume_epoch(EPOCH, {"version": 1, "length": 100, "epoch": 2, "consumed": 0}),
    ),
    ("a sampler state of another version", lambda: resume_epoch(EPOCH, {**STATE, "version": 2})),
    ("a sampler state of a negative epoch", lambda: resume_epoch(EPOCH, {**STATE, "epoch": -1})),
    ("more steps than an epoch has", lambda: checked_count("steps", 9, 7)),
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
)
