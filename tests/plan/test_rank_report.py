"""Reports of a job, of a rank, and of the timings of groups, against other derivations."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout, SequencePlan, factor_world
from meshkit.guard.verification import summarize_timings
from meshkit.layout.crossings import placed
from meshkit.layout.group_plan import GroupPlan
from meshkit.layout.topology import Topology
from meshkit.plan.job_report import JobReport, headline
from meshkit.plan.rank_report import format_rank, format_rank_table, rank_reports, sequence_part
from meshkit.testing import layouts
from tests.laws.derivations import law
from tests.plan.example_reports import REPORT


@law
@given(layouts(max_ranks=48), st.data())
def test_rows_equal_groups_created_one_by_one(layout: Layout, data: st.DataObject) -> None:
    node_lists = st.lists(st.integers(0, 3), min_size=layout.num_ranks, max_size=layout.num_ranks)
    hosts = data.draw(node_lists)
    plan = GroupPlan.of(layout)
    report = JobReport.of(plan, Topology.of_hosts(hosts))
    assert report.groups == sum(len(step.members) for step in plan.steps)
    assert report.groups_per_rank == len(plan.steps)
    for row in report.axes:
        groups = layout.groups(row["axis"]).tolist()
        spans = [len({hosts[rank] for rank in group}) for group in groups]
        assert (row["size"], row["groups"]) == (len(groups[0]), len(groups))
        assert row["first_group"] == groups[0]
        assert (row["crossing"], row["spans"]) == (sum(n > 1 for n in spans), max(spans))
        if row["size"] > 1:
            assert row["stride"] == groups[0][1] - groups[0][0]


def warnings_of(layout: Layout, topology: Topology) -> tuple[str, ...]:
    return JobReport.of(GroupPlan.of(layout), topology).warnings


def even(layout: Layout, nodes: int) -> Topology:
    return Topology.even(layout.num_ranks, nodes=nodes)


def test_tp_across_nodes_is_a_warning() -> None:
    layout = Layout(dp=2, tp=4)
    assert warnings_of(layout, even(layout, 2)) == warnings_of(layout, even(layout, 1)) == ()
    assert warnings_of(Layout(dp=8), Topology.even(8, nodes=8)) == ()
    assert warnings_of(Layout(tp=4, dp=2), Topology.even(8, nodes=2)) == (
        "tp crosses nodes: 2 of 2 groups span 2 nodes.\n"
        "  tp communicates in every layer, so it needs the fastest links.\n"
        "  Fix: --order dp,tp.",
    )
    (warning,) = warnings_of(Layout(dp=2, tp=16), Topology.even(32, nodes=4))
    assert warning.endswith("Fix: dp=4 tp=8, which divides the ranks of every node.")


def test_a_placement_says_which_axes_crossed_before() -> None:
    topology, layout = Topology.of_hosts(["a", "b"] * 4), Layout(dp=2, sp=1, tp=4)
    new = placed(layout, topology)
    report = JobReport.of(GroupPlan.of(new), topology, before=layout)
    assert report.placement.splitlines() == [
        "dp crosses nodes: 4 of 4 groups span 2 nodes; before, dp stays inside nodes",
        "tp stays inside nodes; before, tp crosses nodes: 2 of 2 groups span 2 nodes",
    ]
    assert report.as_dict()["placement"] == {
        "reason": report.placement,
        "ranks": [0, 2, 4, 6, 1, 3, 5, 7],
    }


def test_the_first_line() -> None:
    assert headline(Layout(dp=1)) == "dp=1: 1 rank"
    assert headline(Layout(dp=2), Topology.even(2, nodes=1)) == "dp=2: 2 ranks on 1 node of 2"


def test_a_report_has_80_columns_unless_a_width_is_given() -> None:
    last = "a" * 27
    layout = Layout({f"x{i}": 2 for i in range(8)} | {last: 2})
    (report,) = rank_reports(layout, [0])
    words = "coordinate  x0=0 x1=0 x2=0 x3=0 x4=0 x5=0 x6=0 x7=0"  # 51 columns; the last needs 30
    assert f"{words}\n" in format_rank(report, layout, "x")
    assert f"{words} {last}=0\n" in format_rank(report, layout, "x", width=81)


def test_a_report_leaves_out_what_is_unknown() -> None:
    (report,) = rank_reports(Layout(dp=2), [1])
    assert format_rank(report, Layout(dp=2), "dp=2: 2 ranks", ascii=True) == (
        "rank 1 of dp=2: 2 ranks\n"
        "\n"
        "coordinate  dp=1\n"
        "\n"
        "axis  index   before  after  group\n"
        "----  ------  ------  -----  -----\n"
        "dp    1 of 2       0      0  0, 1"
    )
    unknown = [name for name, value in report.as_dict().items() if value is None]
    assert unknown == ["node", "slot", "samples", "tokens", "seed"]


@law
@given(layouts(), st.data())
def test_the_report_of_a_rank_agrees_with_the_layout(layout: Layout, data: st.DataObject) -> None:
    node_lists = st.lists(st.integers(0, 3), min_size=layout.num_ranks, max_size=layout.num_ranks)
    topology = Topology.of_hosts(data.draw(node_lists))
    nodes = topology.node_of(range(layout.num_ranks))
    ranks = [int(rank) for rank in layout.ranks]
    batch = BatchPlan.solve(dp=layout.sizes.get("dp", 1), micro_batch=2, accumulation_steps=2)
    lines = format_rank_table(layout, topology, width=400).splitlines()[2:]
    data_axes = tuple(axis for axis in layout.axes if axis == "dp")
    slots = set()
    for position, report in enumerate(rank_reports(layout, ranks, topology, batch, data=data_axes)):
        values = (report.rank, report.node, report.slot, *report.coordinate.values())
        assert lines[position].split() == [*map(str, values)]
        own = batch.samples(0, report.coordinate.get("dp", 0))
        assert report.as_dict()["samples"] == own.tolist()
        assert report.coordinate == layout.coordinate(ranks[position])
        assert report.node == nodes[position]
        mates = sorted(r for r, n in zip(ranks, nodes, strict=True) if n == report.node)
        assert mates[report.slot or 0] == report.rank
        slots.add((report.node, report.slot))
        for axis in report.axes:
            assert list(axis["peers"]) == layout.peers(report.rank, axis["axis"]).tolist()
            assert axis["peers"][axis["index"]] == report.rank
            if len(axis["peers"]) > 1:
                assert axis["before"] == axis["peers"][axis["index"] - 1]
                assert axis["after"] == axis["peers"][(axis["index"] + 1) % len(axis["peers"])]
            else:
                assert (axis["before"], axis["after"]) == (None, None)
    assert len(slots) == layout.num_ranks


def test_axes_cut_the_sequence_by_their_role() -> None:
    layout = factor_world(8, order="data seq context", data=2, seq=2, context=2)
    for rank in range(8):
        _, seq, context = np.unravel_index(rank, (2, 2, 2))
        assert sequence_part(layout, rank) == 2 * context + seq  # cp before sp, in any order
    batch = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
    (report,) = rank_reports(layout, [1], batch=batch, sequence=SequencePlan(16, 4))
    assert report.tokens == (range(8, 12),)
    tokens = "tokens      8-11 of each sequence, which is cut over context seq"
    samples = "samples     0-1, 4-5 in step 0, a range for each micro batch"
    assert {samples, tokens} <= {*format_rank(report, layout, "x").splitlines()}


@law
@given(st.data())
def test_the_slowest_group_and_rank_by_another_derivation(data: st.DataObject) -> None:
    layout = data.draw(layouts(max_ranks=24))
    keys = [(axis,) for axis in layout.axes]
    ranks = [int(rank) for rank in layout.grid.flat]
    times = st.integers(1, 1000).map(lambda ms: ms / 1000)
    seconds = np.array([[data.draw(times) for _ in keys] for _ in ranks]).reshape(len(ranks), -1)
    times_of = {(r, k): seconds[i, j] for i, r in enumerate(ranks) for j, k in enumerate(keys)}
    result = summarize_timings(layout, keys, seconds)
    waited = {
        rank: max(
            max(times_of[p, k] for p in layout.peers(rank, *k).tolist()) - times_of[rank, k]
            for k in keys
        )
        for rank in ranks
    }
    assert result.waited == max(waited.values())
    assert result.slowest_rank is not None
    assert waited[result.slowest_rank] == result.waited
    for group, key in zip(result.groups, keys, strict=True):
        column = {rank: times_of[rank, key] for rank in ranks}
        assert group.slowest_seconds == max(column.values())
        assert max(column[rank] for rank in group.slowest) == group.slowest_seconds
        assert group.slowest == tuple(layout.peers(group.slowest[0], *key).tolist())
        assert group.num_groups * group.group_size == len(ranks)
    assert result.slowest_group is not None
    assert result.slowest_group.slowest_seconds == seconds.max()


def test_the_text_of_a_check() -> None:
    assert REPORT.draw(width=120) == (
        "dp=2 sp=2 tp=1: 4 ranks, launcher slurm, device cuda, backend nccl; "
        "joined and built in 1.25 s\n"
        "group  groups  ranks  median ms  slowest ms  of ranks\n"
        "-----  ------  -----  ---------  ----------  --------\n"
        "dp          2      2      1.000       2.000  1, 3\n"
        "dp sp       1      2      1.000       2.000  1, 3\n"
        "slowest rank: 3 (dp=1 sp=1), its peers wait 500.000 ms for it\n"
        "OK: 3 groups checked in 0.50 s"
    )


def test_the_json_of_a_check() -> None:
    report = json.loads(json.dumps(REPORT.as_dict()))
    assert list(report) == [
        *("ok", "sizes", "launcher", "device", "backend", "built", "checked"),
        *("groups", "slowest_rank", "waited", "coordinate"),
    ]
    assert [*report["groups"][0]] == [
        *("axes", "num_groups", "group_size", "seconds", "slowest", "slowest_seconds", "members")
    ]
    assert report["groups"][0]["members"] == 4
