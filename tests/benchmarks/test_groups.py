"""Process groups counted on live ranks, by both sides."""

from __future__ import annotations

import pytest

import meshkit
from benchmarks import groups


def test_the_views_of_the_readme() -> None:
    held = meshkit.spawn(groups.readme_set, 8, timeout=120)
    ours, theirs = held[5]
    lines, pairs = [(1, 3, 5, 7), (4, 5, 6, 7)], [(1, 5), (4, 5), (5, 7)]
    assert sorted(ours) == sorted([tuple(range(8)), *lines, *pairs, (5,)])
    assert (len(theirs), len(set(theirs))) == (9, 7)
    row = groups.row("the README's", 8, held)
    assert (row.ours, row.theirs, row.unit, row.met) == (7, 9, "groups", True)


def test_the_rank_that_holds_the_most_is_counted() -> None:
    row = groups.row("w", 2, [([(0, 1)], [(0, 1)]), ([(0, 1), (1,)], [(0, 1), (1,), (1,)])])
    assert (row.ours, row.theirs, row.met) == (2, 3, True)


def test_sides_that_hold_other_groups_are_not_counted() -> None:
    with pytest.raises(RuntimeError, match=r"w: rank 1 holds \[\(0, 1\)\] and \[\(1, 0\)\]"):
        groups.row("w", 2, [([(0, 1)], [(0, 1)]), ([(0, 1)], [(1, 0)])])


def test_both_sets_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spawn(job: object, ranks: int, **options: object) -> object:
        asked.append((job, ranks))
        return [([(0,)], [(0,), (0,)])]

    monkeypatch.setattr(meshkit, "spawn", spawn)
    found = groups.run(quick=True)
    assert asked == [(groups.readme_set, 8), (groups.torchtitan_set, 16)]
    assert [row.scale for row in found] == [8, 16]
