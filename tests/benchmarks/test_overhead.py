"""Overhead: the rows, and that both sides answer the same."""

from __future__ import annotations

import pytest

import meshkit
from benchmarks import overhead

from . import overhead_jobs as jobs


def test_questions_on_four_ranks() -> None:
    found = meshkit.spawn(jobs.measured_and_answered, overhead.RANKS, timeout=120)
    for rank, (asked, answers) in enumerate(found):
        assert len(asked) == (6 if rank == 0 else 0)
        assert all(len(side) == 2 for times in asked.values() for side in times)
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


def test_a_row_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {("mesh.group", "get_group"): ([1.0], [2.0]), ("a", "b"): ([3.0], [2.0])}
    monkeypatch.setattr(meshkit, "spawn", lambda *_: [asked, {}])
    group, other = overhead.run(quick=False)
    assert (group.what, group.peer, group.ours, group.theirs) == ("mesh.group", "get_group", 1, 2)
    assert (group.met, other.met) == (True, False)
