"""What is measured over: each axis, each two, all, and two at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.core.call import Call
from meshkit.core.targets import INNER, Target, every_target, typed_targets, wide
from meshkit.testing import layouts

quick = settings(deadline=None, max_examples=60, database=None)


def names(layout: Layout) -> list[str]:
    return [target.name for target in every_target(layout)]


def test_every_target_by_hand() -> None:
    assert names(Layout(dp=4, sp=2, tp=1)) == ["dp", "sp", "dp sp", "dp+sp"]
    assert names(Layout(dp=2)) == ["dp"]
    assert names(Layout(dp=1, tp=1)) == []
    assert names(Layout(sp=2, tp=2)) == ["sp", "tp", "sp tp"]  # they wait for each other
    assert names(Layout(pp=2, dp=2, tp=2))[3:] == [
        *("pp dp", "pp tp", "dp tp", "pp dp tp"),
        *("pp+dp", "pp+tp", "dp+tp"),
    ]


@quick
@given(layouts(max_ranks=256, max_axes=5))
def test_every_target_is_what_can_be_typed_and_each_is_there_once(layout: Layout) -> None:
    found, axes = every_target(layout), wide(layout)
    assert typed_targets(layout, [one.name for one in found]) == found
    assert len(set(found)) == len(found)
    assert {axis for one in found for axis in one.span} == set(axes)
    inner, number = len(INNER & set(axes)), len(axes)
    pairs = number * (number - 1) // 2
    whole = number > 2
    assert sum(len(one.groups) == 2 for one in found) == pairs - inner * (inner - 1) // 2
    assert sum(len(one.groups) == 1 for one in found) == number + pairs + whole


def test_a_target_as_it_is_typed() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    one, two, both = typed_targets(layout, ["dp", " sp   dp", "dp tp+sp"])
    assert one == Target((("dp",),))
    assert (two.groups, two.name) == ((("sp", "dp"),), "sp dp")
    assert (both.groups, both.name) == ((("dp", "tp"), ("sp",)), "dp tp+sp")
    assert both.span == ("dp", "tp", "sp")
    assert typed_targets(layout, ["dp", "dp"]) == (one,)
    assert typed_targets(layout, ["dp+sp", "tp", "sp+dp"]) == typed_targets(layout, ["dp+sp", "tp"])
    assert len(typed_targets(layout, ["dp sp", "sp dp"])) == 2  # other members follow each other


@pytest.mark.parametrize("name", ["", "+", "dp+", "dp+sp+tp"])
def test_what_names_no_groups(name: str) -> None:
    with pytest.raises(SpecError, match="does not name axes, two groups of them at once at most"):
        typed_targets(Layout(dp=2, sp=2, tp=2), [name])


@pytest.mark.parametrize("name", ["dp dp", "dp+dp"])
def test_an_axis_stands_once(name: str) -> None:
    with pytest.raises(SpecError, match="names the axis dp twice"):
        typed_targets(Layout(dp=2), [name])


def test_an_error_quotes_the_call_it_is_given() -> None:
    with pytest.raises(UnknownAxisError, match=r"^bench\(\): there is no axis 'dq'"):
        typed_targets(Layout(dp=2), ["dq"], Call("bench"))
    with pytest.raises(SpecError, match="a group over dp tp has 1 rank"):
        typed_targets(Layout(dp=1, tp=1), ["dp tp"])


def test_of_two_at_once_each_must_have_ranks() -> None:
    with pytest.raises(SpecError, match="a group over tp has 1 rank"):
        typed_targets(Layout(dp=2, tp=1), ["dp+tp"])


def test_the_world_is_all_axes_unless_an_axis_is_called_that() -> None:
    layout = Layout(dp=2, sp=1, tp=2)
    (world,) = typed_targets(layout, ["world", "dp tp", " world "])
    assert world.name == "dp tp"
    assert world in every_target(layout)
    (axis,) = typed_targets(Layout(ranks=None, world=2, x=2), ["world"])
    assert axis.name == "world"
    with pytest.raises(SpecError, match="a group over dp tp has 1 rank"):
        typed_targets(Layout(dp=1, tp=1), ["world"])
