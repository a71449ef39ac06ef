"""The seconds of a start: on a rank, on the slowest ranks, and in the log of rank 0."""

from __future__ import annotations

import os
import sys
from collections import Counter
from io import StringIO
from typing import Any

import pytest

import meshkit
from benchmarks.agreement import count_store_calls
from meshkit.launch.log import Startup, slowest_ranks

PHASES = ["store", "arrival", "default group", "agreement", "groups", "end"]


def test_the_seconds_of_a_start() -> None:
    startup = Startup({"store": 0.25, "groups": 1.5})
    assert (startup.seconds, str(startup)) == (1.75, "store 0.25 s, groups 1.5 s")
    assert (Startup().seconds, str(Startup())) == (0, "")


def test_each_phase_has_a_slowest_rank_of_its_own() -> None:
    by_rank = {0: {"store": 0.1, "groups": 2.0}, 1: {"store": 0.3, "groups": 1.0}}
    assert slowest_ranks(by_rank) == "store 0.3 s on rank 1, groups 2 s on rank 0"


def build(log: str) -> tuple[list[str], list[str], str, Counter[str]]:
    """Return the phases of a mesh and of a view of equal groups, the log, and the operations."""
    os.environ["MESHKIT_LOG"] = log
    with pytest.MonkeyPatch.context() as patch, count_store_calls() as counts:
        patch.setattr(sys, "stderr", StringIO())
        mesh = meshkit.build_mesh(dp=2, tp=2)
        text: Any = sys.stderr
    return [*mesh.startup.phases], [*mesh.view(dp=2, tp=2).startup.phases], text.getvalue(), counts


def test_a_mesh_has_its_seconds_and_rank_0_logs_the_slowest_ranks_on_request() -> None:
    logged, quiet = (meshkit.spawn(build, 4, (log,), timeout=60) for log in ("debug", ""))
    for phases, of_view, _, _ in logged + quiet:
        assert phases == PHASES
        assert of_view == PHASES
    assert [text for _, _, text, _ in quiet + logged[1:]] == [""] * 7
    begin = "meshkit: build_mesh(dp=2, tp=2) on 4 ranks: store "
    (line,) = (line for line in logged[0][2].splitlines() if line.startswith(begin))
    assert all(f"{phase} " in line for phase in PHASES[:-1])
    assert line.count(" on rank ") == len(PHASES) - 1
    for rank in (1, 2, 3):  # the others pay nothing for the log; looks at the file vary
        with_log, without = (Counter(job[rank][3]) for job in (logged, quiet))
        assert with_log["set"] == without["set"]
        assert with_log["compare_set"] <= without["compare_set"] + 2
