"""Sampler states: plain values, valid on any mesh, invalid for other data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from meshkit import BatchError, BatchPlan, CoordinateError
from meshkit.core.data.epoch import Epoch
from meshkit.core.data.sampler_state import epoch_state, parse_count, resume_epoch

PLAN = BatchPlan.solve(dp=2, global_batch=4, micro_batch=1)
EPOCH = Epoch(10, PLAN, 0, True, 7, "keep", number=3)


def test_the_fields_of_a_state() -> None:
    assert epoch_state(EPOCH, 2) == {
        "version": 1,
        "length": 10,
        "shuffle": True,
        "seed": 7,
        "epoch": 3,
        "consumed": 8,
    }
    assert [epoch_state(EPOCH, steps)["consumed"] for steps in range(4)] == [0, 4, 8, 10]
    rest = replace(EPOCH, begin=5)
    assert [epoch_state(rest, steps)["consumed"] for steps in range(3)] == [5, 9, 10]


def test_a_state_passes_through_json_to_another_plan() -> None:
    current = replace(EPOCH, plan=BatchPlan.solve(dp=1, global_batch=3, micro_batch=3), number=0)
    resumed = resume_epoch(current, json.loads(json.dumps(epoch_state(EPOCH, 2))))
    assert resumed == replace(current, number=3, begin=8)


def test_a_state_of_other_data_raises() -> None:
    for change in ({"length": 11}, {"seed": 8}, {"shuffle": False}):
        with pytest.raises(BatchError, match=f"{next(iter(change))} is"):
            resume_epoch(replace(EPOCH, **change), epoch_state(EPOCH, 1))


def test_options_that_keep_the_order_may_differ() -> None:
    plain = replace(EPOCH, shuffle=False)
    assert resume_epoch(replace(plain, seed=8), epoch_state(plain, 1)).begin == 4
    assert resume_epoch(replace(EPOCH, tail="drop"), epoch_state(EPOCH, 1)).tail == "drop"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"epoch": -1},
        {"epoch": 1.0},
        {"consumed": -1},
        {"consumed": 11},
        {"consumed": "4"},
        {"consumed": True},
    ],
)
def test_an_invalid_field_raises(change: dict[str, Any]) -> None:
    with pytest.raises(BatchError, match=str(next(iter(change.values())))):
        resume_epoch(EPOCH, {**epoch_state(EPOCH, 1), **change})


def test_an_invalid_state_raises() -> None:
    for state in (None, [], {}, {name: 1 for name in epoch_state(EPOCH, 0) if name != "seed"}):
        with pytest.raises(BatchError):
            resume_epoch(EPOCH, state)


def test_parse_count() -> None:
    assert parse_count("steps", 3, 3) == 3
    for value, most in ((4, 3), (-1, None), (True, None), (1.0, 3), (None, 3)):
        with pytest.raises(CoordinateError, match=f"steps is {value!r}"):
            parse_count("steps", value, most)
