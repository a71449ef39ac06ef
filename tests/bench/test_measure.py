"""The sweep of a benchmark on real ranks: its rows, faults, disagreements and progress."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit import SpawnError
from meshkit.bench import calls, measure, results
from meshkit.bench.calls import begin_collective
from meshkit.bench.measure import (
    BenchRequest,
    Sweep,
    SweepOptions,
    grow_seconds,
    run_benchmark,
    seconds_of_pass,
)
from meshkit.bench.results import (
    ALONE,
    CONCURRENT,
    OPERATIONS,
    OVERLAP,
    Measurement,
    parse_targets,
    plan_cases,
)
from meshkit.launch.log import LOG_INTERVAL, Progress
from tests.bench.faulty_calls import before_each_call, raise_not_supported
from tests.promises import BUSY

LIMIT = 90
CPU = torch.device("cpu")
LATE = {"slow": 0.2, "stuck": 3.0}  # seconds


# ---------------------------------------------------------------- sweeps of real ranks


def sweep_on_a_mesh(
    operations: Sequence[str],
    names: Sequence[str],
    fault: str = "",
    timeout: float = 20.0,
    iters: int = 4,
) -> list[Measurement]:
    """Return the rows of a sweep with a fault on some ranks."""
    groups = [name for name in names if " " in name] or None
    with (
        meshkit.build_mesh(dp=2, sp=2, groups=groups) as mesh,
        pytest.MonkeyPatch.context() as patch,
    ):
        rank, num_cases = mesh.rank, 0

        def begin_case(_: str) -> None:
            nonlocal num_cases
            num_cases += 1
            if rank == 1 and num_cases == 2 and fault == "hangs":
                time.sleep(6)
            if rank == 1 and num_cases == 2 and fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)

        if fault == "full" and rank == 1:
            patch.setattr(measure, "prepare_call", lambda *_, **__: torch.empty(2**60))
        if fault == "lacks":
            raise_not_supported(patch, "all_to_all")
        if fault == "slow":
            patch.setattr(results, "MAX_ROUNDS", 4)
        if fault in LATE and rank == 2:
            before_each_call(patch, "all_reduce", lambda: time.sleep(LATE[fault]))
        cases = plan_cases(mesh.layout, operations, parse_targets(mesh.layout, names), [64])
        options, progress = SweepOptions(1, iters, timeout), Progress("", None)
        patch.setattr(progress, "show", begin_case)
        return Sweep(mesh, CPU, options, progress).run(cases)


def swept(*given: object) -> list[Measurement]:
    """Return the rows of a sweep, which must be the same on all ranks."""
    rows, *others = meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    assert all(other == rows for other in others)
    return rows


def test_every_operation_in_every_mode() -> None:
    rows = swept(list(OPERATIONS), ["dp", "dp sp", "dp+sp"])
    each = [("dp", ALONE, 2), ("dp", CONCURRENT, 2), ("dp sp", ALONE, 1), ("dp+sp", OVERLAP, 1)]
    assert [(r.case.op, r.case.target.name, r.mode, r.groups) for r in rows] == [
        (op, *mode) for op in OPERATIONS for mode in each
    ]
    for row in rows:
        assert (row.wrong, row.calls) == (0, 4)
        assert 0 < row.median <= row.p99


def times_of_calls(max_alone: int | None = None) -> list[tuple[float, float]]:
    """Return when this rank was in each timed call over dp: alone, then with all groups."""
    times: list[tuple[float, float]] = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh, pytest.MonkeyPatch.context() as patch:

        def begin(*given: Any) -> calls.Works:
            began = time.monotonic()
            begin_collective(*given)
            time.sleep(0.03)
            times.append((began, time.monotonic()))
            return []

        patch.setattr(calls, "begin_collective", begin)
        cases = plan_cases(mesh.layout, ["all_reduce"], parse_targets(mesh.layout, ["dp"]), [64])
        options = SweepOptions(0, 2, 20.0, max_alone)
        Sweep(mesh, CPU, options, Progress("", None)).run(cases)
    return times


def test_alone_groups_take_turns_and_concurrent_groups_do_not() -> None:
    by_rank = meshkit.spawn(times_of_calls, 4, timeout=LIMIT)
    assert {len(row) for row in by_rank} == {6}  # one checked, the next, two alone, two concurrent

    def span(rank: int, calls: slice) -> tuple[float, float]:
        return by_rank[rank][calls][0][0], by_rank[rank][calls][-1][1]

    alone, concurrent = slice(2, 4), slice(4, 6)
    for rank, other in ((0, 1), (2, 3), (0, 3)):  # members of sp=0 and of sp=1
        assert span(rank, alone)[1] <= span(other, alone)[0]
        assert span(rank, concurrent)[0] < span(other, concurrent)[1]
        assert span(other, concurrent)[0] < span(rank, concurrent)[1]


def test_only_a_sample_of_the_groups_takes_turns() -> None:
    by_rank = meshkit.spawn(times_of_calls, 4, (1,), timeout=LIMIT)
    assert [len(row) for row in by_rank] == [6, 4, 6, 4]  # the second group is not alone


def test_a_slow_call_is_made_less_often() -> None:
    # one group takes 0.2 s: a quarter of 2 s holds two calls, of three in each of 4 rounds
    rows = swept(["all_reduce"], ["dp"], "slow", 2.0, 12)
    assert [row.calls for row in rows] == [8, 8]
    assert all(row.p99 > 0.2 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "limit"), [("hangs", 1.0), ("dies", 20.0)])
def test_a_rank_that_hangs_or_dies_is_named(fault: str, limit: float) -> None:
    given = ["broadcast"], ["dp", "sp"], fault, limit
    with pytest.raises(SpawnError) as caught:
        meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    texts = [str(error) for rank, error in caught.value.errors.items() if rank != 1]
    assert texts
    assert all("rank 1 (dp=0 sp=1)" in text for text in texts)
    assert all(text.startswith(f"mesh.guard(timeout={limit:g}): ") for text in texts)
    during = "\n  It was one of the collectives that measure broadcast over sp, 64 bytes.\n  Fix: "
    assert all(during in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "waiting"), [("dp", "in all_reduce over dp, "), ("dp+sp", "in all_reduce over sp, ")]
)
def test_ranks_report_the_call_in_which_they_wait(target: str, waiting: str) -> None:
    given = ["all_reduce"], [target], "stuck", 1.0
    with pytest.raises(SpawnError) as caught:
        meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    text = str(caught.value.errors[0])
    assert waiting in text
    assert "rank 2 (dp=1 sp=0) has begun " in text
    assert text.count("in no collective, test_measure.py:") == 1
    assert f" that measure all_reduce over {target}, 64 bytes.\n" in text


@pytest.mark.parametrize(
    ("op", "fault", "lines", "of_rank_0"),
    [
        (
            "all_to_all",
            "lacks",
            [
                "all_to_all over dp, 64 bytes on rank 1: the backend does not have it.",
                "  Backend gloo does not support all_to_all",
                "  Fix: --ops all_reduce,all_gather,reduce_scatter,broadcast,send_recv.",
            ],
            "all_to_all over dp, 64 bytes on rank 0: ",
        ),
        (
            "broadcast",
            "full",
            [
                "broadcast over dp, 64 bytes on rank 1: the arrays do not fit into memory.",
                "you tried to allocate 4611686018427387904 bytes",
                "  Fix: --sizes 16.",
            ],
            " left with MeshkitError: broadcast over dp, 64 ",
        ),
    ],
)
def test_a_backend_that_cannot_run_an_operation(
    op: str, fault: str, lines: list[str], of_rank_0: str
) -> None:
    with pytest.raises(SpawnError) as caught:
        meshkit.spawn(sweep_on_a_mesh, 4, ([op], ["dp"], fault), timeout=LIMIT)
    texts = str(caught.value.errors[1]).splitlines()
    assert all(line in text for line, text in zip(lines, texts, strict=True))
    assert of_rank_0 in str(caught.value.errors[0])


def disagreements(others: Sequence[dict[str, Any]]) -> list[str]:
    """Return the error of each request in which rank 1 differs; nothing may be measured."""
    layout = meshkit.Layout(dp=2)
    targets = parse_targets(layout, ["dp"])
    usual = BenchRequest({"dp": 2}, None, ("broadcast",), targets, (64,), SweepOptions(1, 2, 20.0))
    errors = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "begin_collective", lambda *_: sys.exit("it was measured"))
        for other in others:
            request = replace(usual, **other) if meshkit.detect().rank == 1 else usual
            with pytest.raises(meshkit.DisagreementError) as caught:
                run_benchmark(request, layout, "cpu")
            errors.append(str(caught.value))
    return errors


def test_different_measurements_are_reported_before_the_first() -> None:
    others = [
        ("--ops", {"operations": ("all_reduce",)}, "broadcast", "all_reduce"),
        ("--sizes", {"sizes": (64, 256)}, "64", "64,256"),
        ("--iters", {"options": SweepOptions(1, 5, 20.0)}, "2", "5"),
        ("--warm-up", {"options": SweepOptions(0, 2, 20.0)}, "1", "0"),
        ("--alone", {"options": SweepOptions(1, 2, 20.0, 3)}, "all", "3"),
    ]
    requests = [row[1] for row in others]
    errors, same = meshkit.spawn(disagreements, 2, (requests,), timeout=LIMIT)
    assert errors == same
    for text, (option, _, usual, other) in zip(errors, others, strict=True):
        first, rank0, rank1, fix = text.splitlines()
        assert first == "ranks disagree about what to measure; nothing was measured."
        assert rank0 == f"  rank 0:  {option}={usual}"
        assert rank1.startswith("  rank 1 (")
        assert rank1.endswith(f"):  {option}={other}")
        assert fix == f"  Fix: pass equal {option} on every rank."


def lines_of_a_run(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the progress of a run of one rank, in which each look at the clock takes seconds."""
    stream, clock = io.StringIO(), itertools.count(0.0, seconds).__next__
    monkeypatch.setattr(measure, "Progress", lambda title, _: Progress(title, stream, clock))
    layout, options = meshkit.Layout(dp=1), SweepOptions(0, 2, 20.0)
    target = measure.Target((("dp",),))
    request = BenchRequest({"dp": 1}, None, ("broadcast",), (target,), (64, 256), options)
    run_benchmark(request, layout, "cpu")
    meshkit.shutdown()
    return stream.getvalue().splitlines()


def test_progress_shows_the_case_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    start, *lines = lines_of_a_run(LOG_INTERVAL, monkeypatch)
    assert start == "meshkit bench: broadcast over dp, 64 to 256 bytes: 2 calls each"
    states = dict.fromkeys(line.partition(" s: ")[2] for line in lines)
    cases = [re.sub(r", \d+ s left$", "", state) for state in states]
    assert cases == ["broadcast over dp, 64 bytes", "broadcast over dp, 256 bytes"]


def test_seconds_grow_on_the_line_through_two_sizes() -> None:
    assert grow_seconds({}, 1) == grow_seconds({4: 1.0}, 16) == 0.0
    assert grow_seconds({1: 9.0, 4: 2.0, 16: 5.0}, 64) == 5.0 + 3.0 * 48 / 12
    assert grow_seconds({4: 2.0, 16: 1.5}, 64) == 1.5  # by chance the larger was the faster


@given(st.floats(-5.0, 10.0), st.integers(0, 100), st.floats(1.0, 1e4))
def test_passes_are_longer_only_if_there_is_time_for_the_rounds(
    left: float, number: int, passes: float
) -> None:
    seconds = seconds_of_pass(left, number, passes)
    assert measure.LEAST_SLICE <= seconds <= measure.MOST_SLICE
    needed = max(measure.ROUNDS - number, 1) * passes * seconds
    assert seconds == measure.LEAST_SLICE or needed <= left + 1e-9
    assert seconds == measure.MOST_SLICE or needed >= left - 1e-9


def sizes_by_time(late: float) -> tuple[float, list[int], list[int]]:
    """Return the seconds, sizes and calls of a sweep by time in which each element costs time."""
    with meshkit.build_mesh(dp=2, sp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        begin = calls.begin_collective

        def begin_late(op: str, out: torch.Tensor, *given: Any) -> calls.Works:
            if mesh.rank == 1:  # the ranks must still choose alike
                time.sleep(late * out.numel())
            return begin(op, out, *given)

        patch.setattr(calls, "begin_collective", begin_late)
        patch.setattr(measure, "BUDGET", 3.0)
        targets = parse_targets(mesh.layout, ["dp"])
        cases = plan_cases(mesh.layout, ["all_reduce"], targets, [64, 256, 1024, 4096, 65536])
        sweep = Sweep(mesh, CPU, SweepOptions(1, None, 20.0), Progress("", None))
        began = time.monotonic()
        rows = sweep.run(cases)
        return time.monotonic() - began, [row.case.bytes for row in rows], [r.calls for r in rows]


def test_sizes_and_calls_are_chosen_by_time_alike_on_all_ranks() -> None:
    # 65536 bytes would take 0.16 s a call, 9 in each of 9 rounds
    by_rank = meshkit.spawn(sizes_by_time, 4, (1e-5,), timeout=LIMIT)
    assert all(row[1:] == by_rank[0][1:] for row in by_rank)
    seconds, sizes, num_calls = by_rank[0]
    assert seconds < measure.LONGEST + BUSY
    assert sizes[0] == 64
    assert 65536 not in sizes
    assert min(num_calls) >= 2
