"""The harness of faults: what it reports, and that it cannot be fooled."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import meshkit
from meshkit.testing.faults import Strike, play


def struck(strike: Strike, pids: str) -> Any:
    Path(pids, str(strike.rank)).write_text(str(os.getpid()))
    if strike.rank == 0:
        strike.kill()
    if strike.rank == 1:
        strike.stop()
    if strike.rank == 2:
        strike.later(0.3, strike.kill)
        time.sleep(60)
    if strike.rank == 3:
        raise meshkit.RankTimeoutError("two are missing", missing_ranks=(1, 2))
    if strike.rank == 5:
        time.sleep(60)
    return {"rank": meshkit.detect().rank}


def test_what_becomes_of_each_rank_and_none_is_left(tmp_path: Path) -> None:
    play(quiet, 1, timeout=60)  # the forkserver has imported torch then
    began = time.monotonic()
    played = play(struck, 6, (str(tmp_path),), timeout=4)
    assert 4 <= time.monotonic() - began < 20
    assert played.ends == {
        0: "SIGKILL",
        1: "stopped",
        2: "SIGKILL",
        3: "ended",
        4: "ended",
        5: "running",
    }
    assert sorted(played.outcomes) == [3, 4]
    error, returned = played.outcomes[3], played.outcomes[4]
    assert (error.kind, error.text) == ("RankTimeoutError", "two are missing")
    assert error.missing_ranks == (1, 2)
    assert (returned.kind, returned.text) == ("returned", "{'rank': 4}")
    assert played.fired in (0, 1)
    assert began < played.at < error.at + 4
    for path in tmp_path.iterdir():
        assert not alive(int(path.read_text()))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def noted(strike: Strike) -> None:
    time.sleep(0.2)
    if strike.rank == 1:
        strike.note()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)


def test_faults_of_ones_own_and_none() -> None:
    played = play(noted, 2, timeout=20)
    assert (played.fired, played.ends) == (1, {0: "ended", 1: "SIGTERM"})
    assert played.seconds(0) < 5
    assert play(quiet, 1, timeout=20).fired is None


def quiet(strike: Strike) -> None:
    return None
