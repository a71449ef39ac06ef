"""Which groups are measured alone: how many, which ones, on which nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.core.measurement import ALONE, CONCURRENT, OVERLAP
from meshkit.core.targets import every_target, typed_targets
from meshkit.core.turns import sampled, turns
from meshkit.testing import layouts

quick = settings(deadline=None, max_examples=60, database=None)


@quick
@given(layouts(max_ranks=64), st.integers(1, 6) | st.none(), st.integers(1, 5))
def test_a_sample_is_so_many_of_them_with_the_first_and_the_last(
    layout: Layout, alone: int | None, hosts: int
) -> None:
    place = {int(rank): f"h{rank % hosts}" for rank in layout.grid.flat}
    for target in every_target(layout):
        rows = layout.groups(*target.span)
        found = sampled(rows, place, alone)
        assert found == sorted(set(found))
        assert len(found) == turns(layout, target, ALONE, alone)
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
    nodes = [blocks[int(rows[group][0])] for group in sampled(rows, blocks, alone)]
    assert len(set(nodes)) == alone


def test_nodes_that_come_in_turn_are_all_among_it() -> None:
    # sixteen groups of two ranks, dealt to four nodes in turn: every fourth is on the same node
    rows = np.arange(32).reshape(16, 2)
    cyclic = {int(rank): f"h{group % 4}" for group, row in enumerate(rows) for rank in row}
    found = sampled(rows, cyclic, 4)
    assert {cyclic[int(rows[group][0])] for group in found} == {"h0", "h1", "h2", "h3"}
    assert (found[0], found[-1]) == (0, 15)


def test_groups_over_nodes_are_told_apart_by_all_their_nodes() -> None:
    # all begin on the same node; the second rank tells them apart
    rows = np.array([[0, 4], [1, 5], [2, 6], [3, 7]])
    hosts = {0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 5: "c", 6: "b", 7: "d"}
    assert sampled(rows, hosts, 3) == [0, 2, 3]  # in the order of nodes: 0 2 1 3
    assert sampled(rows, {**hosts, 5: "b", 6: "c"}, 3) == [0, 1, 3]
    assert sampled(rows, hosts, 1) == [0]


def test_the_first_group_leads_whatever_its_nodes() -> None:
    rows = np.array([[0, 4], [1, 5], [2, 6]])
    hosts = {0: "a", 4: "b", 1: "a", 5: "a", 2: "b", 6: "b"}
    assert sampled(rows, hosts, 2) == [0, 2]


def test_only_alone_takes_turns() -> None:
    layout = Layout(dp=100, tp=2)
    (tp,) = typed_targets(layout, ["tp"])
    assert [turns(layout, tp, mode, 16) for mode in (ALONE, CONCURRENT, OVERLAP)] == [16, 1, 1]
    assert turns(layout, tp, ALONE, 200) == turns(layout, tp, ALONE, None) == 100


def test_the_node_of_the_first_rank_comes_first_in_the_order() -> None:
    rows = np.array([[0, 4], [1, 5], [2, 6], [3, 7]])
    hosts = {0: "a", 4: "b", 1: "b", 5: "a", 2: "a", 6: "c", 3: "d", 7: "d"}
    assert sampled(rows, hosts, 3) == [0, 2, 3]  # a b, a c, b a, d d
