"""What an overview counts, against groups made one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout
from meshkit.core.grid.group_plan import GroupPlan
from meshkit.core.report.job import JobReport
from meshkit.core.topology.placement import placed
from meshkit.core.topology.topology import Topology
from meshkit.testing import layouts


@given(layouts(max_ranks=48), st.data())
def test_rows_are_those_of_groups_made_one_by_one(layout: Layout, data: st.DataObject) -> None:
    dealt = st.lists(st.integers(0, 3), min_size=layout.num_ranks, max_size=layout.num_ranks)
    hosts = data.draw(dealt)
    overview = JobReport.of(GroupPlan.of(layout), Topology.of_hosts(hosts))
    for row in overview.axes:
        groups = layout.groups(row.axis).tolist()
        spans = [len({hosts[rank] for rank in group}) for group in groups]
        assert (row.size, row.groups) == (len(groups[0]), len(groups))
        assert row.first_group == tuple(groups[0])
        assert (row.crossing, row.spans) == (sum(n > 1 for n in spans), max(spans))
        if row.size > 1:
            assert row.stride == groups[0][1] - groups[0][0]


@given(layouts(max_ranks=48), st.booleans())
def test_groups_are_as_many_as_the_plan_makes(layout: Layout, more: bool) -> None:
    plan = GroupPlan.of(layout, [tuple(reversed(layout.axes))] if more else [])
    overview = JobReport.of(plan)
    assert overview.groups == sum(len(step.members) for step in plan.steps)
    assert overview.groups_per_rank == len(plan.steps)
    assert overview.topology is None
    assert {(row.crossing, row.spans) for row in overview.axes} == {(None, None)}


def warned(layout: Layout, topology: Topology) -> list[str]:
    return list(JobReport.of(GroupPlan.of(layout), topology).warnings)


def even(layout: Layout, nodes: int) -> Topology:
    return Topology.even(layout.num_ranks, nodes=nodes)


WHY = "\n  tp talks in every layer, and must sit on the nearest wires.\n  Fix: "


def test_tp_within_a_node_is_no_warning() -> None:
    layout = Layout(dp=2, tp=4)
    assert warned(layout, even(layout, 2)) == []
    assert warned(layout, even(layout, 1)) == []
    assert warned(Layout(dp=8), Topology.even(8, nodes=8)) == []


@pytest.mark.parametrize(
    ("layout", "nodes", "said", "fix"),
    [
        (
            Layout(tp=4, dp=2),
            2,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "build_mesh(tp=4, dp=2, order='dp tp').",
        ),
        (
            Layout(dp=2, tp=8),
            4,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "build_mesh(dp=4, tp=4).",
        ),
        (
            Layout(dp=2, tp=8),
            8,
            "tp crosses nodes: 2 of 2 groups span 4 nodes.",
            "build_mesh(dp=8, tp=2).",
        ),
        (
            Layout(tp=8, dp=2),
            4,
            "tp crosses nodes: 2 of 2 groups span 4 nodes.",
            "build_mesh(tp=4, dp=4, order='dp tp').",
        ),
        (
            Layout(tp=4, sp=2),
            2,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "build_mesh(tp=4, sp=2, order='sp tp').",
        ),
        (
            Layout(tp=2),
            2,
            "tp crosses nodes: 1 of 1 groups span 2 nodes.",
            "build_mesh(tp=1, dp=2, order='dp tp').",
        ),
        (
            Layout(dp=2, tp=3),
            3,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "build_mesh(dp=6, tp=1).",
        ),
    ],
)
def test_tp_that_leaves_a_node_is_told(layout: Layout, nodes: int, said: str, fix: str) -> None:
    assert warned(layout, even(layout, nodes)) == [said + WHY + fix]


def test_some_groups_of_tp_that_leave_a_node() -> None:
    (text,) = warned(Layout(dp=4, tp=2), Topology.of_sizes([3, 5]))
    assert text.startswith("tp crosses nodes: 1 of 4 groups span 2 nodes.\n")


def test_ranks_dealt_round_are_to_be_started_in_blocks() -> None:
    (text,) = warned(Layout(dp=2, tp=4), Topology.of_hosts("abababab"[i] for i in range(8)))
    assert text.endswith(
        "  Fix: start the ranks in blocks, node by node (srun --distribution=block); "
        "or build_mesh(dp=2, tp=4, place=True)."
    )


@given(layouts(max_ranks=24), st.sampled_from([2, 3, 4]))
def test_the_fix_of_a_warning_is_a_grid_of_as_many_ranks_that_is_not_warned_of(
    layout: Layout, nodes: int
) -> None:
    sizes = [len(part) for part in np.array_split(np.arange(layout.num_ranks), nodes) if len(part)]
    topology = Topology.of_sizes(sizes)
    for text in warned(layout, topology):
        for said in text.rpartition("Fix: ")[2].removesuffix(".").split("; or "):
            asked = eval(said, {"build_mesh": dict})
            place = asked.pop("place", False)
            order = asked.pop("order", " ".join(asked)).split()
            fixed = Layout(**{axis: asked[axis] for axis in order})
            assert fixed.num_ranks == layout.num_ranks
            assert warned(placed(fixed, topology).layout if place else fixed, topology) == []


def test_the_dict_is_what_json_can_hold() -> None:
    layout = Layout(dp=2, tp=2)
    batch = BatchPlan.solve(dp=2, micro_batch=1, accumulation_steps=3)
    told = JobReport.of(GroupPlan.of(layout), even(layout, 2), batch).as_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["batch"] == {
        **{"dp": 2, "global_batch": 6, "micro_batch": 1, "accumulation_steps": 3},
        "uneven": False,
    }
    assert JobReport.of(GroupPlan.of(layout)).as_dict()["batch"] is None
