"""What is told on the way, and how often."""

from __future__ import annotations

import io

import pytest

from meshkit import Layout
from meshkit.bench.progress import EMPTY, Progress, announced, line, work
from meshkit.bench.results.measurement import Case
from meshkit.bench.results.run import plan_cases
from meshkit.bench.results.targets import parse_targets

LAYOUT = Layout(dp=4, sp=2)
DP, BOTH, ALL = parse_targets(LAYOUT, ["dp", "dp+sp", "dp sp"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("target", "calls"), [(DP, 2 + 1), (BOTH, 1), (ALL, 1)])
def test_a_case_costs_its_calls_one_after_the_other(target: object, calls: int) -> None:
    assert work(LAYOUT, Case("broadcast", target, 1000), None) == calls * (EMPTY + 1000)  # type: ignore[arg-type]


def test_all_of_it_is_told_before_it_begins() -> None:
    stream = Terminal()
    todo = plan_cases(LAYOUT, ["broadcast"], [DP, BOTH], [64])
    Progress(LAYOUT, todo, 1, 5, stream).begin()
    said = "3 rows in 3 passes, one after the other, each of up to 5 calls"
    assert stream.getvalue() == f"{said}\n"
    assert announced(LAYOUT, todo, None, 5) == said.replace("3 passes", "4 passes")
    assert work(LAYOUT, todo[0], 1) / work(LAYOUT, todo[0], None) == 2 / 3


def told(stream: io.StringIO, step: float) -> str:
    """What four equal cases say, each of which takes so many seconds."""
    now = [50.0]
    todo = plan_cases(LAYOUT, ["broadcast", "all_reduce"], [DP, DP], [64])
    progress = Progress(LAYOUT, todo, None, 5, stream, lambda: now[0])
    for case in todo:
        progress(case)
        now[0] += step
    progress.end()
    return stream.getvalue()


def test_a_terminal_shows_one_line_that_is_written_again() -> None:
    blank, one, two, three, end, last = told(Terminal(), 3.0).split("\r")
    assert blank == last == ""
    assert one.rstrip() == "25 %, 9 s left: broadcast over dp, 64 bytes"
    assert two.rstrip() == "50 %, 6 s left: all_reduce over dp, 64 bytes"
    assert three.rstrip() == "75 %, 3 s left: all_reduce over dp, 64 bytes"
    assert end == " " * 79
    assert {len(line) for line in (one, two, three)} == {79}


def test_elsewhere_there_is_a_line_now_and_then() -> None:
    assert told(io.StringIO(), 4.9) == "75 %, 5 s left: all_reduce over dp, 64 bytes\n"
    assert told(io.StringIO(), 3.0) == ""
    assert told(io.StringIO(), 10.0).count("\n") == 3


class Full(io.StringIO):
    """A terminal on a full disk: it buffers, and says so when it is emptied."""

    flushed = 0

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.flushed += 1
        raise OSError(28, "No space left on device")


def test_where_nothing_can_be_written_it_is_silent() -> None:
    stream = Full()
    told(stream, 4.0)
    assert stream.flushed == 1  # and no more was tried
    progress = Progress(
        LAYOUT, [Case("broadcast", DP, 64)] * 2, 16, 5, None, iter([0.0, 20.0] * 4).__next__
    )
    progress.begin()
    progress(Case("broadcast", DP, 64))
    progress(Case("broadcast", DP, 64))
    progress.end()


def test_a_long_line_is_cut() -> None:
    (long,) = parse_targets(Layout(**{"a" * 60: 2}), ["a" * 60])
    layout = Layout(**{"a" * 60: 2})
    stream, case = Terminal(), Case("reduce_scatter", long, 2**30)
    progress = Progress(layout, [case, case], 16, 5, stream, iter([0.0, 1.0, 2.0]).__next__)
    progress(case)
    progress(case)
    assert len(stream.getvalue()) == 80


@pytest.mark.parametrize(
    ("done", "seconds", "said"),
    [
        (50, 10.0, "50 %, 10 s left: x"),
        (1, 1.0, "1 %, 1 min 39 s left: x"),
        (100, 9.0, "100 %, 0 s left: x"),
        (40, 40.0, "40 %, 1 min 0 s left: x"),
        (99, 1.0, "99 %, 1 s left: x"),
        (50, 3599.0, "50 %, 59 min 59 s left: x"),
        (50, 3600.0, "50 %, 1 h 0 min left: x"),
        (10, 4000.0, "10 %, 10 h 0 min left: x"),
    ],
)
def test_time_left(done: float, seconds: float, said: str) -> None:
    assert line(done, 100, seconds, "x") == said


def test_what_is_left_counts_the_turns_of_a_sample() -> None:
    todo = plan_cases(LAYOUT, ["broadcast"], [DP, BOTH], [64])
    for alone, share in ((1, 67), (None, 75)):
        stream = Terminal()
        progress = Progress(LAYOUT, todo, alone, 5, stream, iter([0.0, 0.0, 3.0]).__next__)
        for case in todo:
            progress(case)
        assert stream.getvalue().startswith(f"\r{share} %, ")
