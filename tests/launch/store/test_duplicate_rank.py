"""One process too many: a rank claimed twice, two jobs at one address, an earlier start."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement import consensus
from meshkit.launch.store import duplicate_rank
from meshkit.launch.store.rank_lease import LeaseHolder, RankTakenError, acquire_rank
from meshkit.testing.faults import Played, Strike, play


def tcp() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(params=["file", "tcp"])
def method(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return tcp() if request.param == "tcp" else f"file://{tmp_path}/store"


def leave(strike: Strike, mark: str) -> None:
    Path(strike.folder, f"{strike.rank}.{mark}").touch()


def see(strike: Strike, *marks: str) -> None:
    """Wait for marks, as long as the job may last."""
    while not all(Path(strike.folder, mark).exists() for mark in marks):
        time.sleep(0.01)


def then(after: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        made = call(*args, **options)
        after()
        return made

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
    left a mark: ``"0.sits"`` (it is about to check in), ``"1.tells"`` (it was refused, and reports
    it to the waiting ranks) or ``"0.joined"``. A job that has joined runs until all of those
    processes have ended.
    """
    me = strike.rank
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(ranks[me]), WORLD_SIZE=str(sizes[me]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consensus, "_object", then(lambda: leave(strike, "sits"), consensus._object))
        sleep = then(lambda: leave(strike, "tells"), time.sleep)
        patch.setattr(
            duplicate_rank, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        )
        if "1.tells" in after.values():  # the last process has to come while the others wait
            patch.setattr(duplicate_rank, "PATIENCE", 4.0)
        leave(strike, "up")
        see(strike, *(f"{process}.up" for process in range(len(ranks))))
        see(strike, *([after[me]] if me in after else []))
        strike.note()
        world = meshkit.init(init_method=method, arrival_timeout=limit)
    total = torch.ones(1)
    dist.all_reduce(total)
    leave(strike, "joined")
    see(strike, *(f"{process}.json" for process in after if process != me))
    dist.all_reduce(total)
    return os.getpid(), world.rank, int(total)


def joined(
    ranks: list[int], sizes: list[int], after: dict[int, str], method: str, limit: float = 20
) -> Played:
    args = ranks, sizes, after, method, limit
    return play(joins, len(ranks), args, timeout=120)


ORDER = {1: "0.sits", 2: "1.tells"}


def pids(text: str) -> set[str]:
    return set(re.findall(r"pid (\d+)", text))


def test_a_rank_claimed_twice_is_told_to_both_and_to_all_who_wait(method: str) -> None:
    """Processes 1 and 2 are both rank 1; rank 2 does not exist; nobody waits for the deadline."""
    played = joined([0, 1, 1], [3, 3, 3], {}, method, limit=30)
    assert {one.kind for one in played.outcomes.values()} == {"LaunchError"}
    texts = {one.text for one in played.outcomes.values()}
    assert len(texts) == 1
    (text,) = texts
    assert text.splitlines()[0].endswith(f": two processes claim rank 1 at {method}.")
    assert len(pids(text)) == 2
    assert "came first and waits for the others; host " in text
    assert "  The second has rank 1 from RANK (hand-written).\n" in text
    assert all(played.seconds(rank) < 10 for rank in range(3))


def test_two_processes_of_rank_0(method: str) -> None:
    """Over tcp the second one cannot host the store; it finds that of the first."""
    played = joined([0, 0, 1], [3, 3, 3], {1: "0.sits"}, method, limit=30)
    assert {one.kind for one in played.outcomes.values()} == {"LaunchError"}
    assert "two processes claim rank 0" in played.outcomes[0].text
    assert len({one.text for one in played.outcomes.values()}) == 1


def test_a_job_that_runs_is_left_alone(method: str) -> None:
    played = joined([0, 1, 1], [2, 2, 2], {2: "0.joined"}, method)
    assert [played.outcomes[rank].kind for rank in range(3)] == [
        "returned",
        "returned",
        "LaunchError",
    ]
    text = played.outcomes[2].text
    assert "two processes claim rank 1" in text
    assert "came first and has joined already, and runs; host " in text
    assert played.outcomes[1].text[1:].split(",")[0] in pids(text)  # by name


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_two_jobs_at_one_address(size: int, method: str) -> None:
    """The second job comes while the first waits for its rank 1.

    Of two jobs by hand of one size nobody can tell whose rank 1 it is that comes first: the
    second job's comes here when its rank 0 has been refused.
    """
    played = joined([0, 0, 1], [2, size, size], ORDER, method, limit=15)
    kinds = [played.outcomes[rank].kind for rank in range(3)]
    assert kinds[0] == kinds[1] == "LaunchError", played
    assert played.outcomes[0].text == played.outcomes[1].text
    assert "two processes claim rank 0 at " in played.outcomes[0].text
    assert kinds[2] in ("LaunchError", "DisagreementError")
    assert max(played.seconds(rank) for rank in range(3)) < 10


def steps(strike: Strike, method: str, names: list[str]) -> None:
    """This process is a task of that Slurm step."""
    job, step = names[strike.rank].split(".")
    for name in ("MESHKIT_SPAWN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    task = {"PROCID": str(strike.rank), "NTASKS": "2", "LOCALID": "0", "NNODES": "2"}
    named = {**task, "JOB_ID": job, "STEP_ID": step, "NODEID": str(strike.rank)}
    os.environ.update({f"SLURM_{name}": value for name, value in named.items()})
    os.environ["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
    meshkit.init(init_method=method, arrival_timeout=20)


def test_two_jobs_that_their_launcher_names(tmp_path: Path) -> None:
    """Rank 1 of another Slurm step comes first: the steps of a job share its port."""
    played = play(steps, 2, (f"file://{tmp_path}/store", ["7.0", "7.1"]), timeout=120)
    texts = {one.text for one in played.outcomes.values()}
    assert {one.kind for one in played.outcomes.values()} == {"DisagreementError"}
    (text,) = texts
    lines = text.splitlines()
    assert sorted(line.rpartition("  ")[2] for line in lines[1:3]) == ["job=7.0", "job=7.1"]
    assert lines[3] == "  Fix: give every job a MASTER_PORT (or init_method) of its own."


def test_a_rank_of_a_larger_job_is_told_with_the_odd_one(tmp_path: Path) -> None:
    """Rank 3 of four comes to a job of two: nobody's list of ranks holds it."""
    method = f"file://{tmp_path}/store"
    played = joined([0, 3, 1], [2, 4, 2], {1: "0.sits", 2: "1.sits"}, method, limit=15)
    assert {one.kind for one in played.outcomes.values()} == {"DisagreementError"}
    assert "rank 3 (host " in played.outcomes[0].text
    assert "world_size=4" in played.outcomes[0].text


def kill_when_two_wait(strike: Strike, method: str) -> None:
    """None of them writes to the store then: a file that was cut short would be refused."""
    store = dist.FileStore(method.removeprefix("file://"), -1)
    while not store.check([f"meshkit/1/meeting/1/here/{rank}" for rank in (0, 1)]):
        time.sleep(0.05)
    strike.kill()


def killed_in_init(strike: Strike, method: str, absent: int) -> Any:
    if strike.rank == absent:
        return "never came"
    Thread(target=kill_when_two_wait, args=(strike, method), daemon=True).start()
    meshkit.init(init_method=method, arrival_timeout=30)


def starts_twice(strike: Strike, method: str, seconds: list[float]) -> Any:
    """The first start is killed in init while a rank is still to come; these are of the second."""
    time.sleep(seconds[strike.rank])
    meshkit.init(init_method=method, arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)


@pytest.mark.parametrize("order", [[0, 0, 1], [1, 1, 0]], ids=["2 comes last", "2 comes first"])
def test_a_start_that_was_killed_is_not_in_the_way_of_the_next(
    order: list[float], tmp_path: Path
) -> None:
    method = f"file://{tmp_path}/store"
    first = play(killed_in_init, 3, (method, 2), timeout=120)
    assert [first.ends[rank] for rank in range(3)] == ["SIGKILL", "SIGKILL", "ended"]
    base = dist.FileStore(f"{tmp_path}/store", -1)
    assert base.check(["meshkit/seat/0", "meshkit/seat/1", "meshkit/1/meeting/1/here/1"])
    del base
    second = play(starts_twice, 3, (method, order), timeout=120)
    assert [one.text for one in second.outcomes.values()] == ["3", "3", "3"], second


def one_stays_in_its_first_job(strike: Strike, method: str) -> Any:
    """Ranks 0 and 2 leave and join again; rank 1 is still in the first job."""
    meshkit.init(init_method=method, arrival_timeout=20)
    if strike.rank == 1:
        time.sleep(6)
        return "stayed"
    dist.barrier(dist.new_group([0, 2], use_local_synchronization=True))
    meshkit.shutdown()
    strike.note()
    meshkit.init(init_method=method, arrival_timeout=2)


def test_a_rank_that_is_still_in_an_earlier_job_is_named_with_it(tmp_path: Path) -> None:
    played = play(one_stays_in_its_first_job, 3, (f"file://{tmp_path}/store",), timeout=120)
    outcome = played.outcomes[0]
    assert (outcome.kind, outcome.missing_ranks) == ("RankTimeoutError", (1,))
    where = rf"Last seen: 1 on host {socket.gethostname()}, pid \d+ "
    assert re.search(where + r"\(in its first init, this rank is in its second\)\.", outcome.text)
    assert played.outcomes[1].text == "'stayed'"


def test_seats() -> None:
    """One process takes its own seat again and again; another only that of one that has ended."""
    base = dist.HashStore()
    assert [acquire_rank(base, 4) for _ in range(3)] == [1, 2, 3]
    space = LeaseHolder.here().born.rpartition(" ")[0]
    gone = LeaseHolder(socket.gethostname(), 1, f"{space} 12345678901", "c", 7)
    base.set("meshkit/seat/5", gone.written())
    assert gone.state() == "it has ended"
    assert acquire_rank(base, 5) == 8
    assert dist.PrefixStore("meshkit/7", base).check(["over"])
    twin = LeaseHolder(socket.gethostname(), 1, "another boot or container", "c", 7)
    assert twin.runs() is None  # hosts may share a name
    far = LeaseHolder("another-host", 1, "9", "c", 2)
    base.set("meshkit/seat/6", far.written())
    assert far.state() == "not known here whether it runs"
    with pytest.raises(RankTakenError) as caught:
        acquire_rank(base, 6)
    assert (caught.value.holder, caught.value.waits) == (far, True)
    base.set("meshkit/2/meeting/1/verdict", "all")  # its job began long ago, and may have ended
    assert acquire_rank(base, 6) == 3


def test_this_process_runs_and_a_zombie_does_not() -> None:
    assert LeaseHolder.here().runs() is True
    assert LeaseHolder.here().state() == "it runs"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, and still in the list
    stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    assert stat[0] == "Z"
    space = LeaseHolder.here().born.rpartition(" ")[0]
    assert LeaseHolder(socket.gethostname(), child, f"{space} {stat[19]}", "c").runs() is False
    os.waitpid(child, 0)
