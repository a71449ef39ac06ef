"""Patterns: text to pattern and back, types of axes, the mirror."""

from __future__ import annotations

from hypothesis import given, settings

from meshkit.redistribute.pattern import AxisType, expand_dots, parse_pattern
from tests.redistribute.moves import Case, cases

USES = [
    "b s/sp h d -> b s h/sp d",
    "b s h/sp d -> b s/sp h d",
    "b s/sp (three h d) -> three b h/sp s d",
    "two b s/cp h d -> two b s h d *cp",
    "... d =tp -> ... d *tp",
    "... d +tp -> ... d =tp",
    "b s/tp d -> b s d *tp",
    "b s d +tp -> b s/tp d",
    "d =tp -> d *tp",
    "b s v/tp -> b s v =tp",
    "o/dp i -> o i *dp",
    "o/shard i =rep -> o i *shard *rep",
    "... +dp +sp -> ... =dp =sp",
    "g/ep e c d -> g e/ep c d",
    "b s =cp -> b s/cp",
    "b s @dp:0 -> b/dp s",
    "o/dp/tp i -> o/tp i/dp",
    "b s d @pp:0 -> b s d @pp:1",
    "(qkv h/tp d) i -> (qkv h d) i =tp",
    "two b s +tp -> two b s =tp",
]


@given(cases())
@settings(deadline=None, max_examples=50, database=None)
def test_parse_then_print_is_the_identity_of_any_pattern(case: Case) -> None:
    assert str(parse_pattern(case.pattern)) == case.pattern
    spaced = case.pattern.replace(" ", "  ").replace("(", "( ").replace("->", "->\n")
    assert str(parse_pattern(f" {spaced} ")) == case.pattern


def test_the_types_of_axes() -> None:
    pattern = parse_pattern("(a/x b) c/y +z @w:2 -> c (a b/x) *y =z")
    assert pattern.types == {
        "x": (AxisType("/"), AxisType("/")),
        "y": (AxisType("/"), AxisType("*")),
        "z": (AxisType("+"), AxisType("=")),
        "w": (AxisType("@", 2), AxisType("?")),
    }


def test_the_mirror_exchanges_the_sides_and_the_marks() -> None:
    mirror = parse_pattern("b s/x +y =z @w:1 -> b s +x *y *z @w:0").mirror
    assert str(mirror) == "b s *x +y +z @w:0 -> b s/x *y =z @w:1"


def test_dots_stand_for_any_number_of_dims() -> None:
    pattern = parse_pattern("... d +tp -> ... d =tp")
    assert str(expand_dots(pattern, 0)) == "d +tp -> d =tp"
    assert str(expand_dots(pattern, 2)) == "_0 _1 d +tp -> _0 _1 d =tp"
