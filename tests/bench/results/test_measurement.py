"""Times of ranks to times of groups: by loops, and by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.bench.results.measurement import Case, Measurement, group_sizes, summarize
from meshkit.bench.results.targets import (
    ALONE,
    CONCURRENT,
    OVERLAP,
    Target,
    default_targets,
    parse_targets,
)
from meshkit.testing import layouts

quick = settings(deadline=None, max_examples=60, database=None)
LAYOUT = Layout(dp=2, sp=2)
DP = Target((("dp",),))


def test_by_hand() -> None:
    # ranks 0 and 2 are one group, 1 and 3 the other; two calls
    seconds = np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 1.0], [4.0, 4.0]])
    row = summarize(LAYOUT, Case("all_reduce", DP, 8 * 10**9), CONCURRENT, seconds, 7)
    assert (row.median, row.p99) == (3.0, 5.0)  # of 2, 2, 4, 5
    assert row.calls == 2  # of each group, not of all together
    assert (row.wrong, row.sizes, row.mode, row.unsupported) == (7, (2,), "concurrent", None)
    assert row.algbw == row.busbw == pytest.approx(8 / 3)  # 2 (n-1)/n is 1 for two ranks


def test_two_axes_at_once_have_no_bandwidth() -> None:
    (both,) = parse_targets(LAYOUT, ["dp+sp"])
    seconds = np.array([[1.0], [3.0], [2.0], [4.0]])
    row = summarize(LAYOUT, Case("all_reduce", both, 1024), OVERLAP, seconds)
    assert (row.sizes, row.median, row.algbw, row.busbw) == ((2, 2), 4.0, None, None)
    lack = Measurement(Case("all_reduce", DP, 1024), ALONE, (2,), unsupported="no such thing")
    assert (lack.algbw, lack.busbw) == (None, None)


@quick
@given(layouts(max_ranks=24, with_ranks=True), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_times_of_measured_groups_by_loops(layout: Layout, calls: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.1, 1.0, (layout.num_ranks, calls))
    by_rank = dict(zip((int(rank) for rank in layout.grid.flat), seconds.tolist(), strict=True))
    for target in default_targets(layout):
        groups = layout.groups(*target.span)
        chosen = groups[: rng.integers(1, len(groups) + 1)]
        skipped = seconds.copy()
        skipped[~np.isin(layout.grid.ravel(), chosen)] = np.nan
        row = summarize(layout, Case("broadcast", target, 4), ALONE, skipped)
        times = [max(by_rank[r][call] for r in group) for group in chosen for call in range(calls)]
        assert row.median == pytest.approx(statistics.median(times))
        enough = [t for t in times if 100 * sum(w <= t for w in times) >= 99 * len(times)]
        assert row.p99 == min(enough)
        assert (row.groups, row.num_groups, row.calls) == (len(chosen), len(groups), calls)
        assert group_sizes(layout, target) == tuple(
            len(layout.peers(int(layout.grid.flat[0]), *axes)) for axes in target.groups
        )
