"""Patterns of axes."""

from __future__ import annotations

import einops
import numpy as np
import pytest

from meshkit import Layout, SpecError
from meshkit.core.grid.pattern import parse_axis_pattern

AXES = ("dp", "sp", "tp")
LAYOUT = Layout(dp=2, sp=3, tp=2)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("dp", (("dp",),)),
        ("dp sp tp", (("dp",), ("sp",), ("tp",))),
        ("(dp sp) tp", (("dp", "sp"), ("tp",))),
        ("tp (sp dp)", (("tp",), ("sp", "dp"))),
        ("(dp)", (("dp",),)),
        ("  ( dp   sp )tp ", (("dp", "sp"), ("tp",))),
        ("(dp sp tp)", (("dp", "sp", "tp"),)),
    ],
)
def test_the_axes_of_each_name_or_bracket(pattern: str, parts: object) -> None:
    assert parse_axis_pattern(pattern, AXES) == parts


@pytest.mark.parametrize(
    "pattern",
    ["", " ", "()", "(dp", "dp)", "((dp) sp)", "dp -> sp", "dp-sp", "...", 3, None],
)
def test_an_invalid_pattern_raises_an_error(pattern: object) -> None:
    with pytest.raises(SpecError, match="the pattern cannot be parsed"):
        parse_axis_pattern(pattern, AXES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("dp sp tp -> (dp sp) tp", {}),
        ("dp sp tp -> tp sp dp", {}),
        ("dp sp tp -> (tp dp sp)", {}),
        ("(a b) sp tp -> b (a sp tp)", {"a": 1}),
        ("dp sp (a b) -> a dp b sp", {"b": 2}),
        ("dp ... -> ... dp", {}),
        ("a b c -> c b a", {}),
    ],
)
def test_rearrange_returns_the_result_of_einops(pattern: str, sizes: dict[str, int]) -> None:
    expected = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern, **sizes)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern, **sizes), expected)


@pytest.mark.parametrize(
    "pattern",
    [
        "sp dp tp -> sp dp tp",
        "dp tp sp -> dp tp sp",
        "tp sp dp -> tp sp dp",
        "... sp -> sp ...",  # the last axis is tp
        "... dp tp -> dp tp ...",
    ],
)
def test_an_axis_in_the_position_of_another_one_raises_an_error(pattern: str) -> None:
    with pytest.raises(SpecError, match="is in the position of"):
        LAYOUT.rearrange(pattern)


@pytest.mark.parametrize(
    "pattern", ["... tp -> tp ...", "dp ... tp -> tp dp ...", "... sp tp -> (sp tp) ..."]
)
def test_an_axis_in_its_own_position_after_an_ellipsis(pattern: str) -> None:
    expected = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern), expected)


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("dp sp tp -> dp sp", {}),
        ("dp sp -> sp dp", {}),
        ("(a b) sp tp -> a b sp tp", {}),
        ("(a b) sp tp -> a b sp tp", {"a": 3}),
        ("dp sp tp", {}),
        ("dp sp tp -> dp -> sp", {}),
        ("((a) b) sp tp -> a b sp tp", {"a": 1}),
        ("(a b) sp tp -> a b sp tp", {"a": "x"}),
        ("(a b) sp tp -> a b sp tp", {"a": True}),
        (None, {}),
        (b"dp sp tp -> tp sp dp", {}),
    ],
)
def test_an_invalid_rearrangement_raises_an_error(pattern: object, sizes: dict[str, int]) -> None:
    with pytest.raises(SpecError):
        LAYOUT.rearrange(pattern, **sizes)  # type: ignore[arg-type]
