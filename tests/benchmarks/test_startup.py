"""Start-up: the times of a job, its rows, and real starts of both sides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import meshkit
from benchmarks import startup
from benchmarks.startup import Job, RankStart, Setting, run_jobs


def job_of(seconds: float, share: float = 10.0) -> list[RankStart]:
    """Return a job of two ranks: ready at 2 and 3, finished at 3 and ``seconds`` later."""
    return [
        RankStart(2, 3, 0.5, {"init": 1.0}, share, (7.0, 7.5), (8.0, 8.25), {}),
        RankStart(3, 3 + seconds, 0.25, {"init": 2.0}, share, (7.2, 8.0), (8.1, 8.5), {}),
    ]


@pytest.fixture(scope="module")
def sides() -> tuple[Job, Job]:
    ours, theirs = run_jobs(Setting(2), 1)
    return ours[0], theirs[0]


def test_both_sides_did_the_same_work(sides: Sequence[Job]) -> None:
    for job in sides:
        assert [rank.sums for rank in job] == [{"dp": 1.0, "tp": 2.0}] * 2


def test_the_phases_of_a_start_are_within_its_time(sides: Sequence[Job]) -> None:
    ours, theirs = sides
    names = ["store", "arrival", "default group", "agreement", "groups", "end", "first all-reduces"]
    assert all([*rank.phases] == names and 0 < rank.share < 100 for rank in ours)
    assert all(len(rank.phases) == 3 and rank.share == 0 for rank in theirs)
    for job in sides:
        assert all(0 < sum(rank.phases.values()) <= rank.finished - rank.ready for rank in job)


def test_a_start_with_a_wrong_sum_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = [start._replace(sums={"dp": 1.0, "tp": 2.0}) for start in job_of(1)]
    wrong = [job[0], job[1]._replace(sums={"dp": 1.0, "tp": 1.0})]
    monkeypatch.setattr(meshkit, "spawn", lambda *_, **__: wrong)
    with pytest.raises(RuntimeError, match=r"^torch: ones over .* sum up to .* on rank 1$"):
        startup.run_job("torch", Setting(2))
    monkeypatch.setattr(meshkit, "spawn", lambda *_, **__: job)
    assert startup.run_job("torch", Setting(2)) == job
