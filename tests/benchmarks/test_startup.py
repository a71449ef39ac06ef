"""Start-up: the times of a job, its rows, and real starts of both sides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import meshkit
from benchmarks import startup
from benchmarks.startup import (
    Job,
    RankStart,
    Setting,
    run_job,
    run_jobs,
    start_rows,
    start_time,
)


def job_of(seconds: float, share: float = 10.0) -> list[RankStart]:
    """Return a job of two ranks: ready at 2 and 3, finished at 3 and ``seconds`` later."""
    return [
        RankStart(2, 3, 0.5, {"init": 1.0}, share, (7.0, 7.5), (8.0, 8.25), {}),
        RankStart(3, 3 + seconds, 0.25, {"init": 2.0}, share, (7.2, 8.0), (8.1, 8.5), {}),
    ]


def test_a_start_is_from_the_last_process_to_the_last_all_reduce() -> None:
    assert start_time(job_of(8)) == 8
    assert start_time([*job_of(8)[::-1]]) == 8


@pytest.fixture(scope="module")
def sides() -> tuple[Job, Job]:
    ours, theirs = run_jobs(Setting(2), 1)
    return ours[0], theirs[0]


def test_both_sides_did_the_same_work(sides: Sequence[Job]) -> None:
    for job in sides:
        assert [rank.sums for rank in job] == [{"dp": 1.0, "tp": 2.0}] * 2


def test_no_rank_finishes_before_all_are_ready(sides: Sequence[Job]) -> None:
    for job in sides:
        assert start_time(job) > 0
        assert all(rank.finished > max(other.ready for other in job) for rank in job)


def test_the_phases_of_a_start_are_within_its_time(sides: Sequence[Job]) -> None:
    ours, theirs = sides
    names = ["store", "arrival", "default group", "agreement", "groups", "end", "first all-reduces"]
    assert all([*rank.phases] == names and 0 < rank.share < 100 for rank in ours)
    assert all(len(rank.phases) == 3 and rank.share == 0 for rank in theirs)
    for job in sides:
        assert all(0 < sum(rank.phases.values()) <= rank.finished - rank.ready for rank in job)


def test_a_tcp_store_is_used() -> None:
    job = run_job("meshkit", Setting(2, "tcp"))
    assert [rank.sums for rank in job] == [{"dp": 1.0, "tp": 2.0}] * 2


def test_the_rows_of_a_start_and_their_goals() -> None:
    jobs = [job_of(2), job_of(4)]
    goals = {
        setting: [str(row.goal) for row in start_rows(setting, jobs, jobs) if row.goal]
        for setting in (Setting(8), Setting(128), Setting(256, "tcp"), Setting(32))
    }
    assert [*goals.values()] == [
        ["ratio <= 1"],
        ["ratio <= 0.8", "ratio <= 0.9", "ours <= 10", "ours <= 0.05"],
        ["ratio <= 0.5", "ratio <= 0.9"],
        [],
    ]
    rows = {row.what: row.ours for row in start_rows(Setting(8, "tcp"), jobs, jobs)}
    assert rows == {
        "start-up, tcp store, names answered": 3,
        "start-up, tcp store, names answered, processor time": 0.75,
        "start-up, tcp store, names answered, agreement in build_mesh": 10,
        "start-up, tcp store, names answered, second mesh": 1,
        "start-up, tcp store, names answered, meshkit, init": 2,
        "start-up, tcp store, names answered, torch, init": 2,
    }


def test_both_stores_run_at_each_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[tuple[Setting, int]] = []

    def run_jobs(setting: Setting, repeats: int) -> tuple[list[Job], list[Job]]:
        arguments.append((setting, repeats))
        return [job_of(1)], [job_of(1)]

    monkeypatch.setattr(startup, "run_jobs", run_jobs)
    rows = startup.run(quick=False)
    repeats = {8: 5, 64: 3, 128: 3, 256: 3}
    assert arguments == [(Setting(n, s), t) for n, t in repeats.items() for s in ("tcp", "file")]
    assert len(rows) == 6 * len(arguments)


def test_a_start_with_a_wrong_sum_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = [start._replace(sums={"dp": 1.0, "tp": 2.0}) for start in job_of(1)]
    wrong = [job[0], job[1]._replace(sums={"dp": 1.0, "tp": 1.0})]
    monkeypatch.setattr(meshkit, "spawn", lambda *_, **__: wrong)
    with pytest.raises(RuntimeError, match=r"^torch: ones over .* sum up to .* on rank 1$"):
        startup.run_job("torch", Setting(2))
    monkeypatch.setattr(meshkit, "spawn", lambda *_, **__: job)
    assert startup.run_job("torch", Setting(2)) == job


def test_the_side_that_goes_first_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run_job(side: str, setting: Setting) -> Job:
        order.append(side)
        return job_of(len(order))

    monkeypatch.setattr(startup, "run_job", run_job)
    ours, theirs = run_jobs(Setting(8), 2)
    assert order == ["meshkit", "torch", "torch", "meshkit"]
    assert [[start_time(job) for job in jobs] for jobs in (ours, theirs)] == [[1, 4], [2, 3]]
