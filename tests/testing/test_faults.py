"""The fault harness: the outcome of every rank, and no process left."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import meshkit
from meshkit.launch import worker
from meshkit.launch.process import process_stat
from meshkit.testing.faults import Strike, play


def end_in_every_way(strike: Strike) -> Any:
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
    """Return the pids of all processes that are started; the list grows."""
    start_process, started = worker.start_process, list[int]()

    def start_and_record(process: BaseProcess) -> None:
        start_process(process)
        started.append(process.pid or 0)

    monkeypatch.setattr(worker, "start_process", start_and_record)
    return started


def test_the_outcome_of_each_rank_and_no_process_left(pids: list[int]) -> None:
    began = time.monotonic()
    played = play(end_in_every_way, 5, timeout=50)
    assert played.ends == {0: "SIGKILL", 1: "stopped", 2: "SIGKILL", 3: "ended", 4: "ended"}
    assert sorted(played.outcomes) == [3, 4]
    error, returned = played.outcomes[3], played.outcomes[4]
    assert (error.kind, error.text) == ("RankTimeoutError", "two are missing")
    assert error.missing_ranks == (1, 2)
    assert (returned.kind, returned.text) == ("returned", "{'rank': 4}")
    assert played.fired in (0, 1, 2)
    assert began < played.at < time.monotonic()
    assert [alive(pid) for pid in pids] == [False] * 5


def test_ranks_that_still_run_at_the_timeout_are_killed(pids: list[int]) -> None:
    """On a busy machine a rank may not have started its function by then."""
    began = time.monotonic()
    played = play(sleep, 2, timeout=2)
    assert 2 <= time.monotonic() - began < 60
    assert (played.ends, played.outcomes, played.fired) == ({0: "running", 1: "running"}, {}, None)
    assert [alive(pid) for pid in pids] == [False] * 2


def sleep(strike: Strike) -> None:
    time.sleep(60)


def alive(pid: int) -> bool:
    """Return whether a process runs; the forkserver may not yet have read the end of its child."""
    return process_stat(pid)[:1] not in ([], ["Z"])


def record_fault(strike: Strike) -> None:
    """Record a fault on rank 1 and end it; rank 0 returns when the record exists."""
    if strike.rank == 1:
        strike.note()
        os.kill(os.getpid(), signal.SIGTERM)
    while not Path(strike.folder, "1.fired").exists():
        time.sleep(0.01)


def test_a_fault_of_the_caller_and_no_fault() -> None:
    played = play(record_fault, 2, timeout=50)
    assert (played.fired, played.ends) == (1, {0: "ended", 1: "SIGTERM"})
    assert played.outcomes[0].at - played.at == played.seconds(0) > 0
    assert play(return_none, 1, timeout=50).fired is None


def return_none(strike: Strike) -> None:
    return None
