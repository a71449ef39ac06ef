"""Policies for axes that cross nodes, and the fixes that are suggested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, Topology, UnknownAxisError
from meshkit.core.topology.crossing import crossings, placed
from meshkit.core.topology.crossing_policy import (
    CrossingVerdict,
    check_crossings,
    check_policies,
    suggest_fix,
)
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


def test_one_error_names_several_axes() -> None:
    error = check_crossings(LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "error"}).error
    assert error is not None
    assert error.summary == "dp, tp cross nodes."
    assert "crossing={'dp': 'allow', 'tp': 'allow'}" in error.fix_text


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
            "tp=2, which divides the ranks of every node",
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
        size = int(text.split(",")[0].partition("=")[2])
        sizes = {"dp_left": layout.num_ranks // size, axis: size}
        fixed = placed(Layout(**sizes), topology)
        assert layout.sizes[axis] % size == 0
        assert any(held % layout.sizes[axis] for held in topology.sizes.tolist())
    assert not crossings(fixed, topology)[axis].crosses
