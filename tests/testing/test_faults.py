"""The harness of faults: what it reports, and that it cannot be fooled."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import meshkit
from meshkit.testing import faults
from meshkit.testing.faults import Strike, play


def struck(strike: Strike) -> Any:
    if strike.rank == 0:
        strike.kill()
    if strike.rank == 1:
        strike.stop()
    if strike.rank == 2:
        strike.later(0.3, strike.kill)
        time.sleep(60)
    if strike.rank == 3:
        raise meshkit.RankTimeoutError("two are missing", missing_ranks=(1, 2))
    return {"rank": meshkit.detect().rank}


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of all processes that are started."""
    start_process, found = faults.start_process, list[int]()

    def noted(process: BaseProcess) -> None:
        start_process(process)
        found.append(process.pid or 0)

    monkeypatch.setattr(faults, "start_process", noted)
    return found


def test_what_becomes_of_each_rank_and_none_is_left(pids: list[int]) -> None:
    began = time.monotonic()
    played = play(struck, 5, timeout=50)
    assert played.ends == {0: "SIGKILL", 1: "stopped", 2: "SIGKILL", 3: "ended", 4: "ended"}
    assert sorted(played.outcomes) == [3, 4]
    error, returned = played.outcomes[3], played.outcomes[4]
    assert (error.kind, error.text) == ("RankTimeoutError", "two are missing")
    assert error.missing_ranks == (1, 2)
    assert (returned.kind, returned.text) == ("returned", "{'rank': 4}")
    assert played.fired in (0, 1, 2)
    assert began < played.at < time.monotonic()
    assert [alive(pid) for pid in pids] == [False] * 5


def test_who_still_runs_when_the_time_is_over_is_ended(pids: list[int]) -> None:
    """Whether it has come to its function by then, or a busy machine is still starting it."""
    began = time.monotonic()
    played = play(sleeps, 2, timeout=2)
    assert 2 <= time.monotonic() - began < 60
    assert (played.ends, played.outcomes, played.fired) == ({0: "running", 1: "running"}, {}, None)
    assert [alive(pid) for pid in pids] == [False] * 2


def sleeps(strike: Strike) -> None:
    time.sleep(60)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def noted(strike: Strike) -> None:
    """Rank 1 notes a fault and ends; rank 0 goes on when it has seen the note."""
    if strike.rank == 1:
        strike.note()
        os.kill(os.getpid(), signal.SIGTERM)
    while not Path(strike.folder, "1.fired").exists():
        time.sleep(0.01)


def test_faults_of_ones_own_and_none() -> None:
    played = play(noted, 2, timeout=50)
    assert (played.fired, played.ends) == (1, {0: "ended", 1: "SIGTERM"})
    assert played.outcomes[0].at - played.at == played.seconds(0) > 0
    assert play(quiet, 1, timeout=50).fired is None


def quiet(strike: Strike) -> None:
    return None
