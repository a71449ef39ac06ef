"""Numbers of a job report against groups created one by one, and its text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout
from meshkit.core.grid.group_plan import GroupPlan
from meshkit.core.report.job import JobReport, format_job, format_warning, headline
from meshkit.core.topology.topology import Topology
from meshkit.testing import layouts


@given(layouts(max_ranks=48), st.data())
def test_rows_equal_groups_created_one_by_one(layout: Layout, data: st.DataObject) -> None:
    node_lists = st.lists(st.integers(0, 3), min_size=layout.num_ranks, max_size=layout.num_ranks)
    hosts = data.draw(node_lists)
    report = JobReport.of(GroupPlan.of(layout), Topology.of_hosts(hosts))
    for row in report.axes:
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
    report = JobReport.of(plan)
    assert report.groups == sum(len(step.members) for step in plan.steps)
    assert report.groups_per_rank == len(plan.steps)
    assert report.topology is None
    assert {(row.crossing, row.spans) for row in report.axes} == {(None, None)}


def warnings_of(layout: Layout, topology: Topology) -> list[str]:
    return [*map(format_warning, JobReport.of(GroupPlan.of(layout), topology).warnings)]


def even(layout: Layout, nodes: int) -> Topology:
    return Topology.even(layout.num_ranks, nodes=nodes)


REASON = "\n  tp communicates in every layer, so it needs the fastest links.\n  Fix: "


def test_tp_within_a_node_is_no_warning() -> None:
    layout = Layout(dp=2, tp=4)
    assert warnings_of(layout, even(layout, 2)) == []
    assert warnings_of(layout, even(layout, 1)) == []
    assert warnings_of(Layout(dp=8), Topology.even(8, nodes=8)) == []


@pytest.mark.parametrize(
    ("layout", "nodes", "text", "fix"),
    [
        (
            Layout(tp=4, dp=2),
            2,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "order='dp tp'.",
        ),
        (
            Layout(dp=2, tp=8),
            4,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "dp=4, tp=4, as a node holds 4 ranks.",
        ),
        (
            Layout(dp=2, tp=8),
            8,
            "tp crosses nodes: 2 of 2 groups span 4 nodes.",
            "dp=8, tp=2, as a node holds 2 ranks.",
        ),
        (
            Layout(tp=8, dp=2),
            4,
            "tp crosses nodes: 2 of 2 groups span 4 nodes.",
            "tp=4, dp=4, order='dp tp', as a node holds 4 ranks.",
        ),
        (
            Layout(tp=4, sp=2),
            2,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "order='sp tp'.",
        ),
        (
            Layout(tp=2),
            2,
            "tp crosses nodes: 1 of 1 groups span 2 nodes.",
            "dp=2, tp=1, order='dp tp', as a node holds 1 rank.",
        ),
        (
            Layout(dp=2, tp=3),
            3,
            "tp crosses nodes: 2 of 2 groups span 2 nodes.",
            "dp=6, tp=1, as 1 divides the ranks of every node.",
        ),
    ],
)
def test_tp_across_nodes_is_a_warning(layout: Layout, nodes: int, text: str, fix: str) -> None:
    assert warnings_of(layout, even(layout, nodes)) == [text + REASON + fix]


def test_some_groups_of_tp_across_nodes() -> None:
    (text,) = warnings_of(Layout(dp=4, tp=2), Topology.of_sizes([3, 5]))
    assert text.startswith("tp crosses nodes: 1 of 4 groups span 2 nodes.\n")


def test_the_fix_for_alternating_ranks_starts_them_in_blocks() -> None:
    (text,) = warnings_of(Layout(dp=2, tp=4), Topology.of_hosts("abababab"[i] for i in range(8)))
    assert text.endswith(
        "  Fix: start the ranks in blocks, node by node (srun --distribution=block), or place=True."
    )


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


def test_a_narrow_text_in_unicode_and_ascii() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    batch = BatchPlan.solve(dp=2, global_batch=1024, micro_batch=4)
    report = JobReport.of(GroupPlan.of(layout), Topology.of_sizes([3, 5]), batch)
    text = format_job(report, width=50)
    assert text == (
        "dp=2 sp=2 tp=2: 8 ranks on 2 nodes of 3 and 5\n"
        "\n"
        "axis  size  stride  groups  first group  crosses\n"
        "                                           nodes\n"
        "────  ────  ──────  ──────  ───────────  ─────────\n"
        "dp       2       4       4  0, 4         yes\n"
        "sp       2       2       4  0, 2         yes\n"
        "tp       2       1       4  0, 1         yes\n"
        "\n"
        "┌ node 0 ───────────────┐\n"
        "│            tp=0  tp=1 │\n"
        "│ dp=0 sp=0     0     1 │\n"
        "│ dp=0 sp=1     2       │\n"
        "└───────────────────────┘\n"
        "┌ node 1 ───────────────┐\n"
        "│            tp=0  tp=1 │\n"
        "│ dp=0 sp=1           3 │\n"
        "│ dp=1 sp=0     4     5 │\n"
        "│ dp=1 sp=1     6     7 │\n"
        "└───────────────────────┘\n"
        "\n"
        "groups   5 on each rank, the default group\n"
        "           included; 15 in all\n"
        "batch    global_batch 1024 = micro_batch 4 x\n"
        "           accumulation_steps 128 x dp 2\n"
        "warning  tp crosses nodes: 1 of 4 groups span 2\n"
        "           nodes.\n"
        "           tp communicates in every layer, so it\n"
        "             needs the fastest links.\n"
        "           Fix: dp=4, tp=1, as 1 divides the ranks\n"
        "             of every node."
    )
    in_ascii = text.translate(str.maketrans("┌─┐│└┘", "+-+|++"))
    table, _, rest = in_ascii.partition("\n\n+")
    assert format_job(report, width=50, ascii=True) == f"{table}\n\n+{rest}"


@pytest.mark.parametrize("width", [1, 40, 61, 80])
@pytest.mark.parametrize("ascii", [False, True])
def test_the_text_fits_into_the_width(width: int, ascii: bool) -> None:
    layout = Layout(pp=16, dp=128, tp=8)
    report = JobReport.of(GroupPlan.of(layout), Topology.even(16384, nodes=2048))
    text = format_job(report, width=width, ascii=ascii)
    assert text.isascii() is ascii
    # five columns of numbers are 55 wide, and no number is cut
    assert max(map(len, text.splitlines())) <= max(width, 55)


def test_the_first_line() -> None:
    assert headline(Layout(dp=1)) == "dp=1: 1 rank"
    assert headline(Layout(dp=2), Topology.even(2, nodes=1)) == "dp=2: 2 ranks on 1 node of 2"
