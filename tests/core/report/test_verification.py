"""The findings of a check of every group."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.core.report.verification import summarize_timings
from meshkit.testing import layouts


@given(st.data())
def test_the_slowest_by_a_derivation_of_its_own(data: st.DataObject) -> None:
    layout = data.draw(layouts(max_ranks=24))
    keys = [(axis,) for axis in layout.axes]
    ranks = [int(rank) for rank in layout.grid.flat]
    times = st.integers(1, 1000).map(lambda ms: ms / 1000)
    seconds = np.array([[data.draw(times) for _ in keys] for _ in ranks]).reshape(len(ranks), -1)
    took = {(r, k): seconds[i, j] for i, r in enumerate(ranks) for j, k in enumerate(keys)}
    found = summarize_timings(layout, keys, seconds)
    waited = {
        rank: max(
            max(took[p, k] for p in layout.peers(rank, *k).tolist()) - took[rank, k] for k in keys
        )
        for rank in ranks
    }
    assert found.waited == max(waited.values())
    assert found.slowest_rank is not None
    assert waited[found.slowest_rank] == found.waited
    for one, key in zip(found.groups, keys, strict=True):
        column = {rank: took[rank, key] for rank in ranks}
        assert one.slowest_seconds == max(column.values())
        assert max(column[rank] for rank in one.slowest) == one.slowest_seconds
        assert one.slowest == tuple(layout.peers(one.slowest[0], *key).tolist())
        assert one.num_groups * one.group_size == len(ranks)
    assert found.slowest_group is not None
    assert found.slowest_group.slowest_seconds == seconds.max()


def test_word_for_word() -> None:
    layout = meshkit.Layout(dp=2, sp=2)
    seconds = np.array([[0.5, 0.002], [0.25, 0.002], [0.1, 0.002], [0.25, 0.001]])
    found = summarize_timings(layout, [("dp",), ("sp",)], seconds)
    assert str(found) == (
        "group  groups  ranks  median ms  slowest ms  of ranks\n"
        "─────  ──────  ─────  ─────────  ──────────  ────────\n"
        "dp          2      2    375.000     500.000  0, 2\n"
        "sp          2      2      2.000       2.000  0-1\n"
        "slowest rank: 2 (dp=1 sp=0), its peers wait 400.000 ms for it"
    )


def test_nothing_to_wait_for() -> None:
    found = summarize_timings(meshkit.Layout(dp=1), [], np.zeros((1, 0)))
    assert (found.groups, found.slowest_rank, found.slowest_group) == ((), None, None)
    assert len(str(found).splitlines()) == 2
