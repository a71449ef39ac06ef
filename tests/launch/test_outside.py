"""A running job as a client outside sees it, by its store alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.cli.status import draw
from meshkit.launch import outside
from meshkit.launch.job import current_job
from meshkit.launch.outside import ANSWER, ASK, JobView, Keys, find_job, look_at_job, waiting_rounds
from meshkit.launch.world import free_port
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4
STEP = 600.0  # seconds of a step, at most: the test ends it
LIMIT = 20.0  # seconds of a client


def hang(url: str, folder: str, role: str, *, guarded: bool = True) -> int:
    """Take a step in which rank 3 is late, until a file says that it comes; return the keys.

    The rank is in user code, or it is stopped from outside, or it is in the collective like all.
    """
    meshkit.shutdown()  # the job of the pool
    meshkit.init(init_method=url)
    mesh = meshkit.build_mesh(dp=2, tp=2)
    before = num_keys()
    with mesh.guard(timeout=STEP if guarded else None):
        dist.all_reduce(torch.ones(4), group=mesh.group("dp"))
        Path(folder, f"ready{mesh.rank}").write_text(str(os.getpid()))
        if mesh.rank == 3 and role != "healthy":
            load_batch(folder)
        dist.all_reduce(torch.ones(4), group=mesh.group("tp"))
        if role == "healthy":
            load_batch(folder)
    mesh.barrier()
    after = num_keys()
    mesh.barrier()
    mesh.close()
    meshkit.shutdown()
    return after - before


def load_batch(folder: str) -> None:
    while not Path(folder, "go").exists():
        time.sleep(0.02)


def num_keys() -> int:
    """Return the keys of the store but those of barriers and guards, which come and go."""
    store: Any = current_job().store.root  # type: ignore[union-attr]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    names = store.list_keys() if isinstance(store, dist.TCPStore) else []
    return sum(ASK in name.split("/") or "answer" in name for name in names)


@contextmanager
def running(pool: Pool, *args: Any, **options: Any) -> Iterator[list[Any]]:
    """Run a body in a thread, and wait for its end."""
    results = list[Any]()
    thread = threading.Thread(target=lambda: results.extend(pool.run(*args, **options)))
    thread.start()
    yield results
    thread.join(60)
    assert not thread.is_alive()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def look(pool: Pool, tmp_path: Path, role: str, url: str) -> tuple[JobView, list[int], float]:
    """Return the view of a job, the pids of its ranks, and the seconds of the client."""
    folder = str(tmp_path)
    with running(pool, hang, url, folder, role) as left:
        try:
            wait_until(lambda: all((tmp_path / f"ready{r}").exists() for r in range(RANKS)))
            pids = [int((tmp_path / f"ready{rank}").read_text()) for rank in range(RANKS)]
            time.sleep(1.0)
            if role == "stopped":
                os.kill(pids[3], signal.SIGSTOP)
            began = time.monotonic()
            view = look_at_job(url, LIMIT)
            seconds = time.monotonic() - began
        finally:
            with suppress(OSError):
                os.kill(pids[3], signal.SIGCONT)
            (tmp_path / "go").touch()
    assert left == [0] * RANKS  # no key of the question, no answer
    return view, pids, seconds


def tcp() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def test_a_healthy_job_shows_the_line_of_each_rank(pool: Pool, tmp_path: Path) -> None:
    view, pids, seconds = look(pool, tmp_path, "healthy", tcp())
    assert [rank.process.pid for rank in view.ranks if rank.process] == pids
    assert {rank.state for rank in view.ranks} == {"runs"}
    assert [rank.coordinate for rank in view.ranks] == [
        *("dp=0 tp=0", "dp=0 tp=1", "dp=1 tp=0", "dp=1 tp=1")
    ]
    assert all("in no collective, test_outside.py:" in rank.where for rank in view.ranks)
    assert all("(load_batch)" in rank.where for rank in view.ranks)
    assert view.waits == []
    assert seconds < 3 + BUSY


def test_a_busy_rank_is_shown_in_its_line_and_its_peer_in_the_collective(
    pool: Pool, tmp_path: Path
) -> None:
    view, _, _ = look(pool, tmp_path, "busy", tcp())
    assert "(load_batch)" in view.ranks[3].where
    assert "in all_reduce over tp, test_outside.py:" in view.ranks[2].where
    assert view.ranks[2].seconds is not None
    assert view.ranks[2].seconds >= 0.5
    table = draw(view, 200, True)
    assert "all_reduce over tp" in table.splitlines()[5]


def test_a_stopped_rank_is_shown_as_stopped_with_its_coordinate(pool: Pool, tmp_path: Path) -> None:
    view, pids, _ = look(pool, tmp_path, "stopped", tcp())
    last = view.ranks[3]
    assert (last.state, last.coordinate, last.where) == ("stopped", "dp=1 tp=1", "")
    assert last.process is not None
    assert last.process.pid == pids[3]
    assert "all_reduce over tp" in view.ranks[2].where


def test_a_job_with_a_file_is_read_and_its_file_stays_as_it_is(pool: Pool, tmp_path: Path) -> None:
    store = tmp_path / "store"
    folder = str(tmp_path)
    with running(pool, hang, f"file://{store}", folder, "busy"):
        wait_until(lambda: all((tmp_path / f"ready{r}").exists() for r in range(RANKS)))
        time.sleep(0.5)
        before = store.read_bytes()
        view = look_at_job(f"file://{store}", LIMIT)
        assert store.read_bytes() == before
        (tmp_path / "go").touch()
    assert not view.is_asked
    assert {rank.state for rank in view.ranks} == {"runs"}


def build_late(url: str, folder: str) -> None:
    """Build a mesh on all ranks, on rank 1 once a file says so."""
    meshkit.shutdown()
    meshkit.init(init_method=url)
    Path(folder, f"ready{meshkit.init().rank}").touch()
    if meshkit.init().rank == 1:
        load_batch(folder)
    meshkit.build_mesh(dp=4).close()
    meshkit.shutdown()


def test_a_round_that_waits_is_shown_with_the_ranks_that_are_missing(
    pool: Pool, tmp_path: Path
) -> None:
    url = tcp()
    with running(pool, build_late, url, str(tmp_path)):
        wait_until(lambda: all((tmp_path / f"ready{r}").exists() for r in range(RANKS)))
        time.sleep(1.0)
        view = look_at_job(url, LIMIT)
        (tmp_path / "go").touch()
    assert view.waits == ["Ranks 0 and 2-3 wait in build_mesh for rank 1."]
    assert {rank.where for rank in view.ranks} == {""}


def test_ranks_that_are_asked_for_a_short_time_are_shown_and_no_key_stays() -> None:
    """Nobody answers, so the client waits; it needs time to read and to delete its keys."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = "attempt/0/meshkit/1"
    line = '[0, ["h", 1, "", "", ""], {}]'
    keys = {f"{job}/init/arrived": line, f"{job}/init/decision": "{}"}
    keys |= {"attempt": "0", "attempt/0/meshkit/newest": "1"}
    for key, text in keys.items():
        server.set(key, text)
    began, url = time.monotonic(), f"tcp://127.0.0.1:{server.port}"
    view = look_at_job(url, 1.0)
    assert [rank.state for rank in view.ranks] == ["unknown"]
    assert time.monotonic() - began < 1 + BUSY
    assert sorted(server.list_keys()) == sorted(keys)


def test_a_round_that_ends_while_ranks_answer_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = "attempt/0/meshkit/1"
    lines = ['[0, ["h", 1, "", "", ""], {}]', '[1, ["h", 2, "", "", ""], {}]']
    keys = {"attempt": "0", "attempt/0/meshkit/newest": "1", f"{job}/round/1/arrived": lines[0]}
    keys |= {f"{job}/init/arrived": "\n".join(lines), f"{job}/init/decision": "{}"}
    for key, text in keys.items():
        server.set(key, text)

    def ask(self: Keys, path: str, ranks: object) -> dict[int, object]:
        server.set(f"{path}/round/1/decision", "{}")
        return {}

    url = f"tcp://127.0.0.1:{server.port}"
    with monkeypatch.context() as patch:
        patch.setattr(Keys, "ask", lambda *_: {})
        assert look_at_job(url, LIMIT).waits == ["Rank 0 waits in a call of all ranks for rank 1."]
        patch.setattr(Keys, "ask", ask)
        assert look_at_job(url, LIMIT).waits == []


def test_a_job_that_starts_over_tcp_is_none_with_a_file() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    keys = {"attempt": "0", "attempt/0/meshkit/newest": "1"}
    keys |= {"attempt/0/meshkit/1/init/arrived": '[1, ["h", 1, "", "", ""], {"call": "init"}]'}
    for key, text in keys.items():
        server.set(key, text)
    view = look_at_job(f"tcp://127.0.0.1:{server.port}", LIMIT)
    assert view.is_asked
    assert view.waits == ["Rank 1 waits in init for rank 0."]


def test_keys_of_meshes_are_not_read() -> None:
    """A mesh has some for each rank; each read is two operations."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for key in ("attempt", "attempt/0/meshkit/1/mesh/1/guard/exit/3"):
        server.set(key, "0")
    values = outside.Keys(f"tcp://127.0.0.1:{server.port}", 5.0).read()
    assert values == {"attempt": "0"}


def test_a_store_that_does_not_answer_is_an_error_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(meshkit.LaunchError, match="no store answers at tcp:"):
        look_at_job(tcp(), 1.0)
    assert time.monotonic() - began < 2 + BUSY


def test_an_older_torch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "open_store", lambda *_: object())
    with pytest.raises(meshkit.LaunchError, match="cannot list the keys of a store"):
        look_at_job(tcp(), 5.0)


def test_a_store_without_a_job_is_an_error(tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    server.set("theirs", "1")
    with pytest.raises(meshkit.LaunchError, match="holds no job of meshkit"):
        look_at_job(f"tcp://127.0.0.1:{server.port}", 5.0)
    assert server.num_keys() == 1


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({}, None),
        ({"attempt": "0", "attempt/0/meshkit/newest": "2"}, "attempt/0/meshkit/2/"),
        (
            {"attempt": "1", "attempt/0/8/meshkit/newest": "1", "attempt/1/8/meshkit/newest": "3"},
            "attempt/1/8/meshkit/3/",
        ),
        (
            {"attempt/0/meshkit/newest": "1", "attempt/0/meshkit/1/recovered": "4"},
            "attempt/0/meshkit/1/membership/4/",
        ),
    ],
)
def test_the_newest_ranks_of_a_job_are_found(values: dict[str, str], path: str | None) -> None:
    assert find_job(values) == path


def test_a_decided_round_does_not_wait() -> None:
    line = '[0, ["h", 1, "", "", ""], {"call": "build_mesh"}]'
    job = {"round/3/arrived": line}
    assert waiting_rounds(job, range(2)) == ["Rank 0 waits in build_mesh for rank 1."]
    assert waiting_rounds({**job, "round/3/decision": "{}"}, range(2)) == []
    assert ANSWER.format(3) == "answer/3"
