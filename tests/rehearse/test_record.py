"""The checks of played ranks, by tables and by hypothesis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.layout.layout import Layout
from meshkit.rehearse.mismatches import differs_from, find_mismatches, uneven_data
from meshkit.rehearse.record import (
    GroupRecord,
    Names,
    Operation,
    Trace,
    corner_ranks,
    derive_layout,
    find_axes,
    standing_corner,
)
from meshkit.rehearse.report import VOLUMES
from meshkit.testing import layouts
from tests.laws.derivations import law

GRID = Layout(dp=2, tp=2)  # ranks 0 1 | 2 3
NAMES = Names([GRID])
GROUPS = {"tp": ("tp",), "dp": ("dp",), "all": ("dp", "tp")}

Step = tuple[str, str]  # an operation, "all_reduce/4", and the axes of its group


def trace(rank: int, steps: Sequence[Step], *, ended: bool = True) -> Trace:
    """Return the trace of a rank that waits for each operation, but not for one that ends in ~."""
    members = {name: tuple(GRID.peers(rank, *axes).tolist()) for name, axes in GROUPS.items()}
    numbers = {name: number for number, name in enumerate(GROUPS)}
    result = Trace(rank, [GroupRecord(each, 0) for each in members.values()], has_ended=ended)
    for line, (text, group) in enumerate(steps):
        name, _, size = text.rstrip("~").partition("/")
        name, _, peer = name.partition(">")
        operation = Operation(
            name, numbers[group], "f32", (int(size or 1),), int(size or 1), line=f"a.py:{line}"
        )
        if peer:
            operation = operation._replace(peer=int(peer))
        result.operations.append(operation)
        result.events += [line] if text.endswith("~") else [line, -line - 1]
    return result


def play(*steps: Sequence[Step], **ended: bool) -> dict[int, Trace]:
    """Return the traces of ranks 0, 1, ..."""
    return {rank: trace(rank, each) for rank, each in enumerate(steps)}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ([("all_reduce/4", "all")], "Operation 1 of the dp tp group [0, 1, 2, 3]: "),
        ([("all_reduce/4", "all"), ("all_reduce/5", "all")], "all_reduce f32 [5] on rank 3"),
        ([("barrier", "all"), ("all_reduce/4", "all")], "Operation 0 of the dp tp group"),
        ([("all_reduce/4", "all")] * 3, "Operation 2 of the dp tp group"),
    ],
    ids=["skips", "size", "order", "more"],
)
def test_an_odd_rank_is_named(odd: list[Step], words: str) -> None:
    steps = [("all_reduce/4", "all")] * 2
    (mismatch,) = find_mismatches(play(steps, steps, steps, odd), NAMES)
    assert mismatch.ranks == (3,)
    assert mismatch.group.axes == ("dp", "tp")
    assert mismatch.group.members == (0, 1, 2, 3)
    assert words in mismatch.text
    assert "rank 3 (dp=1 tp=1)" in mismatch.text


def test_of_two_ranks_both_are_named() -> None:
    one, two = [("all_reduce/4", "tp")], [("all_gather/4", "tp")]
    first, _ = find_mismatches(play(one, two, one, two), NAMES)
    assert first.ranks == (0, 1)
    assert first.text.endswith(
        "of the tp group [0, 1]: all_reduce f32 [4] on tp=0 (a.py:0), "
        "all_gather f32 [4] on tp=1 (a.py:0)."
    )


def test_a_rank_that_raised_is_compared_up_to_its_error() -> None:
    steps = [("all_reduce/4", "all")] * 2
    traces = play(steps, steps, steps)
    assert find_mismatches({**traces, 3: trace(3, steps[:1], ended=False)}, NAMES) == []
    odd = trace(3, [("barrier", "all")], ended=False)
    assert find_mismatches({**traces, 3: odd}, NAMES)[0].ranks == (3,)


def test_sends_and_receives() -> None:
    assert find_mismatches(play([("send>2/4", "dp")], [], [("recv>0/4", "dp")]), NAMES) == []
    for peer in ([("recv>0/5", "dp")], [], [("recv>0/4", "dp")] * 2):
        (mismatch,) = find_mismatches(play([("send>2/4", "dp")], [], peer), NAMES)
        assert mismatch.ranks == (2, 0)
        assert "Ranks along dp do not match: rank 2 (dp=1 tp=0) and rank 0" in mismatch.text


def test_ranks_that_wait_for_each_other_are_named_with_their_lines() -> None:
    one, two = [("barrier", "tp"), ("barrier", "dp")], [("barrier", "dp"), ("barrier", "tp")]
    (mismatch,) = find_mismatches(play(one, two, two, one), NAMES)
    assert mismatch.text.splitlines()[0].endswith("along tp and dp wait for each other:")
    assert "rank 0 (dp=0 tp=0) waits in barrier" in mismatch.text
    assert "(a.py:0) for rank 1 (dp=0 tp=1)." in mismatch.text
    is_open = [("barrier~", "tp"), ("barrier", "dp")], [("barrier~", "dp"), ("barrier", "tp")]
    assert find_mismatches(play(is_open[0], is_open[1], is_open[1], is_open[0]), NAMES) == []


def test_two_sends_wait_for_each_other() -> None:
    one, two = [("send>2/4", "dp"), ("recv>2/4", "dp")], [("send>0/4", "dp"), ("recv>0/4", "dp")]
    assert find_mismatches(play(one, [], two), NAMES)[0].ranks == (0, 2)
    one[0] = ("send>2/4~", "dp")
    assert find_mismatches(play(one, [], two), NAMES) == []


@given(st.lists(st.sampled_from(["tp", "dp", "all"]), max_size=8), st.data())
def test_programs_of_one_order_match_and_an_omission_does_not(
    order: list[str], data: st.DataObject
) -> None:
    steps = [("all_reduce/4", group) for group in order]
    traces = play(*[steps] * 4)
    assert find_mismatches(traces, NAMES) == []
    if order:
        left_out = data.draw(st.integers(0, len(order) - 1))
        traces[2] = trace(2, steps[:left_out] + steps[left_out + 1 :])
        found = find_mismatches(traces, NAMES)
        assert any(2 in mismatch.ranks for mismatch in found)
        assert all(2 in mismatch.group.members for mismatch in found)


@given(st.permutations(["tp", "dp", "all"]), st.permutations(["tp", "dp", "all"]))
def test_orders_of_groups_end_if_and_only_if_a_token_game_ends(
    first: list[str], second: list[str]
) -> None:
    orders = [first, second, second, first]
    traces = play(*[[("barrier", group) for group in order] for order in orders])
    at = [0] * 4  # second derivation: let any group whose members are all there pass, until none is
    while True:
        ready = [
            members
            for name, axes in GROUPS.items()
            for members in {tuple(GRID.peers(rank, *axes).tolist()) for rank in range(4)}
            if all(at[r] < 3 and orders[r][at[r]] == name for r in members)
        ]
        if not ready:
            break
        for rank in ready[0]:
            at[rank] += 1
    assert (find_mismatches(traces, NAMES) == []) == (at == [3] * 4)


def test_data_ranks_with_other_numbers_of_operations_are_a_warning() -> None:
    steps = [("all_reduce/4", "tp")] * 2
    traces = play(steps, steps, steps[:1], steps[:1])
    assert find_mismatches(traces, NAMES) == []
    assert uneven_data(traces, NAMES)[0] == (
        "rank 2 (dp=1 tp=0) and rank 0 (dp=0 tp=0) differ along dp only and run other numbers of "
        "operations: 1 and 2 over tp."
    )


def test_a_witness_is_compared_by_places_in_groups() -> None:
    steps = [("all_reduce/4", "tp"), ("all_reduce/4", "dp")]
    traces = play(steps, steps, steps, steps[:1])
    assert differs_from(traces[2], traces[0], NAMES) == ""
    assert "nothing" in differs_from(traces[3], traces[1], NAMES)


@law
@given(layouts())
def test_corners_hold_the_ends_of_every_axis(layout: Layout) -> None:
    corners = corner_ranks(layout)
    assert len(corners) == len({*corners}) <= max(64, 2 ** len(layout.axes) + len(layout.axes))
    coordinates = layout.coordinates(corners)
    for axis, column in zip(layout.axes, coordinates.T, strict=True):
        size = layout.size(axis)
        assert {0, size - 1} <= {*column.tolist()} <= {0, min(1, size - 1), size - 1}
        assert 1 in column or size < 3
    for rank in corners:
        assert standing_corner(layout, rank, corners) == rank


@law
@given(layouts(), st.data())
def test_axes_of_a_group_are_those_of_its_members(layout: Layout, data: st.DataObject) -> None:
    real = [axis for axis in layout.axes if layout.size(axis) > 1]
    axes = data.draw(st.lists(st.sampled_from(real), unique=True)) if real else []
    rank = data.draw(st.sampled_from([*map(int, layout.grid.ravel()[:50])]))
    members = layout.peers(rank, *axes).tolist() if axes else [rank]
    assert {*find_axes(layout, members)} == {*axes}


@given(st.lists(st.integers(2, 4), min_size=1, max_size=4))
def test_a_layout_is_derived_from_the_groups_of_rank_0(shape: list[int]) -> None:
    sizes = {f"x{number}": size for number, size in enumerate(shape)}
    layout = Layout.of(sizes)
    groups = [
        GroupRecord(tuple(layout.peers(0, axis).tolist()), 0, f"mesh_{axis}") for axis in sizes
    ]
    world = GroupRecord(tuple(range(prod(shape))), 0, "default_pg")
    assert derive_layout(prod(shape), [world, *groups]) == sizes


def test_a_layout_is_refined_by_groups_of_several_meshes() -> None:
    """torchtitan makes batch = dp_replicate x dp_shard, and fsdp = dp_shard x cp."""
    layout = Layout(pp=2, dp_replicate=4, dp_shard=8, cp=2, tp=8)
    joint = {"batch": ("dp_replicate", "dp_shard"), "fsdp": ("dp_shard", "cp")}
    axes = {**{name: (name,) for name in ("pp", "dp_replicate", "cp", "tp")}, **joint}
    groups = [
        GroupRecord(tuple(layout.peers(0, *each).tolist()), 0, f"meshkit {name}")
        for name, each in axes.items()
    ]
    derived = derive_layout(layout.num_ranks, groups)
    assert derived == {"pp": 2, "dp_replicate": 4, "stride16": 8, "cp": 2, "tp": 8}
    assert derive_layout(6, []) == {"rank": 6}
    unnamed = [GroupRecord(tuple(range(4)), 0, "undefined")]
    assert derive_layout(64, unnamed) == {"stride4": 16, "stride1": 4}


def test_a_barrier_takes_the_steps_of_a_tree_there_and_back() -> None:
    for ranks in (1, 2, 3, 4, 5, 8, 9, 299):
        assert VOLUMES["barrier"](ranks) == (0, 2 * math.ceil(math.log2(ranks)))
