"""Groups are split from a bound default group: one call a step, on every rank, with every rank."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import meshkit
from tests.live import split_jobs as jobs


def run(sizes: dict[str, int], **options: Any) -> list[Any]:
    told = meshkit.spawn(jobs.split, 8, (sizes, options), timeout=120)
    for calls, descriptions, timeouts, sums, ranks in told:
        assert calls == told[0][0]  # the same on every rank
        assert descriptions == told[0][1]
        assert all(sorted(r for part in call for r in part) == list(range(8)) for call in calls)
        assert set(timeouts) <= {timedelta(seconds=60)}
        assert sums == ranks
    return told


def test_one_split_a_step() -> None:
    told = run({"dp": 4, "sp": 2})
    assert told[0][0] == [[[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert told[0][1] == ["meshkit dp", "meshkit sp"]


def test_axes_of_size_1_are_split_too() -> None:
    """A group that one rank makes alone would leave the others out of a split."""
    told = run({"dp": 8, "tp": 1})
    assert [[rank] for rank in range(8)] in told[0][0]


def test_ranks_outside_the_mesh_are_a_part_of_each_split() -> None:
    told = run({"dp": 2, "sp": 2}, ranks=[1, 2, 5, 6])
    assert all(call[-1] == [0, 3, 4, 7] for call in told[0][0])


def test_what_a_split_would_reorder_is_not_split() -> None:
    told = run({"dp": 4, "sp": 2}, ranks=[7, 6, 5, 4, 3, 2, 1, 0])
    assert told[0][0] == []
