"""What an overview counts, against groups made one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, GroupPlan, Layout
from meshkit.core.overview import Overview, node_counts, node_sizes
from meshkit.testing import layouts


def even(layout: Layout, nodes: int) -> np.ndarray:
    return np.repeat(np.arange(nodes), layout.num_ranks // nodes)


@given(layouts(max_ranks=48, with_ranks=True), st.data())
def test_rows_are_those_of_groups_made_one_by_one(layout: Layout, data: st.DataObject) -> None:
    dealt = st.lists(st.integers(0, 3), min_size=layout.num_ranks, max_size=layout.num_ranks)
    nodes = np.array(data.draw(dealt))
    where = dict(zip([int(rank) for rank in layout.ranks], nodes, strict=True))
    overview = Overview.of(GroupPlan.of(layout), nodes)
    assert sum(overview.node_sizes) == layout.num_ranks
    for row in overview.axes:
        groups = layout.groups(row.axis).tolist()
        spans = [len({where[rank] for rank in group}) for group in groups]
        assert node_counts(layout, nodes, row.axis).tolist() == spans
        assert (row.size, row.groups) == (len(groups[0]), len(groups))
        assert row.first_group == tuple(groups[0])
        assert (row.crossing, row.spans) == (sum(n > 1 for n in spans), max(spans))
        if row.size > 1:
            positions = [list(layout.ranks).index(rank) for rank in groups[0][:2]]
            assert row.stride == positions[1] - positions[0]


@given(layouts(max_ranks=48), st.booleans())
def test_groups_are_as_many_as_the_plan_makes(layout: Layout, more: bool) -> None:
    plan = GroupPlan.of(layout, [tuple(reversed(layout.axes))] if more else [])
    overview = Overview.of(plan)
    assert overview.groups == sum(len(step.members) for step in plan.steps)
    assert overview.groups_per_rank == len(plan.steps)
    assert overview.nodes is None
    assert {(row.crossing, row.spans) for row in overview.axes} == {(None, None)}


def warned(layout: Layout, nodes: np.ndarray) -> list[str]:
    return list(Overview.of(GroupPlan.of(layout), nodes).warnings)


WHY = "\n  tp talks in every layer, and must sit on the nearest wires.\n  Fix: "


def test_tp_within_a_node_is_no_warning() -> None:
    layout = Layout(dp=2, tp=4)
    assert warned(layout, even(layout, 2)) == []
    assert warned(layout, even(layout, 1)) == []
    assert warned(Layout(dp=8), np.arange(8)) == []


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
            "tp crosses nodes: 2 of 2 groups span up to 4 nodes.",
            "build_mesh(dp=8, tp=2).",
        ),
        (
            Layout(tp=8, dp=2),
            4,
            "tp crosses nodes: 2 of 2 groups span up to 4 nodes.",
            "build_mesh(tp=4, dp=4, order='dp tp').",
        ),
        (
            Layout(tp=2),
            2,
            "tp crosses nodes: 1 of 1 group span 2 nodes.",
            "a tp that divides 1, and nodes of equal size.",
        ),
        (
            Layout(dp=2, tp=3),
            3,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "a tp that divides 2, and nodes of equal size.",
        ),
    ],
)
def test_tp_that_leaves_a_node_is_told(layout: Layout, nodes: int, said: str, fix: str) -> None:
    assert warned(layout, even(layout, nodes)) == [said + WHY + fix]


def test_some_groups_of_tp_that_leave_a_node() -> None:
    (text,) = warned(Layout(dp=4, tp=2), np.repeat([0, 1], [3, 5]))
    assert text.startswith("tp crosses nodes: 1 of 4 groups span 2 nodes.\n")


def test_node_sizes() -> None:
    assert node_sizes(None) == ()
    assert node_sizes(np.array([1, 1, 3])) == (2, 1)


def test_the_dict_is_what_json_can_hold() -> None:
    layout = Layout(dp=2, tp=2)
    batch = BatchPlan.solve(dp=2, micro_batch=1, accumulation_steps=3)
    told = Overview.of(GroupPlan.of(layout), even(layout, 2), batch).as_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["batch"] == {
        **{"dp": 2, "global_batch": 6, "micro_batch": 1, "accumulation_steps": 3},
        "uneven": False,
    }
    assert Overview.of(GroupPlan.of(layout)).as_dict()["batch"] is None
