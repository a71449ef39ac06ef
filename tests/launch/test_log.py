"""The log: one line on rank 0 for a job and for a mesh, and the seconds of a start on request."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from io import StringIO

import pytest

import meshkit
from benchmarks.agreement import count_store_calls
from meshkit.launch.log import Startup, log_line, slowest_ranks

PHASES = ["store", "arrival", "default group", "agreement", "groups", "end"]
Build = tuple[list[str], str, Counter[str]]


def build(level: str, verbose: bool, timeout: float) -> Build:
    """Return the phases of a mesh with a pipeline, stderr, and the operations on the store."""
    os.environ["MESHKIT_LOG"] = level
    stderr = StringIO()
    with pytest.MonkeyPatch.context() as patch, count_store_calls() as counts:
        patch.setattr(sys, "stderr", stderr)
        meshkit.init(arrival_timeout=20, verbose=verbose)
        mesh = meshkit.build_mesh(pp=2, dp=2, timeout=timeout, arrival_timeout=20)
        phases = [*mesh.startup.phases]
        assert [*mesh.view(pp=2, dp=2).startup.phases] == phases
    return phases, stderr.getvalue(), Counter(counts)


JOB = r"meshkit: joined a job: world_size 4, launcher spawn, backend gloo, device cpu, \d+\.\d\d s"
MESH = r"meshkit: built a mesh: pp=2 dp=2, 4 groups, 4 created, \d+\.\d\d s"
SEND = r"meshkit: send and recv along pp wait 4 s, a fifth of arrival_timeout, not 61 s; .*"
SLOWEST = r"meshkit: build_mesh\(.*\) on 4 ranks: " + ", ".join(
    rf"{phase} \S+ s on rank \d" for phase in PHASES[:-1]
)


def run_builds(level: str, *, verbose: bool = False, timeout: float = 4) -> list[Build]:
    builds = meshkit.spawn(build, 4, (level, verbose, timeout), timeout=60)
    assert [phases for phases, _, _ in builds] == [PHASES] * 4
    assert [stderr for _, stderr, _ in builds[1:]] == [""] * 3
    return builds


@pytest.mark.parametrize(
    ("level", "verbose", "timeout", "patterns"),
    [
        ("info", False, 61, [JOB, SEND, MESH]),  # a send that waits less than the timeout
        ("", True, 4, [JOB, MESH]),
    ],
)
def test_rank_0_logs_on_request(
    level: str, verbose: bool, timeout: float, patterns: list[str]
) -> None:
    lines = run_builds(level, verbose=verbose, timeout=timeout)[0][1].splitlines()
    for pattern in patterns:
        assert len([line for line in lines if re.fullmatch(pattern, line)]) == 1, (pattern, lines)
    assert any("send and recv" in line for line in lines) == (SEND in patterns)


def test_the_slowest_ranks_are_logged_on_request_and_cost_the_other_ranks_nothing() -> None:
    logged, quiet = run_builds("debug"), run_builds("")
    assert quiet[0][1] == ""
    assert any(re.fullmatch(SLOWEST, line) for line in logged[0][1].splitlines()), logged[0][1]
    for (_, _, with_log), (_, _, without) in zip(logged[1:], quiet[1:], strict=True):
        assert with_log["set"] == without["set"]
        assert with_log["compare_set"] <= without["compare_set"] + 2  # looks at the file vary


def test_an_unknown_level_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHKIT_LOG", "loud")
    with pytest.warns(RuntimeWarning, match="MESHKIT_LOG='loud' is no level"):
        log_line("a line")


def test_a_program_that_configures_the_logger_gets_the_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MESHKIT_LOG", raising=False)
    log_line("a line")
    with caplog.at_level(logging.INFO, "meshkit"):
        log_line("a line of %d ranks", 4)
    assert caplog.messages == ["a line of 4 ranks"]


def test_the_seconds_of_a_start() -> None:
    startup = Startup({"store": 0.25, "groups": 1.5})
    assert (startup.seconds, str(startup)) == (1.75, "store 0.25 s, groups 1.5 s")
    by_rank = {0: {"store": 0.1, "groups": 2.0}, 1: {"store": 0.3, "groups": 1.0}}
    assert slowest_ranks(by_rank) == "store 0.3 s on rank 1, groups 2 s on rank 0"
