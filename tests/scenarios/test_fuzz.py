"""The fuzzer: fixed faults break no promise, and a broken promise is reported."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import meshkit
from meshkit.testing.faults import Outcome, Played, Strike
from tests.scenarios.fuzz import Case, _violations, main, run_case


def test_a_rank_that_hangs_or_blames_another_is_a_violation() -> None:
    case = Case("kill", "file", 4, 1, 0.5)
    outcomes = {
        0: Outcome("RankTimeoutError", "x", (1,), 105.0),
        2: Outcome("RankTimeoutError", "x", (3,), 105.0),
    }
    ends = {0: "ended", 1: "SIGKILL", 2: "ended", 3: "running"}
    played = Played(outcomes, ends, 1, 100.0)
    assert _violations(case, played, 0.0) == [
        "rank 2 named ranks [3]: x",
        "rank 3 did not end: running",
    ]
    late = Played({**outcomes, 3: Outcome("returned", "'x'", (), 200.0)}, ends, 1, 100.0)
    assert "rank 3 ended after 100.0 s, promised 23 s" in _violations(case, late, 0.0)


def raise_later(strike: Strike, init_method: str | None) -> None:
    """Break a promise: raise an error of no promised kind on every other rank."""
    meshkit.init(init_method=init_method, arrival_timeout=20)
    time.sleep(4)
    raise KeyError("not promised")


def test_a_job_of_the_caller_that_breaks_a_promise_is_found() -> None:
    violations = run_case(Case("raise", "tcp", 2, 1, 2.0), raise_later)
    assert violations == ["rank 0 raised KeyError: 'not promised'"]


# the four are exit, stop, raise and kill
@pytest.mark.parametrize(
    ("seed", "runs"),
    [
        pytest.param(101, 4, marks=pytest.mark.slow),
        pytest.param(100, 10, marks=pytest.mark.nightly),
    ],
)
def test_fixed_faults_break_no_promise(
    seed: int, runs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seed", str(seed), "--runs", str(runs), "-n", "4"]
    assert main(words) == 0, capsys.readouterr().out
    first = next(line for line in capsys.readouterr().out.splitlines() if "faults fired" in line)
    assert int(first.split()[2]) >= runs // 2, first
    assert not list(Path.cwd().glob("*.fired"))
