"""Which axes cross nodes, counted one by one and by numpy; and ranks placed by node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError, Topology
from meshkit.core.topology.crossing import Crossing, crossings, placed
from meshkit.testing import layouts

law = settings(deadline=None, max_examples=60, database=None)


@st.composite
def grounds(draw: st.DrawFn) -> tuple[Layout, Topology]:
    """A layout of up to 24 ranks, in any order, on hosts that hold any of them, in racks."""
    layout = draw(layouts(max_ranks=24, max_axes=3, with_ranks=True))
    world = int(layout.grid.max()) + 1
    seed = draw(st.integers(0, 2**16))
    hosts = np.random.default_rng(seed).integers(0, draw(st.integers(1, 5)), world)
    topology = Topology.of_hosts(hosts.tolist())
    if draw(st.booleans()):
        topology = topology.with_level("rack", [node // 2 for node in range(topology.num_nodes)])
    return layout, topology


def rings(layout: Layout, axis: str) -> list[list[int]]:
    """The groups of an axis, one by one, from peers."""
    found = {tuple(layout.peers(int(rank), axis).tolist()) for rank in layout.grid.flat}
    return [list(group) for group in found]


def neighbours(group: list[int]) -> set[frozenset[int]]:
    """The pairs along a ring; a ring of two has one, a ring of one none."""
    turned = [*group[1:], group[0]]
    return {frozenset(pair) for pair in zip(group, turned, strict=True) if len(set(pair)) == 2}


@settings(law, max_examples=25)
@given(grounds())
def test_groups_and_pairs_counted_one_by_one(ground: tuple[Layout, Topology]) -> None:
    layout, topology = ground
    for level in topology.levels:
        found = crossings(layout, topology, level=level)
        assert list(found) == list(layout.axes)
        for axis, crossing in found.items():
            groups = rings(layout, axis)
            where = {r: int(topology.domain_of(level, r)) for group in groups for r in group}
            spans = [len({where[rank] for rank in group}) for group in groups]
            pairs = [pair for group in groups for pair in neighbours(group)]
            apart = [pair for pair in pairs if len({where[rank] for rank in pair}) == 2]
            assert crossing == Crossing(
                axis,
                level,
                groups=len(groups),
                crossing_groups=sum(span > 1 for span in spans),
                fewest=min(spans),
                most=max(spans),
                pairs=len(pairs),
                crossing_pairs=len(apart),
            )
            assert crossing.crosses == (max(spans) > 1) == bool(apart)


@pytest.mark.parametrize(
    ("sizes", "hosts", "axis", "text"),
    [
        ({"dp": 2, "tp": 4}, "aaaabbbb", "tp", "tp stays inside nodes"),
        ({"dp": 2, "tp": 4}, "aaaabbbb", "dp", "dp crosses nodes: 4 of 4 groups span 2 nodes"),
        ({"dp": 2, "tp": 4}, "aaaaabbb", "tp", "tp crosses nodes: 1 of 2 groups span 2 nodes"),
        (
            {"dp": 2, "tp": 4},
            "aabcabcd",
            "tp",
            "tp crosses nodes: 2 of 2 groups span up to 4 nodes",
        ),
        ({"dp": 2, "tp": 4}, "abcaabca", "tp", "tp crosses nodes: 2 of 2 groups span 3 nodes"),
        (
            {"dp": 2, "tp": 4},
            "aaaaabca",
            "tp",
            "tp crosses nodes: 1 of 2 groups span up to 3 nodes",
        ),
    ],
)
def test_said_in_words(sizes: dict[str, int], hosts: str, axis: str, text: str) -> None:
    assert str(crossings(Layout(**sizes), Topology.of_hosts([*hosts]))[axis]) == text


def test_racks_are_racks_in_words() -> None:
    topology = Topology.even(8, nodes=4, racks=2)
    found = crossings(Layout(dp=2, tp=4), topology, level="rack")
    assert str(found["dp"]) == "dp crosses racks: 4 of 4 groups span 2 racks"
    assert str(found["tp"]) == "tp stays inside racks"


def test_part_of_a_topology_is_enough_and_none_of_it_is_missing() -> None:
    topology = Topology.even(16, nodes=4)
    assert not crossings(Layout(tp=4, ranks=range(4, 8)), topology)["tp"].crosses
    with pytest.raises(CoordinateError, match="rank 16 is not in the topology"):
        crossings(Layout(tp=4, ranks=range(14, 18)), topology)
    with pytest.raises(SpecError, match="no level 'rack'"):
        crossings(Layout(tp=16), topology, level="rack")


def test_placed_by_hand_and_unchanged_if_nothing_gets_better() -> None:
    dealt = Topology.of_hosts(["a", "b"] * 4)
    layout = Layout(dp=2, tp=4)
    assert placed(layout, dealt).groups("tp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    backwards = Layout(dp=2, tp=4, ranks=[7, 6, 5, 4, 3, 2, 1, 0])
    assert placed(backwards, Topology.even(8, nodes=2)) is backwards
    uneven = Topology.of_sizes([5, 4, 3])  # the node of 4 comes first: its group is not split
    assert crossings(placed(Layout(dp=3, tp=4), uneven), uneven)["tp"].crossing_groups == 1


@law
@given(grounds())
def test_a_placement_keeps_the_ranks_and_the_innermost_axis_inside_if_an_order_by_nodes_does(
    ground: tuple[Layout, Topology],
) -> None:
    layout, topology = ground
    new = placed(layout, topology)
    assert new.sizes == layout.sizes
    assert sorted(new.ranks) == sorted(layout.ranks)
    assert new == placed(layout, topology)
    long_axes = [axis for axis, size in layout.sizes.items() if size > 1]
    if not long_axes:
        return
    inner = long_axes[-1]
    ranks = np.sort(layout.grid, axis=None)
    nodes = topology.node_of(ranks)
    before = crossings(layout, topology)[inner].crossing_pairs
    assert crossings(new, topology)[inner].crossing_pairs <= before or topology.outer
    if len(topology.levels) > 1 or len({*nodes.tolist()}) > 5:
        return
    by_node = [ranks[nodes == node] for node in {*nodes.tolist()}]
    for order in itertools.permutations(by_node):
        other = Layout(ranks=np.concatenate(order), **layout.sizes)
        if not crossings(other, topology)[inner].crosses:
            assert not crossings(new, topology)[inner].crosses


@law
@given(
    layouts(max_ranks=24, max_axes=3),
    st.integers(0, 2**16),
    st.sampled_from([1, 2, 3, 4, 6]),
)
def test_on_equal_nodes_no_more_pairs_cross_than_in_the_order_by_nodes(
    layout: Layout, seed: int, size: int
) -> None:
    hosts = np.random.default_rng(seed).permutation(np.arange(layout.num_ranks) // size)
    topology = Topology.of_hosts(hosts.tolist())
    if len({*topology.sizes.tolist()}) > 1:
        return
    by_node = Layout(
        ranks=np.argsort(topology.node_of(layout.ranks), kind="stable"), **layout.sizes
    )
    new = placed(layout, topology)
    counts = [
        [crossings(each, topology)[axis].crossing_pairs for axis in reversed(layout.axes)]
        for each in (new, by_node)
    ]
    assert counts[0] <= counts[1]


def test_a_hundred_thousand_ranks() -> None:
    layout = Layout(pp=16, dp=125, sp=5, tp=10)
    topology = Topology.of_hosts(np.arange(100_000) % 12_500)
    by_axis = crossings(layout, topology)
    assert by_axis["tp"].crossing_pairs == by_axis["tp"].pairs == 100_000
