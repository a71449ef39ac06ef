"""Layouts of norms: which side a name gets, and how its marks share a gradient."""

from __future__ import annotations

import math

import pytest

from meshkit import SpecError
from meshkit.norm.shares import NormLayout, Shares, parse_max_norm, parse_order

SIZES = {"pp": 2, "dp": 2, "ep": 2, "tp": 1}


@pytest.mark.parametrize(
    ("side", "own", "sums"),
    [
        ("o i", {"pp"}, ()),
        ("o/ep i", {"pp", "ep"}, ()),
        ("o/pp i", {"pp"}, ()),
        ("o i =pp", set(), ()),
        ("o i *pp =ep", set(), ()),
        ("... +ep +dp", {"pp"}, ("ep", "dp")),
        ("o/ep i +tp", {"pp", "ep"}, ()),  # tp has size 1
        ("(e/ep o) 1", {"pp", "ep"}, ()),
        ("o/sp/rows i", {"pp", "sp", "rows"}, ()),  # absent axes change nothing
    ],
)
def test_the_marks_of_a_side(side: str, own: set[str], sums: tuple[str, ...]) -> None:
    layout = NormLayout.of(SIZES, {"w": side})
    shares = layout.shares("w", (4, 1), is_plain=True)
    assert shares == Shares(frozenset(own), sums, layout.stated[0])


def test_the_first_glob_that_matches_counts() -> None:
    layout = NormLayout.of(SIZES, {"*.experts.*": "e/ep o i", "*.weight": "o i", "v?": "n/dp"})
    assert layout.unmatched(["0.experts.weight"]) == ["v?"]
    assert layout.shares("0.experts.weight", (2, 2, 2), is_plain=True).own == {"pp", "ep"}
    assert layout.shares("0.up.weight", (2, 2), is_plain=True).own == {"pp"}
    assert layout.shares("v1", (2,), is_plain=True).own == {"pp", "dp"}
    assert layout.shares("bias", (2,), is_plain=True) == Shares(frozenset({"pp"}))


def test_a_dtensor_is_a_copy_over_an_axis_of_unknown_role() -> None:
    layout = NormLayout.of({"rows": 2, "dp": 2}, {"v": "n =rows"})
    assert layout.shares("w", (2,), is_plain=False) == Shares(frozenset())
    assert layout.shares("v", (2,), is_plain=True) == Shares(frozenset(), (), frozenset({"rows"}))
    with pytest.raises(SpecError, match="along rows hold copies of w"):
        layout.shares("w", (2,), is_plain=True)


def test_orders_and_bounds() -> None:
    assert [parse_order(order) for order in (2, 0.5, "inf", math.inf)] == [
        2,
        0.5,
        math.inf,
        math.inf,
    ]
    assert [parse_max_norm(most) for most in (0, 1.5, math.inf)] == [0, 1.5, math.inf]
