"""Progress lines: one at the start, one after the first case, then one every 10 seconds."""

from __future__ import annotations

import io
from collections.abc import Callable

from meshkit import Layout
from meshkit.bench.results.measurement import Case
from meshkit.bench.results.targets import parse_targets
from meshkit.bench.run import INTERVAL, Progress

LAYOUT = Layout(dp=2, sp=2)
(DP,) = parse_targets(LAYOUT, ["dp"])
CASES = [Case("broadcast", DP, 64 * 4**i) for i in range(4)]
START = "8 rows in 12 passes, one after the other, each of up to 5 calls\n"


def clock(*seconds: float) -> Callable[[], float]:
    return iter(seconds).__next__


def lines(*seconds: float) -> list[str]:
    stream = io.StringIO()
    progress = Progress(LAYOUT, CASES, 16, 5, stream, clock(*seconds))
    for case, _ in zip(CASES, seconds, strict=False):
        progress(case)
    return stream.getvalue().splitlines(keepends=True)


def test_all_of_it_is_announced_at_the_start() -> None:
    assert lines() == lines(0.0) == [START]


def test_a_line_after_the_first_case_and_then_one_every_interval() -> None:
    first = "25 %: broadcast over dp, 256 bytes\n"
    assert lines(0.0, 1.0, 2.0, 1.0 + INTERVAL - 0.1) == [START, first]
    later = "75 %: broadcast over dp, 4096 bytes\n"
    assert lines(0.0, 1.0, 2.0, 1.0 + INTERVAL) == [START, first, later]


def test_a_sample_has_fewer_passes() -> None:
    stream = io.StringIO()
    Progress(Layout(dp=2, sp=64), CASES[:1], 16, 5, stream)
    assert stream.getvalue().startswith("2 rows in 17 passes, ")


class Full(io.StringIO):
    """A stream that fails at its second line."""

    def write(self, text: str) -> int:
        if self.getvalue():
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_stream_that_fails_is_written_to_no_more() -> None:
    stream = Full()
    progress = Progress(LAYOUT, CASES, 16, 5, stream, clock(0.0, 20.0, 40.0, 60.0))
    for case in CASES:
        progress(case)
    assert stream.getvalue() == START


def test_without_a_stderr_nothing_is_written() -> None:
    progress = Progress(LAYOUT, CASES, 16, 5, None, clock(0.0, 20.0))
    progress(CASES[0])
    progress(CASES[1])
