"""Policies for axes that cross nodes, and the fixes that are suggested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, Topology, UnknownAxisError
from meshkit.core.topology.crossing import crossings
from meshkit.core.topology.crossing_policy import (
    CrossingVerdict,
    check_crossings,
    check_policies,
    suggest_fix,
)
from meshkit.core.topology.placement import placed
from meshkit.testing import layouts

LAYOUT = Layout(dp=2, tp=4)
CYCLIC = Topology.of_hosts(["a", "b"] * 4)


def test_the_default_is_a_warning_for_tp() -> None:
    assert check_policies(LAYOUT, None) == {"tp": "warn"}
    assert check_policies(LAYOUT, {"dp": "error"}) == {"dp": "error", "tp": "warn"}
    assert check_policies(LAYOUT, {"tp": "allow"}) == {}
    assert check_policies(Layout(dp=8), None) == {}
    both = check_policies(LAYOUT, {"tp": "error"}, within=["dp", "tp"])
    assert both == {"dp": "warn", "tp": "error"}


def test_an_unknown_axis() -> None:
    with pytest.raises(UnknownAxisError):
        check_policies(LAYOUT, {"tq": "error"})


@pytest.mark.parametrize(
    ("topology", "fix"),
    [
        (
            CYCLIC,
            "start the ranks in blocks, node by node (srun --distribution=block), or place=True.",
        ),
        (Topology.even(8, nodes=4), "dp=4, tp=2, as a node holds 2 ranks."),
    ],
)
def test_the_error_has_a_fix_and_the_policy_that_allows_it(topology: Topology, fix: str) -> None:
    error = check_crossings(LAYOUT, topology, {"tp": "error"}).error
    assert error is not None
    assert str(error).splitlines()[-1] == (
        f"  Fix: {fix} Or crossing={{'tp': 'allow'}}, if crossing is meant."
    )


def test_one_error_names_several_axes() -> None:
    error = check_crossings(LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "error"}).error
    assert error is not None
    assert error.summary == "dp, tp cross nodes."
    assert str(error).splitlines()[-1] == (
        "  Fix: dp: dp=1, tp=8, as a node holds 1 rank. tp: dp=8, tp=1, as a node holds 1 rank. "
        "Or crossing={'dp': 'allow', 'tp': 'allow'}, if crossing is meant."
    )


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


def test_axes_without_a_policy_may_cross() -> None:
    assert check_crossings(LAYOUT, CYCLIC, {}) == CrossingVerdict()
    assert check_crossings(Layout(dp=8, tp=1), CYCLIC, {"tp": "error"}) == CrossingVerdict()


law = settings(deadline=None, max_examples=60, database=None)
BLOCKS = "start the ranks in blocks, node by node (srun --distribution=block)"


@pytest.mark.parametrize(
    ("layout", "topology", "text"),
    [
        (Layout(dp=2, tp=4), Topology.even(8, nodes=2), ""),
        (Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4), f"{BLOCKS}, or place=True."),
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
def test_suggested_fixes(layout: Layout, topology: Topology, text: str) -> None:
    assert suggest_fix(layout, topology, "tp") == text


def test_suggested_fixes_for_racks() -> None:
    names = sorted(f"node{i}" for i in range(16))
    topology = Topology.of_hosts([name for name in names for _ in range(2)])
    topology = topology.with_level("rack", [int(name[4:]) // 4 for name in names])
    fix = suggest_fix(Layout(dp=4, tp=8), topology, "tp", level="rack")
    assert fix == f"{BLOCKS}, or place=True."
    fix = suggest_fix(Layout(dp=2, tp=16), topology, "tp", level="rack")
    assert fix == "dp=4, tp=8, place=True, as a rack holds 8 ranks."


def test_a_fix_for_an_unknown_axis() -> None:
    with pytest.raises(UnknownAxisError):
        suggest_fix(Layout(dp=8), Topology.even(8, nodes=2), "tq")


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
    fix = suggest_fix(layout, topology, axis)
    assert bool(fix) == crossings(layout, topology)[axis].crosses
    if BLOCKS in fix:
        assert not crossings(layout, Topology.of_sizes(topology.sizes))[axis].crosses
    for way in fix.removesuffix(".").partition(", as ")[0].split(", or "):
        if not way or way == BLOCKS:
            continue
        sizes = {**layout.sizes, **eval(f"dict({way})")}
        place, order = sizes.pop("place", False), sizes.pop("order", " ".join(layout.axes))
        fixed = Layout(**{name: sizes[name] for name in str(order).split()})
        assert fixed.num_ranks == layout.num_ranks
        result = placed(fixed, topology).layout if place else fixed
        assert not crossings(result, topology)[axis].crosses


@law
@given(cases(), st.sampled_from(["dp", "sp", "tp"]))
def test_a_size_is_reduced_only_if_nothing_else_helps(
    case: tuple[Layout, Topology], axis: str
) -> None:
    layout, topology = case
    text = suggest_fix(layout, topology, axis)
    outer = [name for name in layout.axes if name != axis]
    inner = Layout(**{name: layout.sizes[name] for name in (*outer, axis)})
    divides = all(held % layout.sizes[axis] == 0 for held in topology.sizes.tolist())
    assert not (", as " in text and divides)
    if ", as " in text and layout.sizes[axis] <= topology.sizes.max():
        assert crossings(placed(inner, topology).layout, topology)[axis].crosses
