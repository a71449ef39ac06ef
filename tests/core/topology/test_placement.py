"""Placement: equal to brute force where it says so, never worse than before, equal on all ranks."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError, Topology, UnknownAxisError
from meshkit.core.topology.crossing import DEFAULT_RATIO, crossings, link_bytes
from meshkit.core.topology.placement import _orders, placed
from meshkit.testing import layouts

law = settings(deadline=None, max_examples=60, database=None)
AXES = ("a", "b", "c")


# ---------------------------------------------------------------- all permutations, one by one


def shapes(number: int, axes: int = 3) -> Iterator[tuple[int, ...]]:
    """Sizes of 2 or more, in any order, whose product is a number."""
    if number == 1:
        yield ()
    for size in range(2, number + 1) if axes else ():
        if number % size == 0:
            yield from ((size, *rest) for rest in shapes(number // size, axes - 1))


def dealings(left: list[int], full: Sequence[int], symmetric: bool) -> Iterator[tuple[int, ...]]:
    """The node of each position, in all ways. Ranks of a node are alike; where nodes of one size
    are alike too, only the first of those that are still empty is taken."""
    if not any(left):
        yield ()
    empty: set[int] = set()
    for node, room in enumerate(left):
        if not room or (symmetric and room == full[node] and room in empty):
            continue
        empty |= {room} if room == full[node] else set()
        rest = [room - (place == node) for place, room in enumerate(left)]
        yield from ((node, *more) for more in dealings(rest, full, symmetric))


def busiest(grids: np.ndarray, count: int, sent: Sequence[float]) -> np.ndarray:
    """Return the traffic out of the busiest domain for grids (many, *shape), by brute force."""
    found = np.zeros(len(grids))
    for domain in range(count):
        inside = grids == domain
        total = np.zeros(len(grids))
        for place, amount in enumerate(sent):
            leaves = inside & ~np.roll(inside, -1, axis=place + 1)
            total += amount * leaves.reshape(len(grids), -1).sum(axis=1)
        found = np.maximum(found, total)
    return found


def brute(shape: tuple[int, ...], sizes: list[int], sent: Sequence[float]) -> float:
    """The least of all permutations."""
    grids = np.array([*dealings(sizes, sizes, True)]).reshape(-1, *shape)
    return float(busiest(grids, len(sizes), sent).min())


def traffics(axes: int) -> list[tuple[int, ...]]:
    near = tuple(DEFAULT_RATIO**place for place in range(axes))
    return [near, near[::-1], (1,) * axes, (3, 2, 5)[:axes]]


def compared(sizes: list[int]) -> Iterator[tuple[float, float]]:
    """Return the cost of placing and of brute force, on every shape and several traffics."""
    hosts = np.repeat(np.arange(len(sizes)), sizes)
    topology = Topology.of_hosts(np.random.default_rng(0).permutation(hosts).tolist())
    for shape in shapes(sum(sizes)):
        layout = Layout(**dict(zip(AXES, shape, strict=False)))
        for sent in traffics(len(shape)):
            found = placed(layout, topology, dict(zip(AXES, sent, strict=False)))
            yield found.cost["node"], brute(shape, sizes, sent)


EVEN = [(n, nodes) for n in range(2, 9) for nodes in range(1, n + 1) if n % nodes == 0]


@pytest.mark.parametrize(("num_ranks", "nodes"), EVEN)
def test_no_permutation_of_up_to_8_ranks_on_even_nodes_costs_less(
    num_ranks: int, nodes: int
) -> None:
    pairs = [*compared([num_ranks // nodes] * nodes)]
    assert pairs
    assert [cost for cost, _ in pairs] == [least for _, least in pairs]


def partitions(number: int, most: int) -> Iterator[list[int]]:
    """Sizes of nodes, the largest first, that add up to a number."""
    if number == 0:
        yield []
    for size in range(min(number, most), 0, -1):
        yield from ([size, *rest] for rest in partitions(number - size, size))


def test_on_uneven_nodes_no_permutation_costs_less() -> None:
    uneven = [sizes for n in range(2, 9) for sizes in partitions(n, n) if len(set(sizes)) > 1]
    pairs = [pair for sizes in uneven for pair in compared(sizes)]
    assert [cost for cost, _ in pairs] == [least for _, least in pairs]
    assert len(pairs) == 464
    assert all(cost >= least for cost, least in pairs)
    assert [cost for cost, _ in compared([4, 3])] == [least for _, least in compared([4, 3])]


@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (2, 2, 2), (8,)])
def test_no_permutation_costs_less_on_racks_of_nodes(shape: tuple[int, ...]) -> None:
    topology = Topology.of_hosts([0, 1, 2, 3, 3, 1, 0, 2]).with_level("rack", [0, 1, 0, 1])
    nodes = np.array([*dealings([2] * 4, [2] * 4, False)]).reshape(-1, *shape)
    layout = Layout(**dict(zip(AXES, shape, strict=False)))
    for sent in traffics(len(shape)):
        costs = zip(busiest(nodes % 2, 2, sent), busiest(nodes, 4, sent), strict=True)
        found = placed(layout, topology, dict(zip(AXES, sent, strict=False)))
        assert (found.cost["rack"], found.cost["node"]) == min(costs)


# ---------------------------------------------------------------- laws


@st.composite
def grounds(draw: st.DrawFn) -> tuple[Layout, Topology]:
    """A layout of up to 36 ranks in any order, on hosts of one size or any, in racks or not."""
    layout = draw(layouts(max_ranks=36, max_axes=3, with_ranks=True))
    world = int(layout.grid.max()) + 1
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    hosts = rng.permutation(np.arange(world) % nodes)
    hosts = hosts if draw(st.booleans()) else rng.integers(0, nodes, world)
    topology = Topology.of_hosts(hosts.tolist())
    if draw(st.booleans()):
        topology = topology.with_level("rack", [node // 2 for node in range(topology.num_nodes)])
    return layout, topology


@law
@given(grounds())
def test_the_same_axes_and_ranks_at_the_cost_that_is_said_and_never_worse(
    problem: tuple[Layout, Topology],
) -> None:
    layout, topology = problem
    found = placed(layout, topology)
    assert found.layout.sizes == layout.sizes
    assert sorted(found.layout.grid.flat) == sorted(layout.grid.flat)
    for cost, of in ((found.cost, found.layout), (found.before, layout)):
        counted = [link_bytes(of, topology, level=level).max() for level in topology.levels]
        assert [*cost] == [*topology.levels]
        assert [*cost.values()] == pytest.approx(counted)
    assert [*found.cost.values()] <= [*found.before.values()]
    assert (found.layout == layout) == ("unchanged; " in found.reason[:11])


@law
@given(grounds())
def test_placed_once_is_placed_for_good(problem: tuple[Layout, Topology]) -> None:
    layout, topology = problem
    found = placed(layout, topology)
    again = placed(found.layout, topology)
    assert again.layout == found.layout
    assert again.reason.startswith("unchanged")
    assert again.cost == found.cost == again.before
    assert placed(layout, topology).layout == found.layout
    assert str(placed(layout, topology)) == str(found)


@law
@given(grounds(), st.integers(0, 2**16))
def test_the_order_in_which_ranks_were_dealt_does_not_matter(
    problem: tuple[Layout, Topology], seed: int
) -> None:
    layout, topology = problem
    ranks = np.random.default_rng(seed).permutation(layout.grid.ravel())
    found = placed(layout, topology), placed(Layout(ranks=ranks, **layout.sizes), topology)
    moved = [one for one in found if not one.reason.startswith("unchanged")]
    for one in found:
        for other in moved:  # where it was left, it was no worse than what all of them could have
            if one in moved:
                assert one.cost == pytest.approx(other.cost)
            else:
                costs = zip(one.cost.values(), other.cost.values(), strict=True)
                least = [(a, b) for a, b in costs if a != pytest.approx(b)]
                assert least == [] or least[0][0] < least[0][1]


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 8}, {"pp": 2, "dp": 2, "sp": 2, "tp": 2}])
def test_cyclic_dealing_is_made_good(nodes: int, sizes: dict[str, int]) -> None:
    layout = Layout(**sizes)
    blocks = Topology.even(16, nodes=nodes)
    dealt = Topology.of_hosts([rank % nodes for rank in range(16)])
    assert placed(layout, dealt).cost == placed(layout, blocks).cost
    assert placed(layout, blocks).layout == layout
    there = crossings(placed(layout, dealt).layout, dealt)
    here = crossings(layout, blocks)
    assert [*map(str, there.values())] == [*map(str, here.values())]


def test_hosts_sorted_as_text_are_made_good_for_racks() -> None:
    """node10 comes before node2, so that consecutive ranks are in racks far apart."""
    names = sorted(f"node{i}" for i in range(16))
    topology = Topology.of_hosts([name for name in names for _ in range(2)])
    topology = topology.with_level("rack", [int(name[4:]) // 4 for name in names])
    layout = Layout(dp=4, tp=8)
    assert crossings(layout, topology, level="rack")["tp"].crosses
    found = placed(layout, topology)
    assert not crossings(found.layout, topology, level="rack")["tp"].crosses
    assert found.cost["rack"] < found.before["rack"]


def test_rank_0_stays_first() -> None:
    dealt = Topology.of_hosts(["b", "a"] * 8)
    for sizes in ({"dp": 4, "tp": 4}, {"dp": 2, "tp": 8}, {"dp": 2, "sp": 4, "tp": 2}):
        assert placed(Layout(**sizes), dealt).layout.ranks[0] == 0


def test_part_of_a_world_keeps_its_ranks() -> None:
    topology = Topology.of_hosts(["a", "b"] * 8)
    found = placed(Layout(dp=2, tp=4, ranks=range(8, 16)), topology)
    assert found.layout.groups("tp").tolist() == [[8, 10, 12, 14], [9, 11, 13, 15]]


# ---------------------------------------------------------------- words


def test_why_and_what_else_in_words() -> None:
    layout, dealt = Layout(dp=2, sp=2, tp=4), Topology.of_hosts(["a", "b"] * 8)
    assert str(placed(layout, dealt)).splitlines() == [
        "a node holds sp=2 tp=4; a step sends 8 x dp out of the busiest node, 32,768 x dp before",
        "  next best: a node holds dp=2 tp=4; a step sends 512 x dp out of the busiest node",
    ]
    traffic = {"dp": 1e9, "sp": 0, "tp": 2.5e9}
    assert str(placed(layout, dealt, traffic)).splitlines() == [
        "a node holds dp=2 tp=4; a step sends nothing out of the busiest node,"
        " 20,000,000,000 bytes before",
        "  next best: a node holds sp=2 tp=4;"
        " a step sends 8,000,000,000 bytes out of the busiest node",
    ]
    assert str(placed(Layout(dp=3, tp=2), Topology.even(6, nodes=2))).splitlines() == [
        "unchanged; a step sends 66 x dp out of the busiest node, and no less otherwise",
        "  next best: a node holds dp=3; a step sends 192 x dp out of the busiest node",
    ]
    assert placed(Layout(dp=3, tp=5), Topology.of_sizes([10, 5])).runner_up == (
        "ranks fill tp dp node by node; a step sends 193 x dp out of the busiest node"
    )
    racks = Topology.even(8, nodes=4, racks=2)
    assert placed(Layout(dp=4, tp=2), racks).reason == (
        "unchanged; a step sends 2 x dp out of the busiest rack, 2 x dp out of the busiest node,"
        " and no less otherwise"
    )


def test_one_node_has_nothing_to_choose() -> None:
    found = placed(Layout(dp=2, tp=2), Topology.even(4, nodes=1))
    assert (found.cost, found.runner_up) == ({"node": 0.0}, "")
    assert str(found).splitlines() == [
        "unchanged; a step sends nothing out of the busiest node, and no less otherwise",
        "  next best: none",
    ]


def test_what_costs_as_much_is_no_runner_up() -> None:
    found = placed(Layout(a=2, b=2), Topology.even(4, nodes=2), {"a": 1, "b": 1})
    assert (found.cost, found.runner_up) == ({"node": 2.0}, "")


def test_each_rank_a_node() -> None:
    found = placed(Layout(dp=2, tp=2), Topology.even(4, nodes=4))
    assert found.layout == Layout(dp=2, tp=2)


def test_refused() -> None:
    topology = Topology.even(8, nodes=2)
    with pytest.raises(CoordinateError):
        placed(Layout(dp=9), topology)
    with pytest.raises(SpecError, match=r"^placed\(.*\): the traffic of dp is -1"):
        placed(Layout(dp=8), topology, {"dp": -1})
    with pytest.raises(UnknownAxisError, match="there is no axis 'tq'"):
        placed(Layout(dp=8), topology, {"tq": 1})


def test_the_layout_of_llama_3_405b_takes_a_moment() -> None:
    layout = Layout(pp=16, dp=128, tp=8)
    dealt = Topology.of_hosts([rank % 2048 for rank in range(16_384)])
    begun = time.process_time()
    found = placed(layout, dealt)
    assert time.process_time() - begun < 1
    assert not crossings(found.layout, dealt)["tp"].crosses
    assert found.reason.startswith("a node holds tp=8; ")


def test_the_fixtures_are_what_they_say() -> None:
    assert len([*dealings([4, 4], [4, 4], True)]) == math.comb(8, 4) // 2
    assert len([*dealings([4, 4], [4, 4], False)]) == math.comb(8, 4)
    assert len([*dealings([2, 2, 2, 2], [2, 2, 2, 2], True)]) == 2520 // 24
    assert sorted(shapes(8)) == [(2, 2, 2), (2, 4), (4, 2), (8,)]
    grid = np.array([[[0, 0], [1, 1]]])
    assert busiest(grid, 2, (10, 1)).tolist() == [20]
    assert len({*itertools.permutations(range(3))}) == 6


@pytest.mark.parametrize("axes", range(1, 6))
def test_up_to_five_axes_are_orders_in_every_way(axes: int) -> None:
    """The order that was given first, its reverse last."""
    orders = [*_orders([*range(axes)])]
    assert sorted(orders) == sorted(itertools.permutations(range(axes)))
    assert orders[0] == tuple(range(axes))
    assert orders[-1] == tuple(reversed(range(axes)))


@pytest.mark.parametrize("axes", [6, 10])
def test_of_more_axes_one_at_a_time_is_moved(axes: int) -> None:
    first, *others = _orders([*range(axes)])
    assert first == tuple(range(axes))
    assert len(others) == axes * (axes - 1)
    for order in others:
        assert sorted(order) == [*range(axes)]
        left = [[a for a in order if a != moved] for moved in range(axes)]
        assert any(rest == sorted(rest) for rest in left)
    moves = {(axis, order.index(axis)) for order in others for axis in order}
    assert moves == {*itertools.product(range(axes), range(axes))}


def test_uneven_nodes_are_placed_as_well_as_by_the_best_permutation() -> None:
    """The cost by hand: for each node, the traffic of the rings that leave it."""
    layout = Layout(dp=3, tp=2)
    hosts = ["h0", "h2", "h2", "h1", "h2", "h2"]
    topology = Topology.of_hosts(hosts)
    traffic = {"dp": 1.0, "tp": 0.0}
    placement = placed(layout, topology, traffic)
    best = min(
        max(link_bytes_of(permutation, hosts).values())
        for permutation in itertools.permutations(range(6))
    )
    assert placement.cost["node"] == best
    assert max(link_bytes_of(placement.layout.grid.ravel().tolist(), hosts).values()) == best


def link_bytes_of(ranks: Sequence[int], hosts: list[str]) -> dict[str, float]:
    """Return the bytes out of each host for a ring over dp=3 in each of two columns of tp."""
    out = dict.fromkeys(hosts, 0.0)
    for column in (0, 1):
        ring = [ranks[2 * row + column] for row in range(3)]
        for here, there in zip(ring, [*ring[1:], ring[0]], strict=True):
            out[hosts[here]] += hosts[here] != hosts[there]
    return out
