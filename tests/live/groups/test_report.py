"""The report on the groups of a rank."""

from __future__ import annotations

from meshkit.live.groups.report import GroupEntry, GroupsReport


def test_a_report_is_a_table() -> None:
    report = GroupsReport(
        5,
        {0: "dp=8 sp=2", 2: "ep=8 tp=2"},
        (
            GroupEntry((*range(16),), "default", "gloo", 1800.0, ((0, "all"), (2, "all"))),
            GroupEntry((4, 5), "created", "gloo", 30.0, ((0, "sp"), (2, "tp"))),
            GroupEntry((5,), "external", "nccl", None, ()),
        ),
    )
    assert report.communicators == 3
    assert str(report).splitlines() == [
        "rank 5 holds 3 process groups, 1 created.",
        "  view 0: dp=8 sp=2",
        "  view 2: ep=8 tp=2",
        "  16 ranks [0, 1, ..., 15]  default   gloo 1800 s  0: all; 2: all",
        "  2 ranks [4, 5]            created   gloo 30 s    0: sp; 2: tp",
        "  1 rank [5]                external  nccl",
    ]


def test_one_group() -> None:
    report = GroupsReport(0, {0: "dp=1"}, (GroupEntry((0,), "default", "gloo", 1.0, ((0, "dp"),)),))
    assert str(report).startswith("rank 0 holds 1 process group, 0 created.\n")
