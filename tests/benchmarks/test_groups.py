"""Process groups counted on live ranks, on both sides."""

from __future__ import annotations

import pytest

import meshkit
from benchmarks import groups


def test_the_groups_of_a_mesh_and_two_views() -> None:
    held = meshkit.spawn(groups.view_groups, 8, timeout=120)
    ours, theirs = held[5]
    lines, pairs = [(1, 3, 5, 7), (4, 5, 6, 7)], [(1, 5), (4, 5), (5, 7)]
    assert sorted(ours) == sorted([tuple(range(8)), *lines, *pairs, (5,)])
    assert (len(theirs), len(set(theirs))) == (9, 7)
    row = groups.count_row("a mesh", held)
    assert (row.ours, row.theirs, row.scale, row.met) == (7, 9, 8, True)


def test_sides_that_hold_different_groups_are_not_counted() -> None:
    with pytest.raises(RuntimeError, match=r"w: rank 1 holds \[\(0, 1\)\] and \[\(1, 0\)\]"):
        groups.count_row("w", [([(0, 1)], [(0, 1)]), ([(0, 1)], [(1, 0)])])
