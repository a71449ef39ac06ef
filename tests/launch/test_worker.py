"""Processes that take over the surroundings of the one that starts them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import meshkit
from meshkit.launch.worker import (
    Context,
    EndedError,
    Surroundings,
    end_workers,
    fresh_context,
    start_worker,
)


def forks() -> Context:
    return get_context("fork")


STARTS = pytest.mark.parametrize("start", [forks, fresh_context])


def send_surroundings(pipe: Connection, *names: str) -> None:
    pipe.send(
        [os.getcwd(), sys.path, [os.environ[name] for name in names], threading.active_count()]
    )
    pipe.recv()


@STARTS
def test_a_worker_has_the_folder_the_path_and_the_variables_of_its_parent(
    start: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/of/a/program", *sys.path])
    monkeypatch.setenv("OF_THE_CALLER", "1")
    own = Surroundings.of_rank(1, 2, "file:///nowhere", 1)
    worker = start_worker(start(), own, send_surroundings, "OF_THE_CALLER", "RANK", "WORLD_SIZE")
    try:
        folder, path, variables, threads = worker.receive()
        assert (folder, variables) == (str(tmp_path), ["1", "1", "2"])
        assert path == [str(tmp_path), "/of/a/program", *(p or folder for p in sys.path[2:])]
        assert threads == 2  # one of them waits for the end of the parent
    finally:
        end_workers([worker])
    assert worker.process.exitcode == -signal.SIGKILL


def exit_at_once(pipe: Connection, code: int) -> None:
    os._exit(code) if code >= 0 else os.kill(os.getpid(), -code)


@STARTS
@pytest.mark.parametrize(
    ("code", "text"), [(3, "with exit code 3"), (-signal.SIGKILL, "with signal SIGKILL")]
)
def test_a_worker_that_ends_by_itself_is_reported(start: type, code: int, text: str) -> None:
    worker = start_worker(start(), Surroundings.of_rank(0, 1, "", 1), exit_at_once, code)
    with pytest.raises(EndedError, match=text) as caught:
        worker.receive()
    end_workers([worker])
    assert caught.value.code == code


def wait_for_close(pipe: Connection) -> None:
    try:
        pipe.recv()
    except EOFError:
        os._exit(7)


@STARTS
def test_finished_workers_see_that_their_pipe_is_closed(start: type) -> None:
    """A sibling that held the other end would keep them waiting."""
    own, workers = Surroundings.of_rank(0, 1, "", 1), []
    for _ in range(3):
        workers.append(start_worker(start(), own, wait_for_close, siblings=workers))
    end_workers(workers, range(3), grace=60)
    assert [worker.process.exitcode for worker in workers] == [7, 7, 7]


def find_surroundings() -> tuple[str, bool, str]:
    started_by = multiprocessing.get_start_method()
    return os.getcwd(), "/of/a/program" in sys.path, started_by


def test_ranks_of_spawn_work_in_the_folder_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a DataLoader starts as in the caller, which imports torch once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/of/a/program")
    started_by = multiprocessing.get_start_method()
    assert meshkit.spawn(find_surroundings, 2) == [(str(tmp_path), True, started_by)] * 2
