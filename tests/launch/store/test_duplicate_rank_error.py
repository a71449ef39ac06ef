"""Duplicate ranks: a rank claimed twice, two jobs at one address, an earlier start."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement.consensus import Round
from meshkit.launch.store import duplicate_rank_error
from meshkit.launch.store.deadline import Deadline
from meshkit.testing.faults import Played, Strike, play


def tcp() -> str:
    """Return an init_method with a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(params=["file", "tcp"])
def method(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return tcp() if request.param == "tcp" else f"file://{tmp_path}/store"


def mark(strike: Strike, name: str) -> None:
    """Create the file that other processes wait for."""
    Path(strike.folder, f"{strike.rank}.{name}").touch()


def wait_for(strike: Strike, *names: str) -> None:
    """Wait for the files of other processes, as long as the job may last."""
    while not all(Path(strike.folder, name).exists() for name in names):
        time.sleep(0.01)


def followed_by(after: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls one function and then the other."""

    def changed(*args: Any, **options: Any) -> Any:
        result = call(*args, **options)
        after()
        return result

    return changed


def joins(
    strike: Strike,
    ranks: list[int],
    sizes: list[int],
    after: dict[int, str],
    method: str,
    limit: float,
) -> Any:
    """Join as the rank that the list gives this process, in a job of that size.

    All processes start at once, except those in ``after``. Each of those starts when a process has
    left a mark: ``"0.checks_in"`` (it is about to check in), ``"1.posts"`` (it was rejected, and
    reports that to the waiting ranks) or ``"0.joined"``. A job that has joined runs until
    all of those processes have ended.
    """
    me = strike.rank
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(ranks[me]), WORLD_SIZE=str(sizes[me]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Round,
            "_post_conflict",
            followed_by(lambda: mark(strike, "checks_in"), Round._post_conflict),
        )
        sleep = followed_by(lambda: mark(strike, "posts"), Deadline.sleep)
        patch.setattr(Deadline, "sleep", sleep)
        if "1.posts" in after.values():  # the last process has to come while the others wait
            patch.setattr(duplicate_rank_error, "ARRIVAL_GRACE", 4.0)
        mark(strike, "up")
        wait_for(strike, *(f"{process}.up" for process in range(len(ranks))))
        wait_for(strike, *([after[me]] if me in after else []))
        strike.note()
        world = meshkit.init(init_method=method, arrival_timeout=limit)
    total = torch.ones(1)
    dist.all_reduce(total)
    mark(strike, "joined")
    wait_for(strike, *(f"{process}.json" for process in after if process != me))
    dist.all_reduce(total)
    return os.getpid(), world.rank, int(total)


def joined(
    ranks: list[int], sizes: list[int], after: dict[int, str], method: str, limit: float = 20
) -> Played:
    args = ranks, sizes, after, method, limit
    return play(joins, len(ranks), args, timeout=120)


ORDER = {1: "0.checks_in", 2: "1.posts"}


def pids(text: str) -> set[str]:
    return set(re.findall(r"pid (\d+)", text))


def test_both_processes_of_a_rank_and_all_waiting_ranks_raise(method: str) -> None:
    """Processes 1 and 2 are both rank 1; rank 2 does not exist; no rank waits for the deadline."""
    played = joined([0, 1, 1], [3, 3, 3], {}, method, limit=30)
    assert {outcome.kind for outcome in played.outcomes.values()} == {"LaunchError"}
    texts = {outcome.text for outcome in played.outcomes.values()}
    assert len(texts) == 1
    (text,) = texts
    assert text.splitlines()[0].endswith(f": two processes claim rank 1 at {method}.")
    assert len(pids(text)) == 2
    assert "came first and waits for the others; host " in text
    assert "  The second has rank 1 from RANK (hand-written).\n" in text
    assert all(played.seconds(rank) < 10 for rank in range(3))


def test_two_processes_of_rank_0(method: str) -> None:
    """Over tcp the second one cannot host the store; it finds that of the first."""
    played = joined([0, 0, 1], [3, 3, 3], {1: "0.checks_in"}, method, limit=30)
    assert {outcome.kind for outcome in played.outcomes.values()} == {"LaunchError"}
    assert "two processes claim rank 0" in played.outcomes[0].text
    assert len({outcome.text for outcome in played.outcomes.values()}) == 1


def test_a_running_job_is_left_alone(method: str) -> None:
    played = joined([0, 1, 1], [2, 2, 2], {2: "0.joined"}, method)
    assert [played.outcomes[rank].kind for rank in range(3)] == [
        "returned",
        "returned",
        "LaunchError",
    ]
    text = played.outcomes[2].text
    assert "two processes claim rank 1" in text
    assert "came first and has joined already, and runs; host " in text
    assert played.outcomes[1].text[1:].split(",")[0] in pids(text)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_two_jobs_at_one_address(size: int, method: str) -> None:
    """The second job comes while the first waits for its rank 1.

    Ranks of two hand-written jobs of one size cannot be distinguished. In this test rank 1 of the
    second job comes after its rank 0 has raised.
    """
    played = joined([0, 0, 1], [2, size, size], ORDER, method, limit=15)
    kinds = [played.outcomes[rank].kind for rank in range(3)]
    assert kinds[0] == kinds[1] == "LaunchError", played
    assert played.outcomes[0].text == played.outcomes[1].text
    assert "two processes claim rank 0 at " in played.outcomes[0].text
    assert kinds[2] in ("LaunchError", "DisagreementError")
    assert max(played.seconds(rank) for rank in range(3)) < 10


def join_as_step(strike: Strike, method: str, names: list[str]) -> None:
    """Join as a task of a Slurm step."""
    job, step = names[strike.rank].split(".")
    for name in ("MESHKIT_SPAWN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    task = {"PROCID": str(strike.rank), "NTASKS": "2", "LOCALID": "0", "NNODES": "2"}
    named = {**task, "JOB_ID": job, "STEP_ID": step, "NODEID": str(strike.rank)}
    os.environ.update({f"SLURM_{name}": value for name, value in named.items()})
    os.environ["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
    meshkit.init(init_method=method, arrival_timeout=20)


def test_two_jobs_named_by_their_launcher_disagree(tmp_path: Path) -> None:
    """Rank 1 of another Slurm step comes first: the steps of a job share its port."""
    played = play(join_as_step, 2, (f"file://{tmp_path}/store", ["7.0", "7.1"]), timeout=120)
    texts = {outcome.text for outcome in played.outcomes.values()}
    assert {outcome.kind for outcome in played.outcomes.values()} == {"DisagreementError"}
    (text,) = texts
    lines = text.splitlines()
    assert sorted(line.rpartition("  ")[2] for line in lines[1:3]) == ["job=7.0", "job=7.1"]
    assert lines[3] == "  Fix: give every job its own MASTER_PORT (or init_method)."


def test_a_rank_of_a_larger_job_is_named(tmp_path: Path) -> None:
    """Rank 3 of four joins a job of two, whose list of ranks lacks it."""
    method = f"file://{tmp_path}/store"
    played = joined([0, 3, 1], [2, 4, 2], {1: "0.checks_in", 2: "1.checks_in"}, method, limit=15)
    assert {outcome.kind for outcome in played.outcomes.values()} == {"DisagreementError"}
    assert "rank 3 (host " in played.outcomes[0].text
    assert "world_size=4" in played.outcomes[0].text


def kill_when_two_wait(strike: Strike, method: str) -> None:
    """Kill the job while no rank writes, as a truncated store file would be rejected."""
    store = dist.FileStore(method.removeprefix("file://"), -1)
    while not store.check([f"meshkit/1/round/1/check_in/{rank}" for rank in (0, 1)]):
        time.sleep(0.05)
    strike.kill()


def killed_in_init(strike: Strike, method: str, absent: int) -> Any:
    if strike.rank == absent:
        return "never joined"
    Thread(target=kill_when_two_wait, args=(strike, method), daemon=True).start()
    meshkit.init(init_method=method, arrival_timeout=30)


def join_second_start(strike: Strike, method: str, seconds: list[float]) -> Any:
    """Join after the ranks of a first start were killed in init."""
    time.sleep(seconds[strike.rank])
    meshkit.init(init_method=method, arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)


@pytest.mark.parametrize("order", [[0, 0, 1], [1, 1, 0]], ids=["2 comes last", "2 comes first"])
def test_a_killed_start_does_not_block_the_next(order: list[float], tmp_path: Path) -> None:
    method = f"file://{tmp_path}/store"
    first = play(killed_in_init, 3, (method, 2), timeout=120)
    assert [first.ends[rank] for rank in range(3)] == ["SIGKILL", "SIGKILL", "ended"]
    base = dist.FileStore(f"{tmp_path}/store", -1)
    assert base.check(["meshkit/lease/0", "meshkit/lease/1", "meshkit/1/round/1/check_in/1"])
    del base
    second = play(join_second_start, 3, (method, order), timeout=120)
    assert [outcome.text for outcome in second.outcomes.values()] == ["3", "3", "3"], second


def rejoin_without_rank_1(strike: Strike, method: str) -> Any:
    """Ranks 0 and 2 leave and join again; rank 1 is still in the first job."""
    meshkit.init(init_method=method, arrival_timeout=20)
    if strike.rank == 1:
        time.sleep(6)
        return "stayed"
    dist.barrier(dist.new_group([0, 2], use_local_synchronization=True))
    meshkit.shutdown()
    strike.note()
    meshkit.init(init_method=method, arrival_timeout=2)


@pytest.mark.slow
def test_a_rank_in_an_earlier_job_is_named_with_its_generation(tmp_path: Path) -> None:
    played = play(rejoin_without_rank_1, 3, (f"file://{tmp_path}/store",), timeout=120)
    outcome = played.outcomes[0]
    assert (outcome.kind, outcome.missing_ranks) == ("RankTimeoutError", (1,))
    where = rf"Last seen: 1 on host {socket.gethostname()}, pid \d+ "
    assert re.search(where + r"\(in its first init, this rank is in its second\)\.", outcome.text)
    assert played.outcomes[1].text == "'stayed'"
