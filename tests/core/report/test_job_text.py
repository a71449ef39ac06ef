"""Sheets, character by character."""

from __future__ import annotations

import pytest

from meshkit import BatchPlan, Layout
from meshkit.core.grid.group_plan import GroupPlan
from meshkit.core.report.job import JobReport, format_job, headline
from meshkit.core.topology.topology import Topology


def test_a_narrow_sheet_and_its_twin() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    batch = BatchPlan.solve(dp=2, global_batch=1024, micro_batch=4)
    overview = JobReport.of(GroupPlan.of(layout), Topology.of_sizes([3, 5]), batch)
    text = format_job(overview, width=50)
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
        "           tp talks in every layer, and must sit\n"
        "             on the nearest wires.\n"
        "           Fix: build_mesh(dp=4, sp=2, tp=1)."
    )
    twin = text.translate(str.maketrans("┌─┐│└┘", "+-+|++"))
    table, _, rest = twin.partition("\n\n+")
    assert format_job(overview, width=50, ascii=True) == f"{table}\n\n+{rest}"


@pytest.mark.parametrize("width", [1, 40, 61, 80])
@pytest.mark.parametrize("ascii", [False, True])
def test_a_sheet_fits(width: int, ascii: bool) -> None:
    layout = Layout(pp=16, dp=128, tp=8)
    overview = JobReport.of(GroupPlan.of(layout), Topology.even(16384, nodes=2048))
    drawn = format_job(overview, width=width, ascii=ascii)
    assert drawn.isascii() is ascii
    # five columns of numbers are 55 wide, and no number is cut
    assert max(map(len, drawn.splitlines())) <= max(width, 55)


def test_headlines() -> None:
    assert headline(Layout(dp=1)) == "dp=1: 1 rank"
    assert headline(Layout(dp=2), Topology.even(2, nodes=1)) == "dp=2: 2 ranks on 1 node of 2"
