"""A run with all modes, an overlap and a wrong element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshkit import Layout
from meshkit.bench.results import (
    ALONE,
    CONCURRENT,
    OVERLAP,
    BenchmarkRun,
    Case,
    FirstCall,
    Measurement,
    parse_targets,
    summarize_target,
)

LAYOUT = Layout(dp=2, sp=2)
DP, SP, BOTH = parse_targets(LAYOUT, ["dp", "sp", "dp+sp"])


def took(*milliseconds: float) -> list[np.ndarray]:
    """Return a round of three calls on four ranks, around these medians."""
    middle = np.array(milliseconds)[:, None] / 1e3
    return [middle + np.array([[-1e-4, 0.0, 1e-4]])]


def summarize_case(
    layout: Layout, case: Case, mode: str, rounds: Sequence[np.ndarray], wrong: int
) -> Measurement:
    """Return the measurement of a target of one case."""
    (row,) = summarize_target(layout, mode, {case: rounds}, {case: wrong})
    return row


ROWS = (
    summarize_case(LAYOUT, Case("all_reduce", DP, 1024), ALONE, took(1, 1, 1, 2), 0),
    summarize_case(LAYOUT, Case("all_reduce", DP, 1024), CONCURRENT, took(2, 3, 2, 3), 0),
    summarize_case(LAYOUT, Case("all_reduce", DP, 1048576), ALONE, took(4, 4, 4, 4), 0),
    summarize_case(LAYOUT, Case("all_reduce", DP, 1048576), CONCURRENT, took(8, 6, 8, 6), 0),
    summarize_case(LAYOUT, Case("all_reduce", SP, 1024), ALONE, took(1, 1, 1, 1), 3),
    summarize_case(LAYOUT, Case("all_reduce", SP, 1024), CONCURRENT, took(1, 1, 2, 2), 3),
    summarize_case(LAYOUT, Case("all_reduce", BOTH, 1024), OVERLAP, took(5, 5, 5, 5), 0),
)
REPORT = BenchmarkRun(
    sizes={"dp": 2, "sp": 2},
    launcher="spawn",
    device="cpu",
    backend="gloo",
    torch="2.13.0",
    hosts=("a", "a", "b", "b"),
    warm_up=3,
    iters=20,
    first_calls=(FirstCall(("dp",), (0.25, 0.5), None),),
    measurements=ROWS,
    seconds=1.25,
)
CLEAN = replace(REPORT, measurements=ROWS[:4])
