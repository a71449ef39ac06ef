"""Topologies, host files, axes that cross nodes, and placement. tests/messages has the errors."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError, Topology
from meshkit.core.topology import (
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
    one_by_one = [node for node, size in enumerate(sizes) for _ in range(size)]
    assert nodes(topology) == one_by_one
    assert nodes(topology) == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert topology.sizes.tolist() == sizes
    assert (topology.num_nodes, topology.world_size) == (len(sizes), sum(sizes))
    assert topology.names == tuple(f"node {node}" for node in range(len(sizes)))


@law
@given(HOSTS)
def test_hosts_in_any_order(hosts: list[str]) -> None:
    topology = Topology.of_hosts(iter(hosts))
    assert [topology.names[node] for node in nodes(topology)] == hosts
    assert nodes(topology)[0] == 0
    assert sorted(set(nodes(topology))) == [*range(topology.num_nodes)]
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


@pytest.mark.parametrize("number", [0, -1, 2**31 + 1, 1.5])
def test_a_number_of_ranks_nodes_or_racks_is_an_int_from_1_on(number: int) -> None:
    for options in ({"nodes": number}, {"nodes": 2, "racks": number}):
        with pytest.raises(SpecError, match=f"{[*options][-1]} is {number}"):
            Topology.even(8, **options)
    with pytest.raises(SpecError, match=f"world_size is {number}"):
        Topology.even(number, nodes=2)
    with pytest.raises(SpecError, match=f"the size of node 1 is {number}"):
        Topology.of_sizes([4, number])


def test_hosts_in_blocks_cost_no_array_of_ranks() -> None:
    blocks = Topology.of_hosts(["node0"] * 3 + ["node1"] * 2)
    assert blocks._by_rank is None
    assert Topology.of_hosts([0, 0, 0, 1, 1]) == Topology.of_sizes([3, 2]) != blocks


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
    ranks = range(16)
    assert topology.domain_of("node", ranks).tolist() == [rank // 2 for rank in ranks]
    assert topology.domain_of("rack", ranks).tolist() == [rank // 4 for rank in ranks]
    assert topology.domain_of("hall", ranks).tolist() == [rank // 8 for rank in ranks]
    assert topology.domain_names("hall") == ("hall 1", "hall 0")
    assert topology.domain_names("rack") == ("rack 0", "rack 1", "rack 2", "rack 3")
    assert topology.domain_names("node") == topology.names
    assert Topology.even(4, nodes=2).levels == ("node",)
    cyclic = Topology.of_hosts([*"abcdabcd"]).with_level("rack", ["r", "r", "s", "s"])
    assert cyclic.domain_of("rack", range(8)).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (Topology.even(1, nodes=1), "1 rank on 1 node of 1"),
        (Topology.of_sizes([3, 1, 2]), "6 ranks on 3 nodes of 1 to 3"),
        (Topology.even(8, nodes=4, racks=1), "8 ranks on 4 nodes of 2, in 1 rack"),
        (
            Topology.even(16, nodes=8, racks=4).with_level("hall", [0] * 4 + [1] * 4),
            "16 ranks on 8 nodes of 2, in 4 racks, in 2 halls",
        ),
        (
            Topology.of_hosts(["a", "b"] * 5),
            "10 ranks on 2 nodes of 5, not in blocks: node 0 has ranks 0, 2, 4, 6, ...",
        ),
    ],
)
def test_the_text_of_a_topology(topology: Topology, text: str) -> None:
    assert str(topology) == text


def test_equal_where_ranks_sit_alike_and_names_are_the_same() -> None:
    hosts = ["a", "b", "a", "b"]
    same = [Topology.of_hosts(hosts), Topology.of_hosts(tuple(hosts))]
    same.append(pickle.loads(pickle.dumps(same[0])))
    same.append(copy.deepcopy(same[0]))
    assert len({*same}) == 1
    racked = same[0].with_level("rack", [0, 1])
    others = [
        Topology.of_hosts(sorted(hosts)),
        Topology.of_hosts(["c", "b", "c", "b"]),
        Topology.of_hosts([*hosts, "a"]),
        racked,
        same[0].with_level("rack", [0, 0]),
        same[0].with_level("rack", ["x", "y"]),
        same[0].with_level("hall", [0, 1]),
    ]
    assert len({same[0], *others}) == 8
    assert same[0] != hosts


def test_nothing_can_be_changed() -> None:
    topology = Topology.of_hosts(["a", "b", "a"]).with_level("rack", [0, 1])
    for array in (topology.sizes, topology.outer[0].of_node):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    given = np.array([2, 2])
    kept = Topology.of_sizes(given)
    given[0] = 9
    assert kept.world_size == 4
    with pytest.raises(AttributeError):
        topology.names = ()  # type: ignore[misc]


@pytest.mark.parametrize("ranks", [[8], [-1], [0.5], [[0], [9]], ["0"]])
def test_ranks_that_are_not_there(ranks: object) -> None:
    for topology in (Topology.even(8, nodes=2), Topology.of_hosts(["a", "b"] * 4)):
        with pytest.raises(CoordinateError):
            topology.node_of(ranks)  # type: ignore[arg-type]


@law
@given(LABELS)
def test_labels_are_numbered_as_they_come(labels: list[int]) -> None:
    numbers, names = number_labels("rack", labels)
    order = [*dict.fromkeys(labels)]
    assert [order[number] for number in numbers] == labels
    assert numbers.dtype == np.int64
    assert names == tuple(f"rack {label}" for label in order)


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


HOST_NAMES = st.text("abcxyz019-.", min_size=1, max_size=6)


@given(st.lists(HOST_NAMES, min_size=1, max_size=20))
def test_hosts_alone_are_those_of_the_list(hosts: list[str]) -> None:
    assert parse_hostfile("\n".join(hosts)) == Topology.of_hosts(hosts)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.integers(1, 3))
def test_every_level_is_read(nodes: list[int], levels: int) -> None:
    """Node n is in rack n // 2, row n // 4, hall n // 8."""
    text = "\n".join(
        " ".join([f"n{n}", *(f"{'rwh'[i]}{n >> (i + 1)}" for i in range(levels))]) for n in nodes
    )
    found = parse_hostfile(text)
    assert found.levels == (*reversed(LEVELS[1:][:levels]), "node")
    for i in range(levels):
        domains = found.domain_of(LEVELS[1:][i], range(len(nodes)))
        names = [found.domain_names(LEVELS[1:][i])[d] for d in domains]
        assert names == [f"{'rwh'[i]}{n >> (i + 1)}" for n in nodes]


def test_comments_and_empty_lines_are_passed_over() -> None:
    text = "# rank by rank\n\n a  r1 # the first\nb r1\n"
    assert parse_hostfile(text) == parse_hostfile("a r1\nb r1")


def test_racks_of_equal_names_in_two_rows_are_different_racks() -> None:
    topology = parse_hostfile("a r1 x\nb r2 x\nc r1 y\n")
    assert topology.domain_of("rack", [0, 1, 2]).tolist() == [0, 1, 2]
    assert topology.domain_names("rack") == ("x.r1", "r2", "y.r1")
    assert topology.domain_of("row", [0, 1, 2]).tolist() == [0, 0, 1]


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
def test_the_text_of_a_crossing(sizes: dict[str, int], hosts: str, axis: str, text: str) -> None:
    assert str(crossings(Layout(**sizes), Topology.of_hosts([*hosts]))[axis]) == text


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


LAYOUT = Layout(dp=2, tp=4)


CYCLIC = Topology.of_hosts(["a", "b"] * 4)


def test_the_default_is_a_warning_for_tp() -> None:
    assert check_policies(LAYOUT, None) == {"tp": "warn"}
    assert check_policies(LAYOUT, {"dp": "error"}) == {"dp": "error", "tp": "warn"}
    assert check_policies(LAYOUT, {"tp": "allow"}) == {}
    assert check_policies(Layout(dp=8), None) == {}
    both = check_policies(LAYOUT, {"tp": "error"}, within=["dp", "tp"])
    assert both == {"dp": "warn", "tp": "error"}


def test_error_and_warning_have_their_own_evidence() -> None:
    verdict = check_crossings(LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "warn"})
    assert str(verdict.error).splitlines()[:2] == [
        "dp crosses nodes.",
        "  dp crosses nodes: 4 of 4 groups span 2 nodes; ranks 0, 4 are on node 0, node 4.",
    ]
    assert str(verdict.warning).splitlines()[1] == (
        "  tp crosses nodes: 2 of 2 groups span 4 nodes; "
        "ranks 0-3 are on node 0, node 1, node 2, node 3."
    )


@given(layouts(max_ranks=24), st.data())
def test_the_evidence_names_exactly_the_axes_that_cross(
    layout: Layout, data: st.DataObject
) -> None:
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=24, max_size=24))
    topology = Topology.of_hosts([*hosts, *["d"] * (max(layout.ranks) + 1)])
    policies = {axis: data.draw(st.sampled_from(["error", "warn"])) for axis in layout.axes}
    verdict = check_crossings(layout, topology, policies)
    crossing = {axis for axis, item in crossings(layout, topology).items() if item.crosses}
    for policy, error in (("error", verdict.error), ("warn", verdict.warning)):
        named = {line.split()[0] for line in str(error).splitlines() if " crosses nodes: " in line}
        assert named == {axis for axis in crossing if policies[axis] == policy}


PLACE = "place the ranks by node (place)"


@pytest.mark.parametrize(
    ("layout", "topology", "text"),
    [
        (Layout(dp=2, tp=4), CYCLIC, PLACE),
        (Layout(tp=4, dp=2), Topology.even(8, nodes=2), 'order the axes "dp tp" (order)'),
        (
            Layout(dp=2, tp=4, sp=2),
            Topology.of_hosts([0, 1, 2, 3] * 4),
            f'order the axes "dp sp tp" (order) and {PLACE}',
        ),
        (
            Layout(dp=3, tp=4),
            Topology.of_sizes([6, 6]),
            "dp=6 tp=2, which divides the ranks of every node",
        ),
    ],
)
def test_suggested_fixes(layout: Layout, topology: Topology, text: str) -> None:
    assert suggest_fix(layout, topology, "tp") == text


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, Topology]:
    sizes = draw(st.permutations([draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2]))
    axes = draw(st.permutations(["dp", "sp", "tp"]))
    layout = Layout(**dict(zip(axes, sizes, strict=True)))
    nodes = draw(st.integers(1, 4))
    hosts = np.arange(layout.num_ranks) % nodes
    return layout, Topology.of_hosts((hosts if draw(st.booleans()) else np.sort(hosts)).tolist())


@law
@given(cases(), st.sampled_from(["dp", "sp", "tp"]))
def test_each_suggested_fix_works(case: tuple[Layout, Topology], axis: str) -> None:
    layout, topology = case
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


def test_arrays_of_the_caller_stay_writable() -> None:
    sizes, ranks = np.array([2, 2]), np.array([3, 1, 2, 0])
    topology, layout = Topology(sizes, ["a", "b"]), Layout(dp=2, tp=2, ranks=ranks)
    sizes[...], ranks[...] = 9, 9
    assert topology.node_of(range(4)).tolist() == [0, 0, 1, 1]
    assert layout.ranks.tolist() == [3, 1, 2, 0]
