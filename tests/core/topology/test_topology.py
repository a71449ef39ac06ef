"""Topologies are equal however their nodes are given. tests/messages has the errors."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshkit
from meshkit import CoordinateError, SpecError, Topology
from meshkit.core.topology.topology import Level, check_nested, name_domains, number_labels

law = settings(deadline=None, max_examples=60, database=None)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=6)
HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=16)
LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def nodes(topology: Topology) -> list[int]:
    return [int(node) for node in topology.node_of(range(topology.world_size))]


def test_it_is_at_the_door() -> None:
    assert meshkit.Topology is Topology


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
@given(st.integers(1, 9), st.integers(1, 9))
def test_even_nodes_are_sizes_that_are_equal(num_nodes: int, each: int) -> None:
    topology = Topology.even(num_nodes * each, nodes=num_nodes)
    assert topology == Topology.of_sizes([each] * num_nodes)
    assert nodes(topology) == [rank // each for rank in range(num_nodes * each)]


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


def test_hosts_in_blocks_cost_no_array_of_ranks() -> None:
    blocks = Topology.of_hosts(["node0"] * 3 + ["node1"] * 2)
    assert blocks._by_rank is None
    assert Topology.of_hosts([0, 0, 0, 1, 1]) == Topology.of_sizes([3, 2]) != blocks


def test_a_level_lists_a_domain_for_each_node() -> None:
    text = r"lists a domain for 3 nodes; the topology has 4\."  # not "3 domains": these are 2
    with pytest.raises(SpecError, match=text):
        Topology.even(8, nodes=4).with_level("rack", ["a", "a", "b"])


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
def test_said_in_words(topology: Topology, text: str) -> None:
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Topology.even(8, nodes=0),
        lambda: Topology.even(0, nodes=1),
        lambda: Topology.even(True, nodes=1),
        lambda: Topology.even(8, nodes=2.0),  # type: ignore[arg-type]
        lambda: Topology.even(8, nodes=3),
        lambda: Topology.even(8, nodes=16),
        lambda: Topology.even(8, nodes=4, racks=3),
        lambda: Topology.even(8, nodes=4, racks=0),
        lambda: Topology.even(2**63, nodes=1),
        lambda: Topology.of_sizes([]),
        lambda: Topology.of_sizes("78"),  # type: ignore[arg-type]
        lambda: Topology.of_sizes([8, 0]),
        lambda: Topology.of_sizes([2**62, 2**62]),
        lambda: Topology.of_hosts([]),
        lambda: Topology.of_hosts("aabb"),
        lambda: Topology.even(8, nodes=4).with_level("rack", [0, 1]),
        lambda: Topology.even(8, nodes=4).with_level("node", [0, 0, 1, 1]),
        lambda: Topology.even(8, nodes=4).with_level("device", [0, 0, 1, 1]),
        lambda: Topology.even(8, nodes=4, racks=2).with_level("rack", [0, 0, 1, 1]),
        lambda: Topology.even(8, nodes=4, racks=2).with_level("hall", [0, 1, 1, 1]),
        lambda: Topology.even(8, nodes=4).domain_of("rack", [0]),
        lambda: Topology.even(8, nodes=4).domain_names("rack"),
    ],
)
def test_what_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(SpecError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("ranks", [[8], [-1], [0.5], [[0], [9]], ["0"]])
def test_ranks_that_are_not_there(ranks: object) -> None:
    for topology in (Topology.even(8, nodes=2), Topology.of_hosts(["a", "b"] * 4)):
        with pytest.raises(CoordinateError):
            topology.node_of(ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize("node", [2, -1, True, "0"])
def test_nodes_that_are_not_there(node: object) -> None:
    with pytest.raises(CoordinateError):
        Topology.even(8, nodes=2).ranks_of(node)  # type: ignore[arg-type]


def test_a_hundred_thousand_ranks_take_a_moment() -> None:
    begun = time.process_time()
    topology = Topology.even(100_000, nodes=12_500, racks=125)
    found = topology.domain_of("rack", np.arange(100_000))
    assert time.process_time() - begun < 1
    assert np.bincount(found).tolist() == [800] * 125


def level(name: str, of_node: list[int]) -> Level:
    return Level(name, np.array(of_node), name_domains(name, range(max(of_node) + 1)))


@law
@given(LABELS)
def test_labels_are_numbered_as_they_come(labels: list[int]) -> None:
    numbers, names = number_labels("rack", labels)
    order = [*dict.fromkeys(labels)]
    assert [order[number] for number in numbers] == labels
    assert numbers.dtype == np.int64
    assert names == tuple(f"rack {label}" for label in order)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "b"], ("b", "a")),
        ([np.int64(3)], ("rack 3",)),
        (["0", "1"], ("0", "1")),
        ([("pod", 1), 2], ("('pod', 1)", "2")),
        ([], ()),
    ],
)
def test_numbers_are_named_by_their_level_and_names_are_kept(
    labels: list[Hashable], names: tuple[str, ...]
) -> None:
    assert number_labels("rack", labels)[1] == names


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
    inside = (level("rack", numbers),)
    if torn:
        line = r"the level 'pod' would split rack \d into several pods"
        with pytest.raises(SpecError, match=line):
            check_nested(level("pod", outer), inside)
    else:
        check_nested(level("pod", outer), inside)
    check_nested(level("pod", outer), ())
