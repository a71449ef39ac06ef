"""Progress of a sweep: its size at the start, then the case that begins."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

from meshkit import Layout
from meshkit.bench.results.measurement import Case
from meshkit.bench.results.targets import parse_targets
from meshkit.bench.run import CaseProgress
from meshkit.launch.output.progress import LOG_INTERVAL, Progress

LAYOUT = Layout(dp=2, sp=2)
(DP,) = parse_targets(LAYOUT, ["dp"])
CASES = [Case("broadcast", DP, 64 * 4**i) for i in range(4)]
START = "8 rows in 12 passes, one after the other, each of up to 5 calls\n"


def clock(step: float) -> Callable[[], float]:
    return itertools.count(0.0, step).__next__


def lines(step: float) -> list[str]:
    """Return the lines of a sweep in which each look at the clock takes ``step`` seconds."""
    stream = io.StringIO()
    progress = CaseProgress(LAYOUT, CASES, 16, 5, Progress("bench", stream, clock(step)))
    for case in CASES:
        progress(case)
    return stream.getvalue().splitlines(keepends=True)


def test_all_of_it_is_announced_at_the_start() -> None:
    assert lines(0.0) == [START]


def test_the_case_that_begins_is_shown_if_30_s_have_passed() -> None:
    start, *cases = lines(LOG_INTERVAL)
    assert start == START
    assert [line.partition(" s: ")[2] for line in cases] == [
        "0 %: broadcast over dp, 64 bytes\n",
        "25 %: broadcast over dp, 256 bytes\n",
        "50 %: broadcast over dp, 1024 bytes\n",
        "75 %: broadcast over dp, 4096 bytes\n",
    ]


def test_a_sample_has_fewer_passes() -> None:
    stream = io.StringIO()
    CaseProgress(Layout(dp=2, sp=64), CASES[:1], 16, 5, Progress("bench", stream))
    assert stream.getvalue().startswith("2 rows in 17 passes, ")
