"""The signs of a failure that a rank sees before the limit of its guard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import meshkit
from meshkit.guard import early
from meshkit.guard.early import LOOKED_AT, READERS_PER_SECOND, Lookout
from meshkit.launch.disagreement import RankStatus
from meshkit.launch.process import current_process

HERE = current_process()
ENDED = HERE._replace(start="0")  # its process has another start
ELSEWHERE = HERE._replace(machine="another")
STORE = SimpleNamespace(run=lambda work: work())


class Job:
    """The processes of a job, which count how often they were read from the store."""

    def __init__(self, processes: dict[int, Any], *, known: bool = True) -> None:
        self._processes, self.known = processes, processes if known else {}
        self.world, self.reads = SimpleNamespace(device=None), 0

    def processes(self) -> dict[int, Any]:
        self.reads += 1
        return self._processes


def lookout(
    job: Any, rank: int = 0, left: dict[int, RankStatus] | None = None, **groups: Any
) -> Any:
    """Return the lookout of a rank in its third guard over all ranks of a job."""
    guard: Any = SimpleNamespace(
        layout=meshkit.Layout(dp=len(job.processes())),
        job=job,
        rank=rank,
        store=STORE,
        named=lambda: groups,
        left=lambda _, ranks: {r: s for r, s in (left or {}).items() if r in ranks},
    )
    job.reads = 0
    return Lookout(guard, 3)


def test_a_process_that_ended_in_this_guard_is_a_sign_and_one_that_left_it_is_none() -> None:
    job = Job({0: HERE, 1: HERE, 2: ENDED, 3: ELSEWHERE})
    before, after = RankStatus(2, left_guard=2), RankStatus(2, left_guard=3)
    sign = "the process of rank 2 (dp=2) ended."
    assert lookout(job).look(5.0) == sign
    assert lookout(job, left={2: before}).look(5.0) == sign
    assert lookout(job, left={2: after}).look(5.0) == ""
    assert lookout(job, left={2: RankStatus(2, error="ValueError", left_guard=3)}).look(5.0) == sign


def test_a_store_that_does_not_answer_holds_no_thread() -> None:
    """Whether the rank left the guard is asked within a deadline."""
    asked = list[bool]()
    look = lookout(Job({0: HERE, 1: ENDED}))
    look.guard.store = SimpleNamespace(run=lambda work: asked.append(True) or work())
    assert look.look(5.0)
    assert asked


def test_a_rank_that_begins_collectives_looks_at_no_process() -> None:
    job = Job({0: HERE, 1: ENDED}, known=False)
    look = lookout(job)
    assert look.look(0.9) == ""
    assert job.reads == 0
    assert look.look(1.1) == "the process of rank 1 (dp=1) ended."


def test_each_sign_is_reported_once_and_processes_are_looked_at_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(early.time, "monotonic", lambda: clock[0])
    look = lookout(Job({0: HERE, 1: ENDED}))
    sign = look.look(5.0)
    assert sign
    look.reported.add(sign)
    assert look.look(5.0) == ""
    look.reported.clear()
    assert look.look(5.5) == ""  # within the same second
    clock[0] += 1
    assert look.look(6.0) == sign


def test_the_ranks_of_a_large_job_read_the_processes_one_after_the_other() -> None:
    processes = dict.fromkeys(range(200), HERE) | {150: ENDED}
    job = Job(processes, known=False)
    look = lookout(job, rank=149)
    assert look.look(1.0 + 148 / READERS_PER_SECOND) == ""
    assert job.reads == 0
    assert lookout(job, rank=149).look(1.0 + 149 / READERS_PER_SECOND)
    far = lookout(Job(processes), rank=150 - LOOKED_AT - 1)  # others look at it
    assert far.look(5.0) == ""
    assert lookout(Job(processes), rank=150 - LOOKED_AT).look(5.0)


def test_an_error_of_a_backend_is_a_sign_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "is_nccl", lambda group: group != "gloo")
    monkeypatch.setattr(early, "error_of", lambda group, _: {"lost": "REMOTE_ERROR"}.get(group, ""))
    job = Job({0: HERE})
    assert (
        lookout(job, dp="well", tp="lost").look(0.0) == "NCCL reports REMOTE_ERROR of tp on rank 0."
    )
    assert lookout(job, dp="well", tp="gloo").look(0.0) == ""
