"""Axes that cross nodes, counted one by one; placements and suggested fixes, tried."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, Topology
from meshkit.layout.crossings import (
    Crossing,
    check_crossings,
    check_policies,
    crossings,
    placed,
    suggest_fix,
)
from meshkit.testing import layouts

law = settings(deadline=None, max_examples=60, database=None)

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=16)


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
    by_axis = {tuple(layout.peers(int(rank), axis).tolist()) for rank in layout.grid.flat}
    return [list(group) for group in by_axis]


def neighbours(group: list[int]) -> set[frozenset[int]]:
    """The pairs along a ring; a ring of two has one, a ring of one none."""
    turned = [*group[1:], group[0]]
    return {frozenset(pair) for pair in zip(group, turned, strict=True) if len(set(pair)) == 2}


@settings(law, max_examples=25)
@given(grounds())
def test_groups_and_pairs_counted_one_by_one(ground: tuple[Layout, Topology]) -> None:
    layout, topology = ground
    for level in topology.levels:
        by_axis = crossings(layout, topology, level=level)
        assert list(by_axis) == list(layout.axes)
        for axis, crossing in by_axis.items():
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


def test_the_text_of_a_crossing() -> None:
    def text(hosts: str) -> str:
        return str(crossings(Layout(dp=2, tp=4), Topology.of_hosts([*hosts]))["tp"])

    assert text("aaaabbbb") == "tp stays inside nodes"
    assert text("aaaaabbb") == "tp crosses nodes: 1 of 2 groups span 2 nodes"
    assert text("aabcabcd") == "tp crosses nodes: 2 of 2 groups span up to 4 nodes"
    assert text("abcaabca") == "tp crosses nodes: 2 of 2 groups span 3 nodes"
    assert text("aaaaabca") == "tp crosses nodes: 1 of 2 groups span up to 3 nodes"


def test_a_placement_is_unchanged_if_nothing_gets_better() -> None:
    backwards = Layout(dp=2, tp=4, ranks=[7, 6, 5, 4, 3, 2, 1, 0])
    assert placed(backwards, Topology.even(8, nodes=2)) is backwards
    uneven = Topology.of_sizes([5, 4, 3])  # the node of 4 comes first: its group is not split
    for sizes in ({"dp": 3, "tp": 4}, {"dp": 3, "tp": 4, "x": 1}):
        assert crossings(placed(Layout(sizes), uneven), uneven)["tp"].crossing_groups == 1


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


def test_the_default_is_a_warning_for_tp() -> None:
    layout = Layout(dp=2, tp=4)
    assert check_policies(layout, None) == {"tp": "warn"}
    assert check_policies(layout, {"dp": "error", "tp": "allow"}) == {"dp": "error"}
    assert check_policies(Layout(dp=8), None) == check_policies(Layout(tp=1), None) == {}
    both = check_policies(layout, {"tp": "error"}, within=["dp", "tp"])
    assert both == {"dp": "warn", "tp": "error"}


@law
@given(grounds(), st.data())
def test_the_evidence_names_exactly_the_axes_that_cross(
    ground: tuple[Layout, Topology], data: st.DataObject
) -> None:
    layout, topology = ground
    policies = {axis: data.draw(st.sampled_from(["error", "warn"])) for axis in layout.axes}
    verdict = check_crossings(layout, topology, policies)
    crossing = {axis for axis, item in crossings(layout, topology).items() if item.crosses}
    for policy, error in (("error", verdict.error), ("warn", verdict.warning)):
        named = {line.split()[0] for line in str(error).splitlines() if " crosses nodes: " in line}
        assert named == {axis for axis in crossing if policies[axis] == policy}


PLACE = "place the ranks by node (place)"


def test_the_order_of_suggested_fixes() -> None:
    def fix(hosts: str, **sizes: int) -> str:
        return suggest_fix(Layout(**sizes), Topology.of_hosts([*hosts]), "tp")

    assert fix("abababab", dp=2, tp=4) == PLACE
    assert fix("aaaabbbb", tp=4, dp=2) == 'order the axes "dp tp" (order)'
    assert fix("abcd" * 4, dp=2, tp=4, sp=2) == f'order the axes "dp sp tp" (order) and {PLACE}'
    assert fix("aaaaaabbbbbb", dp=3, tp=4) == "dp=6 tp=2, which divides the ranks of every node"


@law
@given(layouts(max_ranks=24, max_axes=3), st.integers(1, 4), st.booleans(), st.data())
def test_each_suggested_fix_works(
    layout: Layout, nodes: int, is_cyclic: bool, data: st.DataObject
) -> None:
    hosts = np.arange(layout.num_ranks) % nodes
    topology = Topology.of_hosts((hosts if is_cyclic else np.sort(hosts)).tolist())
    axis = data.draw(st.sampled_from(layout.axes))
    text = suggest_fix(layout, topology, axis)
    inner = Layout(**{n: layout.sizes[n] for n in (*(a for a in layout.axes if a != axis), axis)})
    fixed = inner if "(order)" in text else layout
    fixed = placed(fixed, topology) if PLACE in text else fixed
    if "divides" in text:
        size = int(text.split(",")[0].rpartition("=")[2])
        sizes = {"dp_left": layout.num_ranks // size, axis: size}
        fixed = placed(Layout(**sizes), topology)
        assert layout.sizes[axis] % size == 0
        assert any(held % layout.sizes[axis] for held in topology.sizes.tolist())
    assert not crossings(fixed, topology)[axis].crosses
