"""Axes that cross nodes: what is asked for, and what is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshkit.core.topology.crossing import crossings
from meshkit.core.topology.crossing_policy import CrossingVerdict, check_crossings, check_policies

from meshkit import Layout, Topology, UnknownAxisError
from meshkit.core.call import Call
from meshkit.testing import layouts

CALL = Call("build_mesh", kwargs={"dp": 2, "tp": 4})
LAYOUT = Layout(dp=2, tp=4)
CYCLIC = Topology.of_hosts(["a", "b"] * 4)


def test_tp_is_warned_of_where_nothing_is_said() -> None:
    assert check_policies(CALL, LAYOUT, None) == {"tp": "warn"}
    assert check_policies(CALL, LAYOUT, {"dp": "error"}) == {"dp": "error", "tp": "warn"}
    assert check_policies(CALL, LAYOUT, {"tp": "allow"}) == {}
    assert check_policies(Call("build_mesh"), Layout(dp=8), None) == {}
    both = check_policies(CALL, LAYOUT, {"tp": "error"}, within=["dp", "tp"])
    assert both == {"dp": "warn", "tp": "error"}


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(UnknownAxisError):
        check_policies(CALL, LAYOUT, {"tq": "error"})


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
    said = check_crossings(CALL, LAYOUT, topology, {"tp": "error"}).error
    assert said.splitlines()[-1] == (f"  Fix: {fix} Or crossing={{'tp': 'allow'}}, if it is meant.")


def test_several_axes_are_told_together() -> None:
    said = check_crossings(
        CALL, LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "error"}
    ).error
    assert said.splitlines()[0] == "build_mesh(dp=2, tp=4): dp, tp cross nodes."
    assert said.splitlines()[-1] == (
        "  Fix: dp: dp=1, tp=8, as a node holds 1 rank. tp: dp=8, tp=1, as a node holds 1 rank. "
        "Or crossing={'dp': 'allow', 'tp': 'allow'}, if it is meant."
    )


def test_each_policy_has_its_own_words() -> None:
    found = check_crossings(CALL, LAYOUT, Topology.even(8, nodes=8), {"dp": "error", "tp": "warn"})
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
    found = check_crossings(Call("build_mesh"), layout, topology, policies)
    crossing = {axis for axis, one in crossings(layout, topology).items() if one.crosses}
    for policy, said in (("error", found.error), ("warn", found.warning)):
        named = {line.split()[0] for line in said.splitlines() if " crosses nodes: " in line}
        assert named == {axis for axis in crossing if policies[axis] == policy}


def test_nothing_is_computed_where_nothing_is_watched() -> None:
    assert check_crossings(CALL, LAYOUT, CYCLIC, {}) == CrossingVerdict()
    assert check_crossings(CALL, Layout(dp=8, tp=1), CYCLIC, {"tp": "error"}) == CrossingVerdict()
