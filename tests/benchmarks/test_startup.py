"""Start-up: the times of a job, its rows, and real starts of both sides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import meshkit
from benchmarks import startup
from benchmarks.startup import Job, RankStart, Setting, run_job, run_jobs, start_rows, start_time


def job_of(seconds: float, share: float = 10.0) -> list[RankStart]:
    """Return a job of two ranks: ready at 2 and 3, finished at 3 and ``seconds`` later."""
    return [RankStart(2, 3, share, {}), RankStart(3, 3 + seconds, share, {})]


def test_a_start_is_from_the_last_process_to_the_last_all_reduce() -> None:
    assert start_time(job_of(8)) == 8
    assert start_time([*job_of(8)[::-1]]) == 8


@pytest.fixture(scope="module")
def sides() -> tuple[Job, Job]:
    ours, theirs = run_jobs([Setting(2)], 1)
    return ours[0], theirs[0]


def test_both_sides_did_the_same_work(sides: Sequence[Job]) -> None:
    for job in sides:
        assert [rank.sums for rank in job] == [{"dp": 1.0, "tp": 2.0}] * 2


def test_no_rank_finishes_before_all_are_ready(sides: Sequence[Job]) -> None:
    for job in sides:
        assert start_time(job) > 0
        assert all(rank.finished > max(other.ready for other in job) for rank in job)


def test_agreement_is_a_part_of_build_mesh(sides: Sequence[Job]) -> None:
    ours, theirs = sides
    assert all(0 < rank.share < 100 for rank in ours)
    assert all(rank.share == 0 for rank in theirs)


def test_a_tcp_store_is_used() -> None:
    job = run_job("meshkit", Setting(2, "tcp", hosts_file_only=True))
    assert [rank.sums for rank in job] == [{"dp": 1.0, "tp": 2.0}] * 2


def test_one_setting_has_goals() -> None:
    jobs = [job_of(2), job_of(4)]
    settings = (Setting(128), Setting(128, lazy=True), Setting(128, "tcp"), Setting(8))
    rows = [start_rows(setting, jobs, jobs) for setting in settings]
    goals = [[str(row.goal) for row in some if row.goal] for some in rows]
    assert goals == [["ratio <= 0.5", "ours <= 10"], [], [], []]
    start, share = rows[1]
    assert (start.what, start.ours) == ("start-up, file store, lazy", 3)
    assert (share.what, share.ours, share.unit) == (
        "start-up, file store, lazy, agreement in build_mesh",
        10,
        "%",
    )


def test_the_wait_for_a_name_is_that_of_the_longest_job(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[object] = []

    def run_job(side: str, setting: Setting) -> Job:
        arguments.append((side, setting))
        return job_of(1)

    setting = Setting(8, "tcp")
    jobs = [[job_of(1), job_of(6), job_of(5)], [job_of(0.5)] * 3]
    monkeypatch.setattr(startup, "run_job", run_job)
    monkeypatch.setattr(startup, "run_jobs", lambda settings, repeats: jobs)
    *_, row = startup.tcp_rows(setting, 3)
    assert (row.what, row.scale) == ("start-up, tcp store, longest wait for a name", 8)
    assert (row.ours, row.theirs, row.met) == (5, 0, False)
    answered = Setting(8, "tcp", hosts_file_only=True)
    assert arguments == [("meshkit", answered), ("torch", answered)]
    assert answered.variables == {"RES_OPTIONS": "attempts:0"}


def test_all_settings_run_the_largest_once(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[tuple[Setting, int]] = []

    def run_jobs(settings: Sequence[Setting], repeats: int) -> list[Sequence[Job]]:
        arguments.extend((setting, repeats) for setting in settings)
        return [[job_of(1)]] * (len(settings) + 1)

    monkeypatch.setattr(startup, "run_jobs", run_jobs)
    monkeypatch.setattr(startup, "run_job", lambda *_: job_of(1))
    rows = startup.run(quick=False)
    repeats = {8: 3, 32: 3, 64: 2, 128: 3, 256: 1}
    files = [(Setting(n, lazy=lazy), times) for n, times in repeats.items() for lazy in (0, 1)]
    assert arguments == [*files, (Setting(8, "tcp"), 3), (Setting(32, "tcp"), 3)]
    assert len(rows) == 2 * len(files) + 3 * 2


def test_a_start_with_a_wrong_sum_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {"dp": 1.0, "tp": 2.0}
    job = [RankStart(0, 1, 0, sums), RankStart(0, 1, 0, {"dp": 1.0, "tp": 1.0})]
    monkeypatch.setattr(meshkit, "spawn", lambda *_, **__: job)
    with pytest.raises(RuntimeError, match=r"^torch: ones over .* sum up to .* on rank 1$"):
        startup.run_job("torch", Setting(2))
    job[1] = job[0]
    assert startup.run_job("torch", Setting(2)) == job


def test_the_side_that_goes_first_changes_and_torch_is_never_lazy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[tuple[str, Setting]] = []

    def run_job(side: str, setting: Setting) -> Job:
        order.append((side, setting))
        return job_of(len(order))

    monkeypatch.setattr(startup, "run_job", run_job)
    eager, lazy = Setting(8), Setting(8, lazy=True)
    jobs = run_jobs([eager, lazy], 2)
    sides = [("meshkit", eager), ("meshkit", lazy), ("torch", eager)]
    assert order == sides + sides[::-1]
    assert [[start_time(job) for job in some] for some in jobs] == [[1, 6], [2, 5], [3, 4]]
    assert (eager.variables, lazy.variables) == ({}, {"TORCH_GLOO_LAZY_INIT": "1"})
