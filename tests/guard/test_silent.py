"""NCCL's service adds to a roll call what it knows of a rank whose process does not answer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from meshkit.guard import silent
from meshkit.guard.silent import ask_nccl
from meshkit.launch.disagreement import RankStatus
from meshkit.launch.process import current_process
from tests.launch.test_nccl_ras import STATUS, server

HERE = current_process()


def guard(*pids: int) -> Any:
    """Return the guard of rank 0, which has begun 20 collectives over a group of two ranks."""
    processes = {rank: HERE._replace(pid=pid) for rank, pid in enumerate(pids)}
    return SimpleNamespace(
        rank=0,
        job=SimpleNamespace(processes=lambda: processes),
        named=lambda: {"dp": [0, 1], "": [0, 1]},
        status=lambda _: RankStatus(0, {"dp": 20}),
    )


@pytest.mark.parametrize(
    ("pids", "expected"),
    [
        ((70, 71), {1: RankStatus(1, {"dp": 19}, sees_waits=False)}),
        ((70, 72), {}),  # no communicator has these processes
        ((70,), {}),
    ],
)
def test_the_counts_of_a_silent_rank_follow_from_those_of_this_one(
    pids: tuple[int, ...], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent, "is_nccl", lambda _: True)
    monkeypatch.setattr(silent.dist, "get_process_group_ranks", lambda ranks: ranks)
    with server(json.dumps(STATUS).encode()) as environ:
        monkeypatch.setenv("NCCL_RAS_ADDR", environ["NCCL_RAS_ADDR"])
        assert ask_nccl(guard(*pids), [1]) == expected
        assert environ["asked"]


@pytest.mark.parametrize(("nccl", "ranks"), [(True, []), (False, [1])])
def test_nobody_is_asked_without_a_silent_rank_or_without_nccl(
    nccl: bool, ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent, "is_nccl", lambda _: nccl)
    monkeypatch.setattr(silent, "ask_ras", None)  # a call would raise
    assert ask_nccl(guard(70, 71), ranks) == {}
