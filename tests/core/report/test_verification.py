"""Timings of every group: the slowest group and rank, as data and as text."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.core.report.verification import summarize_timings
from meshkit.testing import layouts
from tests.core.report.example_reports import REPORT


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


def test_the_text_of_a_verification() -> None:
    layout = meshkit.Layout(dp=2, sp=2)
    seconds = np.array([[0.5, 0.002], [0.25, 0.002], [0.1, 0.002], [0.25, 0.001]])
    result = summarize_timings(layout, [("dp",), ("sp",)], seconds)
    assert str(result) == (
        "group  groups  ranks  median ms  slowest ms  of ranks\n"
        "─────  ──────  ─────  ─────────  ──────────  ────────\n"
        "dp          2      2    375.000     500.000  0, 2\n"
        "sp          2      2      2.000       2.000  0-1\n"
        "slowest rank: 2 (dp=1 sp=0), its peers wait 400.000 ms for it"
    )


def test_a_mesh_of_one_rank() -> None:
    result = summarize_timings(meshkit.Layout(dp=1), [], np.zeros((1, 0)))
    assert (result.groups, result.slowest_rank, result.slowest_group) == ((), None, None)
    assert len(str(result).splitlines()) == 2


def test_the_text_of_a_check() -> None:
    assert REPORT.draw(width=120) == (
        "dp=2 sp=2 tp=1: 4 ranks, launcher slurm, device cuda, backend nccl; "
        "joined and built in 1.25 s\n"
        "OK  dp     2 groups of 2  4 members took 1.000 ms, at most 2.000 ms on ranks 1, 3\n"
        "OK  dp sp  1 group of 2   2 members took 1.000 ms, at most 2.000 ms on ranks 1, 3\n"
        "OK  tp     4 groups of 1  nothing to check\n"
        "OK: 3 groups checked in 0.50 s; rank 3 (dp=1 sp=1) came last, by 500.000 ms"
    )


def test_the_json_of_a_check() -> None:
    report = json.loads(json.dumps(REPORT.as_dict()))
    assert list(report) == [
        *("ok", "sizes", "launcher", "device", "backend", "built", "checked"),
        *("groups", "slowest_rank", "waited", "coordinate"),
    ]
    assert report["groups"][0] == {
        "axes": ["dp"],
        "num_groups": 2,
        "group_size": 2,
        "seconds": 0.001,
        "slowest": [1, 3],
        "slowest_seconds": 0.002,
        "members": 4,
    }
    assert (report["built"], report["checked"], report["slowest_rank"]) == (1.25, 0.5, 3)
