"""Ranges of ranks, and other parts of messages."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.text import (
    article,
    count_noun,
    format_ranks,
    format_sizes,
    name_ranks,
    plural,
    summarize,
)


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
def test_format_ranks(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@settings(deadline=None, max_examples=60, database=None)
@given(st.sets(st.integers(0, 40)))
def test_every_rank_can_be_parsed_from_the_text(ranks: set[int]) -> None:
    text = format_ranks(sorted(ranks))
    parsed: list[int] = []
    for part in re.findall(r"\d+(?:-\d+)?", text):
        first, _, last = part.partition("-")
        parsed += range(int(first), int(last or first) + 1)
    assert parsed == sorted(ranks)
    assert text.count(",") == max(0, len([r for r in ranks if r - 1 not in ranks]) - 1)


def test_nouns() -> None:
    assert [article(noun) for noun in ("int", "str", "Axis")] == ["an int", "a str", "an Axis"]
    assert [count_noun(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert [plural(noun) for noun in ("bus", "box", "batch", "mesh", "node")] == [
        "buses",
        "boxes",
        "batches",
        "meshes",
        "nodes",
    ]


def test_short_forms() -> None:
    assert format_sizes({}) == ""
    assert summarize(range(6)) == "0, 1, 2, 3, 4, 5"
    assert summarize(range(7)) == "0, 1, 2, ..., 6 (7)"
    assert name_ranks([0, 1, 4, 6]) == "ranks 0-1, 4 and 6"
