"""Topologies, host files, axes that cross nodes, and placement. tests/messages has the errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError, Topology
from meshkit.layout.topology import (
    LEVELS,
    Crossing,
    check_crossings,
    check_policies,
    crossings,
    number_labels,
    parse_hostfile,
    placed,
    suggest_fix,
)
from meshkit.testing import layouts

law = settings(deadline=None, max_examples=60, database=None)


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=6)


HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=16)


LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def nodes(topology: Topology) -> list[int]:
    return [int(node) for node in topology.node_of(range(topology.world_size))]


@law
@given(SIZES)
def test_sizes_are_consecutive_ranks(sizes: list[int]) -> None:
    topology = Topology.of_sizes(sizes)
    assert nodes(topology) == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert topology.sizes.tolist() == sizes
    assert (topology.num_nodes, topology.world_size) == (len(sizes), sum(sizes))
    assert topology.names == tuple(f"node {node}" for node in range(len(sizes)))


@law
@given(HOSTS)
def test_hosts_in_any_order(hosts: list[str]) -> None:
    topology = Topology.of_hosts(iter(hosts))
    assert [topology.names[node] for node in nodes(topology)] == hosts
    assert [*dict.fromkeys(nodes(topology))] == [*range(topology.num_nodes)]
    assert topology.sizes.tolist() == [hosts.count(name) for name in topology.names]
    assert topology.world_size == len(hosts)


@law
@given(HOSTS)
def test_the_ranks_of_a_node_are_those_that_are_on_it(hosts: list[str]) -> None:
    for topology in (Topology.of_hosts(hosts), Topology.of_hosts(sorted(hosts))):
        held = [topology.ranks_of(node).tolist() for node in range(topology.num_nodes)]
        assert sorted(itertools.chain(*held)) == [*range(len(hosts))]
        assert all(set(topology.node_of(ranks)) == {node} for node, ranks in enumerate(held))
        assert all(ranks == sorted(ranks) for ranks in held)


@pytest.mark.parametrize("number", [0, 2**31 + 1])
def test_a_number_of_ranks_nodes_or_racks_is_an_int_from_1_on(number: int) -> None:
    with pytest.raises(SpecError, match=f"racks is {number}"):
        Topology.even(8, nodes=2, racks=number)
    for sizes in ([4, number], np.array([4, number])):
        with pytest.raises(SpecError, match=f"the size of node 1 is {number}"):
            Topology.of_sizes(sizes)


def test_questions_keep_the_shape_of_the_ranks() -> None:
    topology = Topology.of_sizes([1, 3])
    assert topology.node_of(0).shape == ()
    asked = np.array([[0, 1], [2, 3]], dtype=np.int32)
    for found in (
        topology.node_of(asked),
        topology.with_level("rack", ["x", "y"]).domain_of("rack", asked),
    ):
        assert found.tolist() == [[0, 1], [1, 1]]
        assert found.dtype == np.int64
    assert topology.node_of([]).shape == (0,)
    dealt = Topology.of_hosts(["b", "a", "b", "a"])
    assert dealt.node_of(asked).tolist() == [[0, 1], [0, 1]]
    assert dealt.node_of(asked).dtype == np.int64


def test_levels_go_from_the_outside_in() -> None:
    topology = Topology.even(16, nodes=8, racks=4).with_level("hall", [1, 1, 1, 1, 0, 0, 0, 0])
    assert topology.levels == ("hall", "rack", "node")
    for level, size in (("node", 2), ("rack", 4), ("hall", 8)):
        assert topology.domain_of(level, range(16)).tolist() == [rank // size for rank in range(16)]
    assert topology.domain_names("hall") == ("hall 1", "hall 0")
    assert topology.domain_names("node") == topology.names
    cyclic = Topology.of_hosts([*"abcdabcd"]).with_level("rack", ["r", "r", "s", "s"])
    assert cyclic.domain_of("rack", range(8)).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_the_text_of_a_topology() -> None:
    assert str(Topology.even(1, nodes=1)) == "1 rank on 1 node of 1"
    assert str(Topology.of_sizes([3, 1, 2])) == "6 ranks on 3 nodes of 1 to 3"
    racked = Topology.even(16, nodes=8, racks=4).with_level("hall", [0] * 4 + [1] * 4)
    assert str(racked) == "16 ranks on 8 nodes of 2, in 4 racks, in 2 halls"
    dealt = "10 ranks on 2 nodes of 5, not in blocks: node 0 has ranks 0, 2, 4, 6, ..."
    assert str(Topology.of_hosts(["a", "b"] * 5)) == dealt


def test_ranks_that_are_not_there() -> None:
    for topology in (Topology.even(8, nodes=2), Topology.of_hosts(["a", "b"] * 4)):
        for ranks in ([8], [-1], [0.5], [[0], [9]], ["0"]):
            with pytest.raises(CoordinateError):
                topology.node_of(ranks)  # type: ignore[arg-type]


@law
@given(LABELS, st.data())
def test_levels_nest_where_no_domain_is_torn(inner: list[int], data: st.DataObject) -> None:
    numbers = number_labels("rack", inner)[0].tolist()
    outer = data.draw(st.lists(st.integers(0, 2), min_size=len(inner), max_size=len(inner)))
    torn = any(
        a == b and x != y
        for a, x in zip(numbers, outer, strict=True)
        for b, y in zip(numbers, outer, strict=True)
    )
    topology = Topology.even(len(inner), nodes=len(inner)).with_level("rack", numbers)
    if torn:
        with pytest.raises(
            SpecError, match=r"the level 'pod' would split rack \d into several pods"
        ):
            topology.with_level("pod", outer)
    else:
        assert topology.with_level("pod", outer).levels == ("pod", "rack", "node")


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.integers(0, 3))
def test_every_level_is_read(nodes: list[int], levels: int) -> None:
    """Node n is in rack n // 2, row n // 4, hall n // 8."""
    outer = [[f"{'rwh'[i]}{n >> (i + 1)}" for i in range(levels)] for n in nodes]
    lines = [" ".join([f"n{n}", *names]) for n, names in zip(nodes, outer, strict=True)]
    found = parse_hostfile("# rank by rank\n\n" + " # a comment\n".join(lines))
    assert (
        found.node_of(range(len(nodes))).tolist()
        == Topology.of_hosts(nodes).node_of(range(len(nodes))).tolist()
    )
    assert found.levels == (*reversed(LEVELS[1:][:levels]), "node")
    for i in range(levels):
        domains = found.domain_of(LEVELS[1:][i], range(len(nodes)))
        names = [found.domain_names(LEVELS[1:][i])[d] for d in domains]
        assert names == [row[i] for row in outer]
    rows = parse_hostfile("a r1 x\nb r2 x\nc r1 y\n")  # racks of equal names in two rows
    assert rows.domain_names("rack") == ("x.r1", "r2", "y.r1")


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
