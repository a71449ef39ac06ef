"""Policies for axes that cross nodes, and the fixes that are suggested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, Topology, UnknownAxisError
from meshkit.core.call import Call
from meshkit.core.topology.crossing import crossings
from meshkit.core.topology.crossing_policy import (
    CrossingVerdict,
    check_crossings,
    check_policies,
    suggest_fix,
)
from meshkit.core.topology.placement import placed
from meshkit.testing import layouts

CALL = Call("build_mesh", kwargs={"dp": 2, "tp": 4})
LAYOUT = Layout(dp=2, tp=4)
CYCLIC = Topology.of_hosts(["a", "b"] * 4)


def test_tp_is_warned_of_where_nothing_is_said() -> None:
    assert check_policies(LAYOUT, None) == {"tp": "warn"}
    assert check_policies(LAYOUT, {"dp": "error"}) == {"dp": "error", "tp": "warn"}
    assert check_policies(LAYOUT, {"tp": "allow"}) == {}
    assert check_policies(Layout(dp=8), None) == {}
    both = check_policies(LAYOUT, {"tp": "error"}, within=["dp", "tp"])
    assert both == {"dp": "warn", "tp": "error"}


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(UnknownAxisError):
        check_policies(LAYOUT, {"tq": "error"})


@pytest.mark.parametrize(
    ("topology", "fix"),
    [
        (
            CYCLIC,
            "start the ranks in blocks, node by node (srun --distribution=block); or place=True.",
        ),
        (Topology.even(8, nodes=4), "dp=4, tp=2, as a node holds 2 ranks."),
    ],
)
def test_the_fix_is_one_that_helps(topology: Topology, fix: str) -> None:
    said = check_crossings(LAYOUT, topology, {"tp": "error"}).error
    assert said.splitlines()[-1] == (f"  Fix: {fix} Or crossing={{'tp': 'allow'}}, if it is meant.")


def test_several_axes_are_told_together() -> None:
    said = check_crossings(LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "error"}).error
    assert said.splitlines()[0] == "build_mesh(dp=2, tp=4): dp, tp cross nodes."
    assert said.splitlines()[-1] == (
        "  Fix: dp: dp=1, tp=8, as a node holds 1 rank. tp: dp=8, tp=1, as a node holds 1 rank. "
        "Or crossing={'dp': 'allow', 'tp': 'allow'}, if it is meant."
    )


def test_each_policy_has_its_own_words() -> None:
    found = check_crossings(LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "warn"})
    assert found.error.splitlines()[:2] == [
        "build_mesh(dp=2, tp=4): dp crosses nodes.",
        "  dp crosses nodes: 4 of 4 groups span 2 nodes; ranks 0, 4 are on node 0, node 4.",
    ]
    assert found.warning.splitlines()[1] == (
        "  tp crosses nodes: 2 of 2 groups span 4 nodes; "
        "ranks 0-3 are on node 0, node 1, node 2, node 3."
    )


@given(layouts(max_ranks=24), st.data())
def test_what_is_said_is_what_crosses(layout: Layout, data: st.DataObject) -> None:
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=24, max_size=24))
    topology = Topology.of_hosts([*hosts, *["d"] * (max(layout.ranks) + 1)])
    policies = {axis: data.draw(st.sampled_from(["error", "warn"])) for axis in layout.axes}
    found = check_crossings(layout, topology, policies)
    crossing = {axis for axis, one in crossings(layout, topology).items() if one.crosses}
    for policy, said in (("error", found.error), ("warn", found.warning)):
        named = {line.split()[0] for line in said.splitlines() if " crosses nodes: " in line}
        assert named == {axis for axis in crossing if policies[axis] == policy}


def test_nothing_is_computed_where_nothing_is_watched() -> None:
    assert check_crossings(LAYOUT, CYCLIC, {}) == CrossingVerdict()
    assert check_crossings(Layout(dp=8, tp=1), CYCLIC, {"tp": "error"}) == CrossingVerdict()


law = settings(deadline=None, max_examples=60, database=None)
BLOCKS = "start the ranks in blocks, node by node (srun --distribution=block)"


@pytest.mark.parametrize(
    ("layout", "topology", "text"),
    [
        (Layout(dp=2, tp=4), Topology.even(8, nodes=2), ""),
        (Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4), f"{BLOCKS}; or place=True."),
        (Layout(tp=4, dp=2), Topology.even(8, nodes=2), "order='dp tp'."),
        (Layout(tp=4, dp=2), Topology.of_sizes([4, 4]), "order='dp tp'."),
        (Layout(dp=1, tp=8), Topology.even(8, nodes=2), "dp=2, tp=4, as a node holds 4 ranks."),
        (
            Layout(tp=12),
            Topology.of_sizes([7, 5]),
            "dp=12, tp=1, order='dp tp', as 1 divides the ranks of every node.",
        ),
        (
            Layout(dp=3, tp=4),
            Topology.of_sizes([6, 6]),
            "dp=6, tp=2, as 2 divides the ranks of every node.",
        ),
        (
            Layout(dp=3, tp=5),
            Topology.of_sizes([7, 8]),
            "dp=15, tp=1, as 1 divides the ranks of every node.",
        ),
        (
            Layout(dp=3, tp=4),
            Topology.of_sizes([2, 8, 2]),
            "dp=6, tp=2, as 2 divides the ranks of every node.",
        ),
        (
            Layout(dp=2, tp=4, ranks=[0, 4, 1, 5, 2, 6, 3, 7]),
            Topology.even(8, nodes=2),
            "place=True.",
        ),
        (
            Layout(dp=2, tp=4, sp=2),
            Topology.of_hosts([0, 1, 2, 3] * 4),
            "order='dp sp tp', place=True.",
        ),
    ],
)
def test_advised(layout: Layout, topology: Topology, text: str) -> None:
    assert suggest_fix(layout, topology, "tp") == text


def test_advised_for_racks() -> None:
    names = sorted(f"node{i}" for i in range(16))
    topology = Topology.of_hosts([name for name in names for _ in range(2)])
    topology = topology.with_level("rack", [int(name[4:]) // 4 for name in names])
    assert (
        suggest_fix(Layout(dp=4, tp=8), topology, "tp", level="rack") == f"{BLOCKS}; or place=True."
    )
    text = "dp=4, tp=8, place=True, as a rack holds 8 ranks."
    assert suggest_fix(Layout(dp=2, tp=16), topology, "tp", level="rack") == text


def test_a_fix_for_an_axis_that_is_not_there() -> None:
    with pytest.raises(UnknownAxisError):
        suggest_fix(Layout(dp=8), Topology.even(8, nodes=2), "tp")


@st.composite
def grounds(draw: st.DrawFn) -> tuple[Layout, Topology]:
    sizes = draw(st.permutations([draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2]))
    axes = draw(st.permutations(["dp", "sp", "tp"]))
    layout = Layout(**dict(zip(axes, sizes, strict=True)))
    nodes = draw(st.integers(1, 4))
    hosts = np.arange(layout.num_ranks) % nodes
    return layout, Topology.of_hosts((hosts if draw(st.booleans()) else np.sort(hosts)).tolist())


@law
@given(grounds(), st.sampled_from(["dp", "sp", "tp"]), st.booleans())
def test_what_is_advised_works(ground: tuple[Layout, Topology], axis: str, written: bool) -> None:
    layout, topology = ground
    Call("build_mesh", kwargs=layout.sizes) if written else None
    text = suggest_fix(layout, topology, axis)
    assert (text != "") == crossings(layout, topology)[axis].crosses
    for way in filter(None, text.removesuffix(".").split("; or ")):
        if way == BLOCKS:
            blocks = Topology.of_sizes(topology.sizes)
            assert not crossings(layout, blocks)[axis].crosses
            continue
        said = way if written else f"build_mesh({way.partition(', as ')[0]})"
        asked = {**layout.sizes, **eval(said, {"build_mesh": dict})}
        place, order = asked.pop("place", False), asked.pop("order", " ".join(layout.axes)).split()
        fixed = Layout(**{name: asked[name] for name in order})
        assert fixed.num_ranks == layout.num_ranks
        found = placed(fixed, topology).layout if place else fixed
        assert not crossings(found, topology)[axis].crosses


@law
@given(grounds(), st.sampled_from(["dp", "sp", "tp"]))
def test_a_size_is_cut_where_nothing_else_keeps_it(
    ground: tuple[Layout, Topology], axis: str
) -> None:
    layout, topology = ground
    text = suggest_fix(layout, topology, axis)
    outer = [name for name in layout.axes if name != axis]
    inner = Layout(**{name: layout.sizes[name] for name in (*outer, axis)})
    divides = all(held % layout.sizes[axis] == 0 for held in topology.sizes.tolist())
    assert not (", as " in text and divides)
    if ", as " in text and layout.sizes[axis] <= topology.sizes.max():
        assert crossings(placed(inner, topology).layout, topology)[axis].crosses
