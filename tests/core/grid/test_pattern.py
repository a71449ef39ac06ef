"""Patterns over axes."""

from __future__ import annotations

import einops
import numpy as np
import pytest

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.core.call import Call
from meshkit.core.grid.pattern import parse_axis_pattern

CALL = Call("f")
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
def test_the_axes_of_each_word_or_bracket(pattern: str, parts: object) -> None:
    assert parse_axis_pattern(pattern, AXES) == parts


@pytest.mark.parametrize(
    "pattern",
    ["", " ", "()", "(dp", "dp)", "((dp) sp)", "dp -> sp", "dp, sp", "dp-sp", "...", 3, None],
)
def test_what_cannot_be_read(pattern: object) -> None:
    with pytest.raises(SpecError, match="not a pattern of axes"):
        parse_axis_pattern(pattern, AXES)  # type: ignore[arg-type]


def test_unknown_and_doubled_axes() -> None:
    with pytest.raises(UnknownAxisError):
        parse_axis_pattern("(dp xp) tp", AXES)
    with pytest.raises(SpecError, match="twice"):
        parse_axis_pattern("(dp sp) dp", AXES)


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
def test_what_einops_says(pattern: str, sizes: dict[str, int]) -> None:
    wanted = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern, **sizes)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern, **sizes), wanted)


def test_over_the_ranks_of_a_sub_world() -> None:
    layout = Layout(dp=2, tp=2, ranks=[7, 3, 5, 1])
    assert layout.rearrange("dp tp -> tp dp").tolist() == [[7, 5], [3, 1]]


@pytest.mark.parametrize(
    "pattern",
    [
        "sp dp tp -> sp dp tp",
        "dp tp sp -> dp tp sp",
        "tp sp dp -> tp sp dp",
        "... sp -> sp ...",  # the last axis is tp, whatever it is called here
        "... dp tp -> dp tp ...",
    ],
)
def test_an_axis_in_the_place_of_another_is_refused(pattern: str) -> None:
    with pytest.raises(SpecError, match="stands in the place of"):
        LAYOUT.rearrange(pattern)


@pytest.mark.parametrize(
    "pattern", ["... tp -> tp ...", "dp ... tp -> tp dp ...", "... sp tp -> (sp tp) ..."]
)
def test_an_axis_in_its_own_place_after_an_ellipsis(pattern: str) -> None:
    wanted = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern), wanted)


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
def test_what_is_refused(pattern: object, sizes: dict[str, int]) -> None:
    with pytest.raises(SpecError):
        LAYOUT.rearrange(pattern, **sizes)  # type: ignore[arg-type]


def test_the_cause_is_kept() -> None:
    with pytest.raises(SpecError) as caught:
        LAYOUT.rearrange("dp sp tp -> dp sp")
    assert isinstance(caught.value.__cause__, einops.EinopsError)
