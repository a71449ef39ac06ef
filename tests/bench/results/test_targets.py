"""Targets of a benchmark: each axis, each two, all, and two at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.bench.results.targets import (
    ALONE,
    CONCURRENT,
    OVERLAP,
    SEQUENTIAL,
    Target,
    default_targets,
    num_passes,
    parse_targets,
    sample_groups,
    shared_axes,
)
from meshkit.testing import layouts

quick = settings(deadline=None, max_examples=60, database=None)


def names(layout: Layout) -> list[str]:
    return [target.name for target in default_targets(layout)]


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
    found, axes = default_targets(layout), shared_axes(layout)
    assert parse_targets(layout, [one.name for one in found]) == found
    assert len(set(found)) == len(found)
    assert {axis for one in found for axis in one.span} == set(axes)
    inner, number = len(SEQUENTIAL & set(axes)), len(axes)
    pairs = number * (number - 1) // 2
    whole = number > 2
    assert sum(len(one.groups) == 2 for one in found) == pairs - inner * (inner - 1) // 2
    assert sum(len(one.groups) == 1 for one in found) == number + pairs + whole


def test_a_target_as_it_is_typed() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    one, two, both = parse_targets(layout, ["dp", " sp   dp", "dp tp+sp"])
    assert one == Target((("dp",),))
    assert (two.groups, two.name) == ((("sp", "dp"),), "sp dp")
    assert (both.groups, both.name) == ((("dp", "tp"), ("sp",)), "dp tp+sp")
    assert both.span == ("dp", "tp", "sp")
    assert parse_targets(layout, ["dp", "dp"]) == (one,)
    assert parse_targets(layout, ["dp+sp", "tp", "sp+dp"]) == parse_targets(layout, ["dp+sp", "tp"])
    assert len(parse_targets(layout, ["dp sp", "sp dp"])) == 2  # other members follow each other


@pytest.mark.parametrize("name", ["", "+", "dp+", "dp+sp+tp"])
def test_what_names_no_groups(name: str) -> None:
    with pytest.raises(SpecError, match="is not a target: axes, or two sets of axes"):
        parse_targets(Layout(dp=2, sp=2, tp=2), [name])


def test_an_axis_that_does_not_exist_or_has_one_rank() -> None:
    with pytest.raises(UnknownAxisError, match=r"^there is no axis 'dq'"):
        parse_targets(Layout(dp=2), ["dq"])
    with pytest.raises(SpecError, match="a group over dp tp has 1 rank"):
        parse_targets(Layout(dp=1, tp=1), ["dp tp"])


def test_the_world_is_all_axes_unless_an_axis_is_called_that() -> None:
    layout = Layout(dp=2, sp=1, tp=2)
    (world,) = parse_targets(layout, ["world", "dp tp", " world "])
    assert world.name == "dp tp"
    assert world in default_targets(layout)
    (axis,) = parse_targets(Layout(ranks=None, world=2, x=2), ["world"])
    assert axis.name == "world"
    with pytest.raises(SpecError, match="a group over dp tp has 1 rank"):
        parse_targets(Layout(dp=1, tp=1), ["world"])


@quick
@given(layouts(max_ranks=64), st.integers(1, 6) | st.none(), st.integers(1, 5))
def test_a_sample_is_so_many_of_them_with_the_first_and_the_last(
    layout: Layout, alone: int | None, hosts: int
) -> None:
    place = {int(rank): f"h{rank % hosts}" for rank in layout.grid.flat}
    for target in default_targets(layout):
        rows = layout.groups(*target.span)
        found = sample_groups(rows, place, alone)
        assert found == sorted(set(found))
        assert len(found) == num_passes(layout, target, ALONE, alone)
        assert set(found) <= set(range(len(rows)))
        assert found[0] == 0
        if len(found) > 1:
            assert found[-1] == len(rows) - 1
        if alone is None or alone >= len(rows):
            assert found == [*range(len(rows))]


@pytest.mark.parametrize("alone", [2, 3, 5, 8])
@pytest.mark.parametrize("each", [1, 2, 4])
def test_no_node_has_two_turns_while_another_has_none(alone: int, each: int) -> None:
    layout = Layout(dp=8 * each, tp=2)  # on eight nodes, each with so many groups of tp
    rows = layout.groups("tp")
    blocks = {rank: f"h{rank // (2 * each)}" for rank in range(layout.num_ranks)}
    nodes = [blocks[int(rows[group][0])] for group in sample_groups(rows, blocks, alone)]
    assert len(set(nodes)) == alone


def test_only_alone_takes_turns() -> None:
    layout = Layout(dp=100, tp=2)
    (tp,) = parse_targets(layout, ["tp"])
    assert [num_passes(layout, tp, mode, 16) for mode in (ALONE, CONCURRENT, OVERLAP)] == [16, 1, 1]
    assert num_passes(layout, tp, ALONE, 200) == num_passes(layout, tp, ALONE, None) == 100
