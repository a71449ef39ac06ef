"""The start of a job: attempts, generations, leases and duplicate ranks."""

from __future__ import annotations

import ast
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import generation
from meshkit.launch import round as rounds
from meshkit.launch import store as stores
from meshkit.launch.generation import (
    END,
    INIT,
    LEASE,
    NEWEST,
    PAST,
    Lease,
    attempt_part,
    enter_attempt,
    generation_part,
    init_round,
    is_over,
    last_seen,
    take_rank,
)
from meshkit.launch.judges import Decision, Process, RankState
from meshkit.launch.process import current_process, state_of
from meshkit.launch.round import Round
from meshkit.launch.store import Store
from meshkit.launch.times import Deadline
from meshkit.launch.world import World
from meshkit.testing.faults import Played, Strike, play
from tests.faults import free_address
from tests.preloaded_python import run_python
from tests.resources import descriptors, threads

OWN = current_process()
EXITED = OWN._replace(pid=1, start="12345678901")  # no process of this machine started then
FAR = OWN._replace(host="far", machine="another boot")


def base_of(root: dist.Store, rank: int) -> Store:
    return Store(root, World(rank, 3, rank, None, None, None, "a", 1, "hand-written"))


def take(root: dist.Store, rank: int, **options: Any) -> int:
    return take_rank(base_of(root, rank), **options).generation


def decide(root: dist.Store, number: int) -> None:
    """Let all ranks complete an init."""
    for name in (INIT, END):
        Round(generation_part(base_of(root, 0), number), name, 0, ()).say(Decision())


def hold(root: dist.Store, rank: int, process: Process, number: int = 1) -> Lease:
    lease = Lease(process, "c", number)
    root.set(LEASE.format(rank), json.dumps(lease))
    return lease


def test_a_rank_that_takes_its_rank_waits_for_a_slow_store_as_long_as_init(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host of a store looks up the names of other ranks, which may come at any moment."""
    read = Store.read

    def read_late(*args: Any) -> Any:
        time.sleep(0.5)
        return read(*args)

    for module in (rounds, stores):
        monkeypatch.setattr(module, "TIMES", replace(rounds.TIMES, store=0.1))
    monkeypatch.setattr(Store, "read", read_late)
    assert take(dist.HashStore(), 0) == 1


@pytest.mark.parametrize("seed", range(20))
def test_after_any_exceptions_the_next_start_has_one_generation(seed: int) -> None:
    chance, root = random.Random(seed), dist.HashStore()
    for _ in range(10):
        for _ in range(chance.randrange(4)):  # an exception ends init on one rank
            take(root, chance.randrange(3))
        joined: dict[int, int] = {}
        ranks = chance.sample(range(3), 3)
        for rank in ranks:
            joined[rank] = take(root, rank)
        for rank in ranks:  # a rank that waits in a start that is over joins again
            if is_over(base_of(root, rank), joined[rank]):
                joined[rank] = take(root, rank)
        assert len(set(joined.values())) == 1, (seed, joined)
        assert int(root.get(NEWEST)) == joined[0]
        decide(root, joined[0])


@pytest.mark.parametrize("seed", range(10))
def test_failures_that_all_ranks_catch_do_not_meet_the_next_valid_start(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank fails twice, at its own pace, before it joins. In one thread none can wait."""
    monkeypatch.setattr(rounds, "TIMES", replace(rounds.TIMES, failure_stays=0))
    chance, root, calls = random.Random(seed), dist.HashStore(), {0: 0, 1: 0, 2: 0}
    joined: dict[int, int] = {}
    while len(joined) < 3:
        rank = chance.choice([rank for rank in range(3) if rank not in joined])
        if calls[rank] < 2:
            number = take(root, rank, fails=True)
            init_round(base_of(root, rank), number, range(3)).fail(ValueError("caught"))
            calls[rank] += 1
        else:
            joined[rank] = take(root, rank)
    assert len({*joined.values()}) == 1
    assert init_round(base_of(root, 0), joined[0], ()).decided() is None


def test_a_late_rank_of_a_first_start_reads_the_decision() -> None:
    root = dist.HashStore()
    decide(root, take(root, 0))
    assert take(root, 1) == 1


def test_a_process_renews_its_lease_and_replaces_an_exited_one() -> None:
    root = dist.HashStore()
    assert [take(root, 0) for _ in range(3)] == [1, 2, 3]
    hold(root, 1, EXITED, 7)
    assert take(root, 1) == 8
    assert is_over(base_of(root, 1), 7)
    hold(root, 2, FAR, 20)
    with pytest.raises(meshkit.LaunchError, match="two processes claim rank 2"):
        take(root, 2)
    decision = init_round(base_of(root, 0), 20).decided()
    assert decision is not None  # no other rank of its start has arrived after 2 s
    assert isinstance(decision.error, meshkit.LaunchError)
    hold(root, 2, FAR, 30)
    decide(root, 30)  # its job began long ago, and may have ended
    assert take(root, 2) == 31


def test_a_node_that_torchrun_replaced_is_no_second_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 was on a node that is gone; rank 0 starts anew on its own node, with count 0."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    root, taken = dist.HashStore(), list[int]()
    hold(root, 0, EXITED)
    hold(root, 1, FAR)
    root.set(NEWEST, "1")
    late = Thread(target=lambda: taken.append(take(root, 1)))  # before rank 0 has come
    late.start()
    time.sleep(0.3)
    assert late.is_alive()
    assert take(root, 0) == 2
    late.join(10)
    assert taken == [2]
    assert is_over(base_of(root, 1), 1)


def test_two_processes_of_one_rank_of_torchrun_are_found_a_while_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setattr(generation, "TIMES", replace(generation.TIMES, replaced=0.5))
    root = dist.HashStore()
    hold(root, 1, FAR)
    root.set(NEWEST, "1")
    with pytest.raises(meshkit.LaunchError, match="two processes claim rank 1"):
        take(root, 1)


@pytest.mark.parametrize(
    ("process", "decided", "ended"),
    [(EXITED, False, True), (FAR, False, False), (EXITED, True, False)],
)
def test_a_start_is_abandoned_only_if_its_first_process_is_known_to_have_exited(
    process: Process, decided: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = dist.HashStore()
    with monkeypatch.context() as patch:
        patch.setattr("meshkit.launch.round.current_process", lambda: process)
        init_round(base_of(root, 1), 1, range(3)).arrive({"call": "init"}, same=True)
    if decided:
        decide(root, 1)
    take(root, 0)
    assert is_over(base_of(root, 0), 1) == ended


def test_missing_ranks_are_described_by_their_last_process() -> None:
    root = dist.HashStore()
    assert [take(root, rank) for rank in (0, 1, 0)] == [1, 1, 2]
    (seen,) = last_seen(base_of(root, 0), 2, [1, 2]).values()
    assert seen.text == f"{OWN} (in init 1, this rank is in init 2)"


def test_a_zombie_and_a_process_of_another_namespace() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, and still in the process table
    start = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19]
    assert state_of(OWN._replace(pid=child, start=start)) is RankState.ENDED
    os.waitpid(child, 0)
    assert state_of(OWN) is RankState.BUSY
    assert state_of(FAR) is RankState.UNKNOWN
    # Linux shifts the start of a process by the clock of the reader's time namespace
    script = (
        "import json; from meshkit.launch.judges import Process;"
        f"from meshkit.launch.process import state_of; print(state_of(Process(*{[*OWN]})).name)"
    )
    shift = ["unshare", "--time", "--boottime", "1000"]
    if subprocess.run([*shift, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test make a time namespace")
    assert run_python(script).stdout == "BUSY\n"
    command = [*shift, sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "UNKNOWN\n"


# ------------------------------------------------------------------------ attempts of torchrun


def attempt_of(root: dist.Store, agent: str, count: int, rank: int = 1, size: int = 2) -> Store:
    """Return the store of a worker of an agent with a restart count."""
    world = meshkit.detect({"RANK": str(rank), "WORLD_SIZE": str(size)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        patch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/{agent}/attempt_{count}/0/error.json")
        return attempt_part(Store(root, world))


def test_a_rank_of_an_earlier_attempt_is_an_error() -> None:
    """torchrun's agent keeps its store over restarts."""
    root = dist.HashStore()
    attempt_of(root, "a", 2)
    with pytest.raises(meshkit.LaunchError, match="rank 1 is of attempt 1") as caught:
        attempt_of(root, "a", 1)
    assert caught.value.variables == {"TORCHELASTIC_RESTART_COUNT": "1"}


def test_agents_whose_counts_differ_are_in_one_attempt() -> None:
    root = dist.HashStore()

    def path(agent: str, count: int, size: int = 2) -> str:
        return attempt_of(root, agent, count, size=size).path

    first = path("a", 0)
    assert path("b", 0) == first
    assert path("b", 0, size=4) != first
    second = path("a", 1)
    assert second != first
    assert path("b", 0) == path("c", 0) == path("a", 1) == second  # c is new
    third = path("c", 1)
    assert third != second
    assert path("b", 1) == path("a", 2) == third  # the next attempt, same count for b
    assert path("a", 3) != third


def test_waiting_ranks_read_that_their_attempt_is_over() -> None:
    root = dist.HashStore()
    old = attempt_of(root, "a", 0)
    assert [take_rank(old).generation for _ in range(2)] == [1, 2]
    attempt_of(root, "b", 1)
    assert not old.has(PAST)  # an agent that was not there before
    new = attempt_of(root, "a", 1)
    assert (old.has(PAST), new.has(PAST)) == (True, False)
    decision = init_round(old, 2, ()).decided()
    assert decision is not None
    assert decision.is_replaced


def test_a_rank_that_joins_as_the_attempt_ends_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    bases = []

    def part(store: Store) -> Store:
        base = store.part(f"attempt/{len(bases)}")
        if not bases:
            base.set(PAST, "")
        bases.append(base)
        return base

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setattr(generation, "attempt_part", part)
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"})
    base, _ = enter_attempt(world, Deadline.after(5))
    assert base is bases[1]


# ------------------------------------------------------------------------ duplicate ranks


@pytest.fixture(params=["file", "tcp"])
def method(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return free_address() if request.param == "tcp" else f"file://{tmp_path}/store"


def mark(strike: Strike, name: str) -> None:
    """Create the file that other processes wait for."""
    Path(strike.folder, f"{strike.rank}.{name}").touch()


def wait_for(strike: Strike, *names: str) -> None:
    """Wait for the files of other processes, as long as the job may last."""
    while not all(Path(strike.folder, name).exists() for name in names):
        time.sleep(0.01)


def after_call(call: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        result = call(*args, **options)
        note()
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
    left a mark: ``"0.arrives"`` or ``"0.joined"``. A job that has joined runs until all of those
    processes have ended.
    """
    me = strike.rank
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(RANK=str(ranks[me]), WORLD_SIZE=str(sizes[me]))
    with pytest.MonkeyPatch.context() as patch:
        arrive = after_call(Round.arrive, lambda: mark(strike, "arrives"))
        patch.setattr(Round, "arrive", arrive)
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
    return play(joins, len(ranks), (ranks, sizes, after, method, limit), timeout=120)


def pids(text: str) -> set[str]:
    return set(re.findall(r"pid (\d+)", text))


@pytest.mark.parametrize(("ranks", "after"), [([0, 1, 1], {}), ([0, 0, 1], {1: "0.arrives"})])
def test_both_processes_of_a_rank_and_all_waiting_ranks_raise(
    ranks: list[int], after: dict[int, str], method: str
) -> None:
    """Rank 2 does not exist; no rank waits for the deadline.

    A second rank 0 cannot host the store over tcp; it finds that of the first.
    """
    played = joined(ranks, [3, 3, 3], after, method, limit=30)
    assert {outcome.kind for outcome in played.outcomes.values()} == {"LaunchError"}
    (text,) = {outcome.text for outcome in played.outcomes.values()}
    assert f"two processes claim rank {ranks[1]} at {method}." in text
    assert len(pids(text)) == 2
    assert all(played.seconds(rank) < 10 for rank in range(3))


def test_a_running_job_is_left_alone(method: str) -> None:
    played = joined([0, 1, 1], [2, 2, 2], {2: "0.joined"}, method)
    kinds = [played.outcomes[rank].kind for rank in range(3)]
    assert kinds == ["returned", "returned", "LaunchError"]
    text = played.outcomes[2].text
    assert "two processes claim rank 1" in text
    assert played.outcomes[1].text[1:].split(",")[0] in pids(text)


def test_a_rank_of_a_larger_job_is_named(tmp_path: Path) -> None:
    """Rank 3 of four joins a job of two, whose list of ranks lacks it."""
    order = {1: "0.arrives", 2: "1.arrives"}
    played = joined([0, 3, 1], [2, 4, 2], order, f"file://{tmp_path}/store", limit=15)
    assert {outcome.kind for outcome in played.outcomes.values()} == {"DisagreementError"}
    assert "world_size=4" in played.outcomes[0].text


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
    assert {outcome.kind for outcome in played.outcomes.values()} == {"DisagreementError"}
    assert "job=7.1" in played.outcomes[0].text


def kill_when_two_wait(strike: Strike, method: str) -> None:
    """Kill the job while no rank writes, as a truncated store file would be rejected."""
    store = dist.FileStore(method.removeprefix("file://"), -1)
    while not store.check([f"attempt/0/meshkit/1/init/arrived/{rank}" for rank in (0, 1)]):
        time.sleep(0.05)
    time.sleep(0.1)
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
    second = play(join_second_start, 3, (method, order), timeout=120)
    assert [outcome.text for outcome in second.outcomes.values()] == ["3", "3", "3"], second


# ------------------------------------------------------------------------ exceptions at any moment


class RandomError(Exception):
    """An exception at a random moment, as of Ctrl-C."""


def use_all(limit: float, init_method: str | None) -> None:
    meshkit.init(init_method=init_method, arrival_timeout=limit, timeout=limit)
    with meshkit.build_mesh(dp=-1, timeout=limit, arrival_timeout=limit) as mesh:
        mesh.verify()
    meshkit.shutdown()


def interrupt_at_random(
    strike: Strike, seed: int, rounds: int, init_method: str | None = None
) -> Any:
    """Raise at a random moment on one rank in each round; then start cleanly on all ranks."""
    rank, chance, fired = meshkit.detect().rank, random.Random(seed), []

    def interrupt(*_: object) -> None:
        strike.note()
        fired.append(rank)
        raise RandomError

    signal.signal(signal.SIGALRM, interrupt)
    use_all(20, init_method)
    time.sleep(5)  # the host closes its store once the others have left it
    gc.collect()
    held, tries = (descriptors(), threads()), []
    for _ in range(rounds):
        odd, delay = chance.randrange(3), chance.random() * 0.3
        with suppress(RandomError, meshkit.MeshkitError, RuntimeError):
            try:
                if rank == odd:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                use_all(3, init_method)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # the exception may still come here
        meshkit.shutdown()
        for attempt in range(1, 5):  # noqa: B007  # used after the loop
            try:
                use_all(20, init_method)
                break
            except meshkit.MeshkitError as error:
                last = str(error)
                meshkit.shutdown()
        else:
            raise RuntimeError(f"no start came through in {attempt} tries: {last}")
        tries.append(attempt)
    return max(tries), what_is_left(*held), dist.is_initialized(), len(fired)


def what_is_left(files: int, others: int) -> tuple[int, int]:
    """Return how many descriptors and threads a rank has more than before, once calls have ended.

    A call to the store that an exception has left waits in its thread until its own timeout.
    """
    end = time.monotonic() + 10
    while True:
        gc.collect()  # errors and their frames refer to each other
        left = max(descriptors() - files, 0), max(threads() - others, 0)
        if left == (0, 0) or time.monotonic() > end:
            return left
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [
        pytest.param(1, 4, marks=pytest.mark.slow),
        *(pytest.param(seed, 8, marks=pytest.mark.nightly) for seed in (1, 2)),
    ],
)
@pytest.mark.parametrize("init_method", [None, "env://"])  # None is a file
def test_the_next_clean_start_works_within_a_few_tries(
    seed: int, rounds: int, init_method: str | None
) -> None:
    played = play(interrupt_at_random, 3, (seed, rounds, init_method), timeout=400)
    num_fired = 0
    for rank in range(3):
        outcome = played.outcomes[rank]
        assert outcome.kind == "returned", outcome
        tries, left, is_initialized, fired = ast.literal_eval(outcome.text)
        assert (tries <= 2, left, is_initialized) == (True, (0, 0), False), outcome
        num_fired += fired
    assert num_fired > 0
