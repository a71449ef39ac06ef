"""Which axes cross nodes and what they send: counted one by one, and by numpy."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError, Topology, UnknownAxisError
from meshkit.core.topology.crossing import Crossing, count_leaving, crossings, link_bytes
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


@law
@given(grounds(), st.data())
def test_bytes_out_added_up_one_by_one_and_as_many_come_in(
    ground: tuple[Layout, Topology], data: st.DataObject
) -> None:
    layout, topology = ground
    amounts = st.integers(0, 10**9)
    traffic = {axis: data.draw(amounts) for axis in layout.axes if data.draw(st.booleans())}
    for level in topology.levels:
        out: Counter[int] = Counter()
        into: Counter[int] = Counter()
        for axis, amount in traffic.items():
            for rank in layout.grid.flat:
                following = layout.neighbor(int(rank), axis)
                here, there = (int(topology.domain_of(level, r)) for r in (rank, following))
                out[here] += amount * (here != there)
                into[there] += amount * (here != there)
        found = link_bytes(layout, topology, traffic, level=level)
        assert found.tolist() == [out[node] for node in range(len(found))]
        assert found.tolist() == [into[node] for node in range(len(found))]
        assert len(found) == len(topology.domain_names(level))


@law
@given(grounds())
def test_an_axis_that_does_not_cross_sends_nothing(ground: tuple[Layout, Topology]) -> None:
    layout, topology = ground
    for axis, crossing in crossings(layout, topology).items():
        assert link_bytes(layout, topology, {axis: 1}).any() == crossing.crosses


def test_what_nobody_says_is_that_each_axis_sends_64_times_what_the_one_outside_does() -> None:
    layout, topology = Layout(pp=2, dp=2, tp=4), Topology.even(16, nodes=8)
    said = {"pp": 1, "dp": 64, "tp": 4096}
    assert link_bytes(layout, topology).tolist() == link_bytes(layout, topology, said).tolist()


def test_the_formula_on_a_grid_by_hand() -> None:
    # a node holds tp=4: each of its ranks sends to the other node along dp, none along tp
    layout = Layout(dp=2, tp=4)
    assert link_bytes(layout, Topology.even(8, nodes=2), {"dp": 10, "tp": 7}).tolist() == [40, 40]
    # dealt in turn, each sends along tp, none along dp
    dealt = Topology.of_hosts(["a", "b"] * 4)
    assert link_bytes(layout, dealt, {"dp": 10, "tp": 7}).tolist() == [28, 28]
    # 3 and 5: the ring of dp=0 is cut once each way, rank 3 is alone of its ring
    uneven = Topology.of_sizes([3, 5])
    assert link_bytes(layout, uneven, {"tp": 7}).tolist() == [7, 7]
    assert count_leaving(np.array([[0, 0, 1]]), 3).tolist() == [[0, 1], [0, 1], [0, 0]]


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


def test_switches_are_not_switchs() -> None:
    topology = Topology.even(8, nodes=4).with_level("switch", [0, 0, 1, 1])
    found = crossings(Layout(dp=2, tp=4), topology, level="switch")
    assert str(found["dp"]) == "dp crosses switches: 4 of 4 groups span 2 switches"
    assert str(found["tp"]) == "tp stays inside switches"


def test_part_of_a_topology_is_enough_and_none_of_it_is_missing() -> None:
    topology = Topology.even(16, nodes=4)
    assert not crossings(Layout(tp=4, ranks=range(4, 8)), topology)["tp"].crosses
    assert link_bytes(Layout(tp=4, ranks=range(2, 6)), topology, {"tp": 1}).tolist() == [1, 1, 0, 0]
    with pytest.raises(CoordinateError, match="rank 16 is not in the topology"):
        crossings(Layout(tp=4, ranks=range(14, 18)), topology)
    with pytest.raises(SpecError, match="no level 'rack'"):
        crossings(Layout(tp=16), topology, level="rack")


@pytest.mark.parametrize("amount", [-1, True, "1", None, float("nan"), float("inf")])
def test_traffic_that_cannot_be(amount: object) -> None:
    with pytest.raises(SpecError, match="the traffic of tp is"):
        link_bytes(Layout(tp=2), Topology.even(2, nodes=1), {"tp": amount})  # type: ignore[dict-item]


def test_traffic_along_no_axis() -> None:
    with pytest.raises(UnknownAxisError):
        link_bytes(Layout(tp=2), Topology.even(2, nodes=1), {"sq": 1})
    numbers = {"tp": np.int64(3)}
    assert link_bytes(Layout(tp=2), Topology.even(2, nodes=2), numbers).tolist() == [3, 3]


def test_a_hundred_thousand_ranks_take_a_moment() -> None:
    layout = Layout(pp=16, dp=125, sp=5, tp=10)
    topology = Topology.of_hosts(np.arange(100_000) % 12_500)
    begun = time.process_time()
    found = crossings(layout, topology)
    sent = link_bytes(layout, topology)
    assert time.process_time() - begun < 1
    assert found["tp"].crossing_pairs == found["tp"].pairs == 100_000
    assert len(sent) == 12_500
