"""Runs of ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.text import format_ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "none"),
        ([0], "0"),
        ([6, 7], "6-7"),
        ([0, 2, 4], "0, 2, 4"),
        ([0, 1, 2, 3, 5, 6, 7], "0-3, 5-7"),
        ([3, 4, 9, 11, 12], "3-4, 9, 11-12"),
        (range(1000), "0-999"),
        (np.arange(3, 6), "3-5"),
        (iter([1, 2]), "1-2"),
    ],
)
def test_as_a_person_writes_them(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@settings(deadline=None, max_examples=60, database=None)
@given(st.sets(st.integers(0, 40)))
def test_every_rank_can_be_read_back(ranks: set[int]) -> None:
    text = format_ranks(sorted(ranks))
    read: list[int] = []
    for part in re.findall(r"\d+(?:-\d+)?", text):
        first, _, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(ranks)
    assert text.count(",") == max(0, len([r for r in ranks if r - 1 not in ranks]) - 1)
