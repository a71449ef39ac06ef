"""Ranks are lost in the middle of a job, and come back: the sums are those of a job without a loss.

The small job adds the samples of each step to one weight per tp coordinate, so that its result is
known without a second run. Before it admits, its first rank waits until as many newcomers wait as
the case wants: no result depends on the time that a process takes to start. The trainer of
examples/survive.py is compared with a run on one rank.
"""

from __future__ import annotations

import ast
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from examples import survive
from meshkit.launch.job import Job, require_job
from meshkit.launch.newcomer import find_newcomers
from meshkit.recover import admission, recovery, rounds
from meshkit.testing.faults import Played, Strike, play
from tests.faults import free_address
from tests.promises import BUSY

STEPS, GLOBAL_BATCH = 8, 8
GUARD = 3.0  # seconds of a collective inside the guard
ROLL_CALL = 4.0  # seconds until the guard reports, see promises.md
WAIT = 60.0  # seconds for a process to start on a busy machine

Fault = tuple[int, int, str]  # rank, step, and kill, stop or cut


@dataclass(frozen=True)
class Case:
    """A job, its losses, and the acts of its newcomers."""

    sizes: Mapping[str, int]  # of the mesh; dp takes the rest
    ranks: int  # the number of processes
    faults: tuple[Fault, ...]  # each at the begin of a step
    store: str = "file"  # or "tcp", which rank 0 hosts
    point: str = ""  # of the recovery, at which a rank is killed: a key of POINTS
    at_point: int = -1  # the rank that is killed there
    mesh_ranks: int | None = None  # the ranks of the first mesh; None means all
    # For each admission the numbers of newcomers for which the first rank waits in turn; -1 is one
    # that has raised. Killed ranks are started anew if there is one.
    waits: tuple[tuple[int, ...], ...] = ()
    admitted: tuple[int, ...] = ()  # the numbers of ranks that each new mesh has admitted
    # How a newcomer fails: it dies "waiting", "admitted" or "joined", or calls "init" or
    # "build_mesh" with other arguments; empty if it joins.
    newcomer: str = ""
    absent: tuple[int, ...] = ()  # the killed ranks that do not come back
    destroys: bool = False  # whether the user destroys a group of the mesh behind meshkit

    @property
    def wait(self) -> float:
        """How long ranks wait for each other: also how long groups may take to connect."""
        return 10.0 if self.point == "create" or self.newcomer in ("admitted", "joined") else WAIT

    @property
    def lost(self) -> set[int]:
        """The ranks that are lost in the course of the job."""
        return {rank for rank, _, _ in self.faults} | {self.at_point} - {-1}

    @property
    def gone(self) -> set[int]:
        """The ranks that are lost at the end."""
        return self.lost if self.newcomer or not self.waits else {*self.absent}


def kill(step: int, *ranks: int) -> tuple[Fault, ...]:
    """Return faults that kill ranks at the begin of a step."""
    return tuple((rank, step, "kill") for rank in ranks)


TP = {"tp": 2}
LOSSES = {
    "one": Case(TP, 4, kill(3, 3)),
    "rank 0": Case(TP, 4, kill(3, 0)),
    "stopped": Case(TP, 4, ((1, 2, "stop"),)),
    "cut off": Case(TP, 4, ((2, 5, "cut"),), "tcp"),
    "two at once": Case(TP, 4, kill(3, 1, 2)),
    "a whole replica": Case(TP, 4, kill(3, 2, 3)),
    "one after the other": Case({}, 4, kill(2, 1) + kill(4, 2)),
    "all but one": Case({}, 4, kill(3, 0, 1, 3)),
    "while ranks arrive": Case({}, 4, kill(2, 1), point="decide", at_point=3),
    "while groups are created": Case({}, 4, kill(2, 1), point="create", at_point=2),
    "while the state is sent": Case(TP, 6, kill(2, 0), point="restore", at_point=4),
    "a spare in place": Case(TP, 5, kill(3, 1), mesh_ranks=4, destroys=True),
    "a spare dies first": Case(TP, 6, kill(0, 5) + kill(3, 1), mesh_ranks=4),
}
LOST_1 = kill(2, 1)
RETURNS = {
    "with a spare": Case(TP, 6, kill(3, 1), waits=((1,),), admitted=(1,)),
    "rank 0": Case({}, 2, kill(2, 0), waits=((1,),), admitted=(1,)),
    "two at once": Case(TP, 6, kill(3, 1, 4), waits=((2,),), admitted=(2,)),
    "one after the other": Case(
        {}, 3, kill(2, 0) + kill(4, 1), waits=((1,), (1,)), admitted=(1, 1)
    ),
    "as a spare": Case(
        TP, 6, kill(2, 2, 3) + kill(4, 1), waits=((1,),), admitted=(1,), absent=(1, 3)
    ),
    "another is lost meanwhile": Case(
        {}, 4, LOST_1, "file", "admit", 2, waits=((1,),), admitted=(1,), absent=(2,)
    ),
    "dies while it waits": Case({}, 3, LOST_1, waits=((1, 0),), newcomer="waiting"),
    "dies while it is admitted": Case(
        {}, 3, LOST_1, waits=((1,),), admitted=(0,), newcomer="admitted"
    ),
    "dies before it builds the mesh": Case(
        {}, 3, LOST_1, waits=((1,),), admitted=(0,), newcomer="joined"
    ),
    "calls init otherwise": Case({}, 3, LOST_1, waits=((-1,),), newcomer="init"),
    "builds another mesh": Case({}, 3, LOST_1, waits=((1,),), admitted=(0,), newcomer="build_mesh"),
}
QUICK = ("with a spare", "dies while it waits")
LONG = ("while groups are created",)  # its ranks wait 10 s to connect


def expected_weight(tp: int) -> float:
    """Return the weight of a tp coordinate: each sample is added once, times tp + 1."""
    return float(sum(range(STEPS * GLOBAL_BATCH)) * (tp + 1))


POINTS: dict[str, tuple[Any, str]] = {
    "decide": (rounds, "RecoveryFacts"),
    "create": (Job, "rejoin"),
    "restore": (recovery, "restore_state"),
    "admit": (admission, "KnownFailure"),
}


def kill_at(point: str, strike: Strike) -> None:
    """Kill this rank at a point of its recovery."""
    pytest.MonkeyPatch().setattr(*POINTS[point], lambda *_, **__: strike.kill(), raising=True)


def add_samples(mesh: meshkit.Mesh, state: dict[str, Any]) -> None:
    """Run one step: every data coordinate adds its samples, and all tp ranks take part."""
    identity = [os.environ["RANK"], os.environ["WORLD_SIZE"]]  # they follow the recoveries
    assert identity == [str(dist.get_rank()), str(dist.get_world_size())]
    plan = mesh.batch(global_batch=GLOBAL_BATCH, micro_batch=1, uneven=True)
    batches = list(plan.micro_batches(state["steps"]))
    own = [float(m.samples.sum()) for m in batches if not m.is_filler]
    total = torch.tensor([sum(own)], dtype=torch.float64)
    dist.all_reduce(total, group=mesh.group("dp"))
    dist.all_reduce(torch.ones(1), group=mesh.group())
    state["weight"] += total * (mesh.coordinate.get("tp", 0) + 1)
    state["steps"] += 1


def wait_for_newcomers(folder: str, counts: Sequence[int]) -> None:
    """Wait on the first rank until so many newcomers wait, for each number in turn."""
    deadline = time.monotonic() + WAIT
    for count in counts:
        while True:
            waiting = len(find_newcomers(require_job())[1])
            if Path(folder, "raised").exists() if count < 0 else waiting == count:
                break
            assert time.monotonic() < deadline, (waiting, counts)
            time.sleep(0.05)
        Path(folder, "seen").touch()


def start_anew(strike: Strike, case: Case) -> meshkit.Mesh:
    """Join the job as a newcomer, as far as the case lets it come."""
    if case.newcomer == "waiting":
        threading.Thread(target=kill_when_seen, args=[strike], daemon=True).start()
    if case.newcomer == "admitted":
        kill_at("create", strike)
    try:
        meshkit.init(arrival_timeout=case.wait, timeout=7 if case.newcomer == "init" else None)
        if case.newcomer == "joined":
            strike.kill()
        return meshkit.build_mesh(dp=-1, tp=3 if case.newcomer == "build_mesh" else 1)
    except meshkit.MeshkitError:
        Path(strike.folder, "raised").touch()
        raise


def kill_when_seen(strike: Strike) -> None:
    while not Path(strike.folder, "seen").exists():
        time.sleep(0.05)
    strike.kill()


def admit(
    mesh: meshkit.Mesh, step: int, strike: Strike, waits: list[tuple[int, ...]]
) -> meshkit.Mesh:
    """Admit newcomers, once the first rank has seen those for which it waits."""
    if not mesh.group_rank() and waits and require_job().membership.lost:
        wait_for_newcomers(strike.folder, waits.pop(0))
    return mesh.admit(step=step)


def build(case: Case, address: str) -> meshkit.Mesh:
    method = {"init_method": address} if case.store == "tcp" else {}
    meshkit.init(arrival_timeout=case.wait, **method)
    ranks = None if case.mesh_ranks is None else range(case.mesh_ranks)
    mesh = meshkit.build_mesh(dp=-1, **case.sizes, ranks=ranks)
    if case.destroys and mesh.inside:
        dist.destroy_process_group(mesh.group("tp"))
    return mesh


def run_job(strike: Strike, case: Case, address: str) -> Any:
    """Run the small job on one rank; return its place, its sum and its recoveries."""
    if strike.start and strike.rank in case.absent:
        return None
    is_new = bool(strike.start and case.newcomer)
    mesh = start_anew(strike, case) if is_new else build(case, address)
    if strike.rank == case.at_point and not strike.start:
        kill_at(case.point, strike)
    faults = {step: how for rank, step, how in case.faults if rank == strike.rank}
    faults = {} if strike.start else faults
    state: dict[str, Any] = {"weight": torch.zeros(1, dtype=torch.float64), "steps": 0}
    restored, seconds, waits, admitted = None, [], [*case.waits], []
    while state["steps"] < STEPS and not mesh.recovery.is_over:
        try:
            if not mesh.inside:
                if 0 in faults:
                    strike.later(0.2, getattr(strike, faults.pop(0)))
                mesh.recovery.restore(state)
                mesh = mesh.recover(step=state["steps"])
                continue
            with mesh.guard(timeout=GUARD):
                if restored is not mesh:
                    mesh.recovery.restore(state)
                    restored = mesh
                if state["steps"] in faults:
                    getattr(strike, faults.pop(state["steps"]))()
                add_samples(mesh, state)
                time.sleep(0.05)
            if case.waits and state["steps"] < STEPS:
                mesh = admit(mesh, state["steps"], strike, waits)
                admitted += [] if mesh is restored else [len(mesh.recovery.new_ranks)]
        except meshkit.CollectiveError:
            began = time.monotonic()
            mesh = mesh.recover(step=state["steps"])
            seconds.append(time.monotonic() - began)
    result = {
        "rank": mesh.rank,
        "inside": mesh.inside,
        "tp": mesh.coordinate.get("tp", 0) if mesh.inside else None,
        "weight": float(state["weight"]),
        "sizes": mesh.layout.sizes,
        "seconds": seconds,
        "admitted": admitted,
        "start": strike.start,
    }
    mesh.close()
    meshkit.shutdown()
    return result


def run(case: Case) -> Played:
    restarts = 1 if case.waits else 0
    return play(run_job, case.ranks, (case, free_address()), timeout=150, restarts=restarts)


def claim_ranks(strike: Strike) -> Any:
    """After a loss, start processes with the rank of one that lives, and of one that is lost."""
    environ = dict(os.environ)
    meshkit.init(arrival_timeout=WAIT)
    mesh = meshkit.build_mesh(dp=-1)
    try:
        with mesh.guard(timeout=GUARD):
            if mesh.rank == 1:
                strike.kill()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    errors = [run_as(rank, environ) for rank in (0, 1)] if mesh.rank == 0 else []
    total = torch.ones(1)
    with mesh.guard(timeout=2 * WAIT):
        dist.all_reduce(total, group=mesh.group())
    return float(total), errors


def run_as(rank: int, environ: Mapping[str, str]) -> str:
    """Start a process that joins the job as a rank; return what it writes to stderr."""
    environ = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    command = [sys.executable, "-c", "import meshkit; meshkit.init(arrival_timeout=2)"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT)
    return done.stderr


def return_to_training(strike: Strike) -> Any:
    """Run the tutorial's trainer on one rank, kill rank 3, and let it come back."""
    args = survive.parse([*SMALL, "--dp=2", "--tp=2", "--timeout=20"])
    meshkit.init(seed=0, arrival_timeout=WAIT)
    mesh = meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp)
    waits = [1]

    def begin_step(done: int) -> None:
        if done == 2 and strike.rank == 3 and not strike.start:
            strike.kill()
        if done == 4 and not dist.get_rank() and waits and require_job().membership.lost:
            wait_for_newcomers(strike.folder, [waits.pop()])

    mesh, losses = survive.train_on(mesh, args, begin_step)
    sizes = mesh.layout.sizes
    mesh.close()
    meshkit.shutdown()
    return sizes, losses


def wake_late(strike: Strike) -> Any:
    """Stop rank 1, and let it go on when the others have finished."""
    mesh = meshkit.build_mesh(dp=-1)
    folder, first = Path(strike.folder), mesh.rank
    (folder / f"{first}.pid").write_text(str(os.getpid()))
    dist.barrier()
    try:
        with mesh.guard(timeout=2):
            if first == 1:
                strike.stop()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    with mesh.guard(timeout=10):
        if mesh.rank == 0:
            os.kill(int((folder / "1.pid").read_text()), signal.SIGCONT)
        for _ in range(20):
            total = torch.ones(1)
            dist.all_reduce(total, group=mesh.group())
            time.sleep(0.1)
    return mesh.layout.num_ranks, float(total)


def lose_the_store(strike: Strike, method: str) -> Any:
    """Kill rank 0, which hosts the store."""
    meshkit.init(init_method=method, arrival_timeout=30)
    mesh = meshkit.build_mesh(dp=-1)
    dist.barrier()  # every rank has built its mesh
    try:
        with mesh.guard(timeout=2):
            if mesh.rank == 0:
                time.sleep(0.3)
                strike.kill()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh.recover()


@dataclass(frozen=True)
class Seed:
    """A random loss in the tutorial's trainer."""

    number: int  # the seed of the moment, the rank and the fault
    sizes: Mapping[str, int]  # of the mesh
    store: str  # "file" or "tcp", which rank 0 hosts

    @property
    def fault(self) -> tuple[int, int, float, str]:
        """The rank, the step, the seconds after its begin, and kill, stop or cut."""
        chance = random.Random(self.number)
        ranks = math.prod(self.sizes.values())
        rank = chance.randrange(1 if self.store == "tcp" else 0, ranks)
        step, seconds = chance.randrange(6), chance.uniform(0, 0.15)
        return rank, step, seconds, chance.choice(["kill", "stop", "cut"])


SMALL = ["--dtype=float64", "--steps=8", "--seq=16", "--dim=16", "--layers=1", "--heads=4"]
SMALL += ["--global-batch=8", "--micro-batch=1", "--timeout=4"]
# one cut and one stopped rank; the losses above have the killed ones
QUICK_SEEDS = [Seed(0, {"dp": 2, "tp": 2}, "file"), Seed(3, {"dp": 2, "tp": 2}, "tcp")]
SEEDS = QUICK_SEEDS + [Seed(n, {"dp": 2, "sp": 2, "tp": 2}, "file") for n in (4, 6)]


def survive_on(strike: Strike, seed: Seed, method: str | None) -> Any:
    """Run the tutorial's trainer on one rank; return whether it is a spare, and the losses."""
    args = survive.parse([*SMALL, *(f"--{axis}={size}" for axis, size in seed.sizes.items())])
    meshkit.init(seed=0, arrival_timeout=60, **({"init_method": method} if method else {}))
    mesh = meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp)
    rank, step, seconds, how = seed.fault
    faults = {step: how} if mesh.rank == rank else {}

    def begin_step(done: int) -> None:
        if done in faults:
            strike.later(seconds, getattr(strike, faults.pop(done)))

    mesh, losses = survive.train_on(mesh, args, begin_step)
    inside, text = mesh.inside, str(mesh.recovery)
    mesh.close()
    meshkit.shutdown()
    return inside, losses, text


def run_seed(seed: Seed) -> Played:
    ranks = math.prod(seed.sizes.values())
    method = free_address() if seed.store == "tcp" else None
    return play(survive_on, ranks, (seed, method), timeout=150)


AT_ONCE = 2
# The job of each test by the name of the test.
JOBS: dict[str, Callable[[], Played]] = {
    **{f"test_the_others_go_on[{name}]": partial(run, case) for name, case in LOSSES.items()},
    **{f"test_ranks_come_back[{name}]": partial(run, case) for name, case in RETURNS.items()},
    **{
        f"test_the_losses_are_those_of_a_run_without_a_loss[{seed.number}]": partial(run_seed, seed)
        for seed in SEEDS
    },
    "test_a_rank_that_wakes_up_late_raises": lambda: play(wake_late, 3, timeout=120),
    "test_without_the_store_all_raise": lambda: play(
        lose_the_store, 3, (free_address(),), timeout=120
    ),
    "test_a_rank_that_lives_is_not_replaced": lambda: play(claim_ranks, 3, timeout=150),
    "test_a_rank_that_returns_trains_on": lambda: play(
        return_to_training, 4, timeout=150, restarts=1
    ),
}


def results_of(played: Played, gone: Sequence[int] | set[int]) -> dict[int, Any]:
    """Return what each rank that lives has returned, after a check that no other rank did."""
    texts = {
        rank: outcome.text
        for rank, outcome in played.outcomes.items()
        if outcome.kind == "returned" and outcome.text != "None"
    }
    assert {*texts} == {*played.ends} - {*gone}, (played.ends, played.outcomes)
    return {rank: ast.literal_eval(texts[rank]) for rank in sorted(texts)}


def check(case: Case, played: Played) -> dict[int, Any]:
    """Check the ranks that go on, their mesh and their sum, in every case."""
    assert played.fired in case.lost
    results = results_of(played, case.gone)
    model = case.sizes.get("tp", 1)
    replicas = min(len(results) // model, (case.mesh_ranks or case.ranks) // model)
    inside = {rank: result for rank, result in results.items() if result["inside"]}
    assert len(inside) == replicas * model
    assert sorted(result["rank"] for result in results.values()) == [*range(len(results))]
    for result in inside.values():
        assert result["sizes"]["dp"] == replicas
        assert result["weight"] == expected_weight(result["tp"])
    return results


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG), id=n) for n in LOSSES]
)
def test_the_others_go_on(name: str, played: Played) -> None:
    case = LOSSES[name]
    results = check(case, played)
    if not case.point and case.mesh_ranks is None:
        for result in results.values():
            assert all(seconds < GUARD + 1 + BUSY for seconds in result["seconds"])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK), id=n) for n in RETURNS]
)
def test_ranks_come_back(name: str, played: Played) -> None:
    case = RETURNS[name]
    results = check(case, played)
    back = case.lost - case.gone
    assert {rank for rank, result in results.items() if result["start"]} == back
    assert max(tuple(result["admitted"]) for result in results.values()) == case.admitted
    kinds = {"init": "DisagreementError", "build_mesh": "SpecError"}
    if case.newcomer in kinds:
        assert played.outcomes[1].kind == kinds[case.newcomer]
        assert {"init": "timeout", "build_mesh": "dp=3"}[case.newcomer] in played.outcomes[1].text
    elif case.newcomer:
        assert (played.ends[1], played.outcomes.get(1)) == ("SIGKILL", None)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(s, marks=[pytest.mark.slow] * (s not in QUICK_SEEDS), id=f"{s.number}")
        for s in SEEDS
    ],
)
def test_the_losses_are_those_of_a_run_without_a_loss(
    seed: Seed, played: Played, alone: list[float]
) -> None:
    rank = seed.fault[0]
    assert played.fired == rank
    results = results_of(played, [rank])
    assert any(inside for inside, *_ in results.values())
    for inside, losses, _ in results.values():
        assert len(losses) == len(alone) if inside else len(losses) <= len(alone)
        assert losses == pytest.approx(alone[: len(losses)], rel=0, abs=1e-9)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """Return the losses of a run on one rank."""
    return meshkit.spawn(survive.main, 1, ([*SMALL, "--dp=1"],), timeout=300)[0]


def test_a_rank_that_wakes_up_late_raises(played: Played) -> None:
    assert played.fired == 1
    late = played.outcomes[1]
    assert late.kind == "RankTimeoutError", late
    assert "rank 1 was declared lost" in late.text
    assert "Ranks 0, 2 go on without it" in late.text
    for rank in (0, 2):
        assert played.outcomes[rank].text == "(2, 2.0)", played.outcomes[rank]


def test_without_the_store_all_raise(played: Played) -> None:
    assert played.fired == 0
    for rank in (1, 2):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("RankTimeoutError", (0,)), outcome
        assert "Rank 0 hosted the store" in outcome.text
        assert played.seconds(rank) < ROLL_CALL + 5 + BUSY


@pytest.mark.slow
def test_a_rank_that_lives_is_not_replaced(played: Played) -> None:
    assert played.fired == 1
    results = results_of(played, [1])
    assert [results[rank][0] for rank in (0, 2)] == [2, 2]
    of_living, of_lost = results[0][1]
    assert "two processes claim rank 0" in of_living
    assert "has joined already, and runs" in of_living
    assert "RankTimeoutError" in of_lost
    assert "It admits a new process by mesh.admit()." in of_lost


@pytest.mark.slow
def test_a_rank_that_returns_trains_on(played: Played, alone: list[float]) -> None:
    assert played.fired == 3
    results = results_of(played, ())
    for sizes, losses in results.values():
        assert sizes == {"dp": 2, "sp": 1, "tp": 2}
        assert losses == pytest.approx(alone, rel=0, abs=1e-9)
