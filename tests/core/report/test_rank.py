"""The report of one rank agrees with the layout and the plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, CoordinateError, Layout, SequencePlan, factor_world, stream_seed
from meshkit.core.report.rank import format_rank, format_rank_table, rank_reports, sequence_part
from meshkit.core.topology.topology import Topology
from meshkit.testing import batch_plans, layouts

LAYOUT = Layout(dp=4, sp=2, tp=1)
NODES = Topology.even(8, nodes=2)
BATCH = BatchPlan.solve(dp=4, global_batch=64, micro_batch=4)
ALL = (NODES, BATCH, SequencePlan(8192, 2), 7)


def test_one_rank_word_for_word() -> None:
    (about,) = rank_reports(LAYOUT, [5], *ALL)
    text = format_rank(about, LAYOUT, "dp=4 sp=2 tp=1: 8 ranks on 2 nodes of 4")
    assert text == (
        "rank 5 of dp=4 sp=2 tp=1: 8 ranks on 2 nodes of 4\n"
        "\n"
        "coordinate  dp=2 sp=1 tp=0\n"
        "node        1, slot 1\n"
        "samples     8-11, 24-27, 40-43, 56-59 in step 0, a range for each micro batch\n"
        "tokens      4096-8191 of each sequence, which is cut over sp\n"
        "seed        4232173327378486640 on all ranks; by axis below\n"
        "\n"
        "axis  index   before  after  group                      seed\n"
        "────  ──────  ──────  ─────  ──────────  ───────────────────\n"
        "dp    2 of 4       3      7  1, 3, 5, 7  5226965292822398527\n"
        "sp    1 of 2       4      4  4, 5         579700634850306452\n"
        "tp    0 of 1       -      -  5           5736562324411063986"
    )
    assert format_rank(about, LAYOUT, "x", ascii=True).isascii()


def test_what_was_not_asked_for_is_left_out() -> None:
    (about,) = rank_reports(Layout(dp=2), [1])
    assert format_rank(about, Layout(dp=2), "dp=2: 2 ranks", ascii=True) == (
        "rank 1 of dp=2: 2 ranks\n"
        "\n"
        "coordinate  dp=1\n"
        "\n"
        "axis  index   before  after  group\n"
        "----  ------  ------  -----  -----\n"
        "dp    1 of 2       0      0  0, 1"
    )
    assert about.as_dict() == {
        **{"rank": 1, "coordinate": {"dp": 1}, "node": None, "slot": None},
        **{"samples": None, "tokens": None, "seed": None},
        "axes": [
            {"axis": "dp", "index": 1, "peers": [0, 1], "before": 0, "after": 0, "seed": None}
        ],
    }


def test_the_dict() -> None:
    (about,) = rank_reports(LAYOUT, [5], *ALL)
    told = about.as_dict()
    assert told["samples"] == BATCH.samples(0, 2).tolist()
    assert told["tokens"] == [[4096, 8191]]
    assert (told["node"], told["slot"], told["seed"]) == (1, 1, stream_seed(7))
    assert [axis["seed"] for axis in about.axes] == [
        stream_seed(7, dp=2),
        stream_seed(7, sp=1),
        stream_seed(7, tp=0),
    ]


@given(layouts(), st.data())
def test_each_rank_is_told_what_the_layout_tells(layout: Layout, data: st.DataObject) -> None:
    dealt = st.lists(st.integers(0, 3), min_size=layout.num_ranks, max_size=layout.num_ranks)
    topology = Topology.of_hosts(data.draw(dealt))
    nodes = topology.node_of(range(layout.num_ranks))
    ranks = [int(rank) for rank in layout.ranks]
    slots = set()
    for position, about in enumerate(rank_reports(layout, ranks, topology)):
        assert about.coordinate == layout.coordinate(ranks[position])
        assert about.node == nodes[position]
        mates = sorted(r for r, n in zip(ranks, nodes, strict=True) if n == about.node)
        assert mates[about.slot or 0] == about.rank
        slots.add((about.node, about.slot))
        for axis in about.axes:
            assert list(axis["peers"]) == layout.peers(about.rank, axis["axis"]).tolist()
            assert axis["peers"][axis["index"]] == about.rank
            if len(axis["peers"]) > 1:
                assert axis["before"] == axis["peers"][axis["index"] - 1]
                assert axis["after"] == axis["peers"][(axis["index"] + 1) % len(axis["peers"])]
            else:
                assert (axis["before"], axis["after"]) == (None, None)
    assert len(slots) == layout.num_ranks


def test_the_part_of_a_sequence_is_the_index_along_cp_and_sp() -> None:
    layout = Layout(dp=2, cp=2, sp=3, tp=2)
    for rank in range(layout.num_ranks):
        group = layout.peers(rank, "cp", "sp").tolist()
        assert group[sequence_part(layout, rank)] == rank
    assert sequence_part(Layout(dp=2), 1) == 0


def test_axes_cut_the_sequence_by_their_role() -> None:
    layout = factor_world(8, order="data seq context", data=2, seq=2, context=2)
    for rank in range(8):
        _, seq, context = np.unravel_index(rank, (2, 2, 2))
        assert sequence_part(layout, rank) == 2 * context + seq  # cp before sp, in any order
    (about,) = rank_reports(layout, [1], sequence=SequencePlan(16, 4))
    assert about.tokens == (range(8, 12),)
    tokens = "tokens      8-11 of each sequence, which is cut over context seq"
    assert tokens in format_rank(about, layout, "x").splitlines()


def test_no_axis_cuts_the_sequence() -> None:
    (about,) = rank_reports(Layout(dp=2), [1], sequence=SequencePlan(16, 1))
    tokens = "tokens      all positions; no axis cuts the sequence"
    assert tokens in format_rank(about, Layout(dp=2), "x").splitlines()


def test_many_ranks() -> None:
    topology = Topology.of_hosts("abab"[i] for i in range(4))
    assert format_rank_table(Layout(dp=2, sp=2), topology, ascii=True) == (
        "rank  node  slot  dp  sp\n"
        "----  ----  ----  --  --\n"
        "   0     0     0   0   0\n"
        "   1     1     0   0   1\n"
        "   2     0     1   1   0\n"
        "   3     1     1   1   1"
    )
    assert format_rank_table(Layout(dp=1)).splitlines()[-1] == "   0     -     -   0"


@given(layouts(), st.data())
def test_all_ranks_are_told_what_each_of_them_is(layout: Layout, data: st.DataObject) -> None:
    size = max(layout.ranks) + 1
    topology = Topology.of_hosts(
        data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    )
    rows = [
        line.split() for line in format_rank_table(layout, topology, width=400).splitlines()[2:]
    ]
    found = rank_reports(layout, [int(rank) for rank in layout.ranks], topology)
    assert rows == [
        [str(n) for n in (about.rank, about.node, about.slot, *about.coordinate.values())]
        for about in found
    ]


@given(batch_plans(), st.data())
def test_samples_are_those_of_the_plan(plan: BatchPlan, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, plan.dp - 1))
    (about,) = rank_reports(Layout(dp=plan.dp), [index], batch=plan)
    assert about.as_dict()["samples"] == plan.samples(0, index).tolist()


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(CoordinateError):
        list(rank_reports(Layout(dp=2), [2]))
