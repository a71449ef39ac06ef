"""Patterns of axis names, with brackets and with an arrow."""

from __future__ import annotations

import einops
import numpy as np
import pytest

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.layout.names import parse_axis_pattern

AXES = ("dp", "sp", "tp")


LAYOUT = Layout(dp=2, sp=3, tp=2)


def test_the_axes_of_each_name_or_bracket() -> None:
    assert parse_axis_pattern("dp sp tp", AXES) == (("dp",), ("sp",), ("tp",))
    assert parse_axis_pattern("  ( sp   dp )tp ", AXES) == (("sp", "dp"), ("tp",))
    for pattern in ("", "()", "(dp", "dp)", "((dp) sp)", "dp -> sp", "dp-sp", "...", None):
        with pytest.raises(SpecError, match="the pattern cannot be parsed"):
            parse_axis_pattern(pattern, AXES)  # type: ignore[arg-type]
    with pytest.raises(UnknownAxisError, match="there is no axis 1"):
        parse_axis_pattern(1, AXES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("dp sp tp -> (dp sp) tp", {}),
        ("dp sp tp -> tp sp dp", {}),
        ("(a b) sp tp -> b (a sp tp)", {"a": 1}),
        ("dp sp (a b) -> a dp b sp", {"b": 2}),
        ("a b c -> c b a", {}),
        ("dp ... tp -> tp dp ...", {}),
        ("... sp tp -> (sp tp) ...", {}),
    ],
)
def test_rearrange_returns_the_result_of_einops(pattern: str, sizes: dict[str, int]) -> None:
    expected = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern, **sizes)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern, **sizes), expected)


def test_an_axis_in_the_position_of_another_one_raises_an_error() -> None:
    for pattern in ("dp tp sp -> dp tp sp", "... sp -> sp ...", "... dp tp -> dp tp ..."):
        with pytest.raises(SpecError, match="is in the position of"):
            LAYOUT.rearrange(pattern)
