"""Attention over slices of a sequence is torch's own over the whole, forward and back."""

from __future__ import annotations

import pytest
import torch

import meshkit
from tests.examples import attention_jobs as jobs

# with order="sp dp" the ranks of an sp group are not neighbours, and no place is a global rank
MESHES = [{"sp": 4}, {"dp": 2, "sp": 2}, {"dp": 2, "sp": 2, "order": "sp dp"}, {"dp": 4, "sp": 1}]
SHAPES = [(2, 16, 4, 8), (1, 4, 8, 1), (3, 64, 4, 5)]  # 4 tokens over sp=4: one each
ODD = [(2, 16, 3, 8), (1, 8, 1, 2)]  # heads that no sp divides
CASES: list[tuple[jobs.Case, float]] = [  # and how far off it may be
    *((("ulysses", shape, torch.float64, 1.0), 1e-12) for shape in SHAPES),
    *((("ring", shape, torch.float64, 1.0), 1e-12) for shape in SHAPES + ODD),
    (("ring", SHAPES[-1], torch.float64, 1000.0), 1e-9),  # exp(scores) alone would overflow
    (("ring", SHAPES[-1], torch.float32, 1.0), 1e-5),
    # gradients travel in float32, in other sizes than keys and values
    (("ring", SHAPES[-1], torch.bfloat16, 1.0), 2e-2),
]


def test_it_is_torchs_attention_over_the_whole_sequence() -> None:
    cases, limits = zip(*CASES, strict=True)
    for rank in meshkit.spawn(jobs.compare, 4, (MESHES, cases), timeout=120):
        for found in rank:
            assert found == [pytest.approx([0, 0], abs=limit) for limit in limits]


def test_blocks_of_the_future_are_sent_on_and_not_computed() -> None:
    told = meshkit.spawn(jobs.count, 4, (4,), timeout=120)
    assert [rank["computed"] for rank in told] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    # keys and values three steps, their gradients a fourth, home
    assert [rank["sent"] for rank in told] == [[3, 3 + 4]] * 4


def test_alone_nothing_is_sent() -> None:
    assert meshkit.spawn(jobs.count, 2, (1,), timeout=120) == [
        {"computed": [1, 1], "sent": [0, 0]},
        {"computed": [1, 1], "sent": [0, 0]},
    ]


def test_what_is_in_the_future_is_not_seen() -> None:
    """Not even a NaN, which a weight of zero would let through."""
    told = meshkit.spawn(jobs.see, 4, (2,), timeout=120)
    assert told == [[False, False], [False, False], [True, True], [True, True]]


def test_a_second_derivative_is_refused() -> None:
    (error,) = meshkit.spawn(jobs.differentiate_twice, 1, timeout=120)
    assert "once_differentiable" in error
