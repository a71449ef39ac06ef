"""Topologies: nodes and levels. tests/messages has the errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, SpecError, Topology
from meshkit.layout.topology import LEVELS, number_labels, parse_hostfile

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
def test_every_level_of_a_host_file_is_read(nodes: list[int], levels: int) -> None:
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
