"""Overhead: the rows, and that both sides answer the same."""

from __future__ import annotations

import pytest

import meshkit
from benchmarks import overhead

from . import overhead_jobs as jobs


def test_collectives_and_questions_on_four_ranks() -> None:
    found = meshkit.spawn(jobs.measured_and_answered, overhead.RANKS, timeout=120)
    for rank, (times, asked, answers) in enumerate(found):
        assert [*times] == [*overhead.BYTES]
        for ours, theirs in times.values():
            assert len(ours) == len(theirs) == 2
            assert min(*ours, *theirs) > 0
        assert len(asked) == (6 if rank == 0 else 0)
        dp, tp = divmod(rank, 2)
        other = (1 - dp) * 2 + tp
        members = sorted([rank, other])
        assert answers == {
            ("mesh.group", "get_group"): (members, members),
            ("mesh.coordinate", "get_coordinate"): ({"dp": dp, "tp": tp}, (dp, tp)),
            ("mesh.coordinate", "get_coordinate, named"): ({"dp": dp, "tp": tp},) * 2,
            ("mesh.coordinate[axis]", "get_local_rank"): (dp, dp),
            ("mesh.neighbor", "get_local_rank"): (other, dp),
            ("mesh.neighbor", "the same by hand"): (other, other),
        }


def test_a_collective_takes_as_long_as_its_slowest_rank() -> None:
    row = overhead.collective_row(4096, [([1.0, 4.0], [2.0, 2.0]), ([3.0, 2.0], [1.0, 4.0])])
    assert row.what == "all_reduce of 4 KiB over mesh.group"
    assert (row.ours, row.theirs) == (3.5, 3.0)
    assert row.ratio is not None
    assert row.ratio.median == 1.25  # of 3 / 2 and 4 / 4


def test_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {size: ([1.0], [1.0]) for size in overhead.BYTES}
    asked = {("mesh.group", "get_group"): ([1.0], [2.0])}
    monkeypatch.setattr(meshkit, "spawn", lambda *_: [(times, asked), (times, {})])
    first, second, group = overhead.run(quick=False)
    assert (first.met, second.met, group.met) == (True, True, True)
    assert (group.what, group.peer) == ("mesh.group", "get_group")
