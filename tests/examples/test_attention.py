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
PAIRED = [SHAPES[0], SHAPES[2], (1, 8, 8, 1)]  # tokens that two chunks a rank divide
CASES: list[tuple[jobs.Case, float]] = [  # and how far off it may be
    *((("ulysses", shape, torch.float64, 1.0, "contiguous"), 1e-12) for shape in SHAPES),
    *((("ulysses", shape, torch.float64, 1.0, "zigzag"), 1e-12) for shape in PAIRED),
    *((("ring", shape, torch.float64, 1.0, "contiguous"), 1e-12) for shape in SHAPES + ODD),
    *((("ring", shape, torch.float64, 1.0, "zigzag"), 1e-12) for shape in PAIRED + ODD),
    # exp(scores) alone would overflow
    (("ring", SHAPES[-1], torch.float64, 1000.0, "contiguous"), 1e-9),
    (("ring", SHAPES[-1], torch.float64, 1000.0, "zigzag"), 1e-9),
    (("ring", SHAPES[-1], torch.float32, 1.0, "zigzag"), 1e-5),
    # gradients travel in float32, in other sizes than keys and values
    (("ring", SHAPES[-1], torch.bfloat16, 1.0, "contiguous"), 2e-2),
    (("ring", SHAPES[-1], torch.bfloat16, 1.0, "zigzag"), 2e-2),
]


def test_it_is_torchs_attention_over_the_whole_sequence() -> None:
    cases, limits = zip(*CASES, strict=True)
    for rank in meshkit.spawn(jobs.compare, 4, (MESHES, cases), timeout=120):
        for found in rank:
            assert found == [pytest.approx([0, 0], abs=limit) for limit in limits]


def test_blocks_of_the_future_are_sent_on_and_not_computed() -> None:
    told = meshkit.spawn(jobs.count, 4, (4, "contiguous"), timeout=120)
    assert [rank["computed"] for rank in told] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert [rank["pairs"] for rank in told] == [[16, 16], [32, 32], [48, 48], [64, 64]]
    # keys and values three steps, their gradients a fourth, home
    assert [rank["sent"] for rank in told] == [[3, 3 + 4]] * 4


def test_zigzag_is_equal_work_for_all() -> None:
    """Its own block, and of each other one the half that is seen."""
    told = meshkit.spawn(jobs.count, 4, (4, "zigzag"), timeout=120)
    pairs = 16 + 3 * 8
    assert told == [{"computed": [4, 4], "pairs": [pairs, pairs], "sent": [3, 3 + 4]}] * 4


def test_padding_is_not_seen() -> None:
    for output, gradient in meshkit.spawn(jobs.padded, 4, timeout=120):
        assert output < 1e-12
        assert gradient < 1e-12


def test_alone_nothing_is_sent() -> None:
    assert meshkit.spawn(jobs.count, 2, (1, "zigzag"), timeout=120) == [
        {"computed": [1, 1], "pairs": [16, 16], "sent": [0, 0]},
        {"computed": [1, 1], "pairs": [16, 16], "sent": [0, 0]},
    ]


def test_what_is_in_the_future_is_not_seen() -> None:
    """Not even a NaN, which a weight of zero would let through."""
    told = meshkit.spawn(jobs.see, 4, (2,), timeout=120)
    assert told == [[False, False], [False, False], [True, True], [True, True]]


def test_a_second_derivative_is_refused() -> None:
    (error,) = meshkit.spawn(jobs.differentiate_twice, 1, timeout=120)
    assert "once_differentiable" in error
