"""Ranks are lost in the middle of a job: the others go on, with the sums of a job without a loss.

The small job adds the samples of each step to one weight per tp coordinate, so that its result is
known without a second run. The trainer of examples/survive.py is compared with a run on one rank.
``python -m tests.scenarios.test_recovery 50`` plays 50 random losses of it on 8 ranks.
"""

from __future__ import annotations

import ast
import math
import os
import random
import signal
import socket
import sys
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
from meshkit.live.recovery import recover
from meshkit.testing.faults import Played, Strike, play
from tests.promises import BUSY

STEPS, GLOBAL_BATCH = 8, 8
GUARD = 3.0  # seconds of a collective inside the guard
ROLL_CALL = 4.0  # seconds until the guard reports, see meshkit/live/README.md

Fault = tuple[int, int, str]  # rank, step, and kill, stop or cut


@dataclass(frozen=True)
class Case:
    """A job and its losses.

    Attributes:
        sizes: those of the mesh; dp takes the rest.
        ranks: the number of processes.
        faults: the faults, each at the begin of a step.
        store: ``"file"`` or ``"tcp"``, which rank 0 hosts.
        point: a point of the recovery at which rank ``at_point`` is killed; empty for none.
        at_point: the rank that is killed there.
        mesh_ranks: the ranks of the first mesh; None means all.
    """

    sizes: Mapping[str, int]
    ranks: int
    faults: tuple[Fault, ...]
    store: str = "file"
    point: str = ""
    at_point: int = -1
    mesh_ranks: int | None = None

    @property
    def lost(self) -> set[int]:
        """The ranks that are lost in the course of the job."""
        return {rank for rank, _, _ in self.faults} | {self.at_point} - {-1}


CASES = {
    "one": Case({"tp": 2}, 4, ((3, 3, "kill"),)),
    "rank 0": Case({"tp": 2}, 4, ((0, 3, "kill"),)),
    "stopped": Case({"tp": 2}, 4, ((1, 2, "stop"),)),
    "cut off": Case({"tp": 2}, 4, ((2, 5, "cut"),), "tcp"),
    "two at once": Case({"tp": 2}, 6, ((1, 3, "kill"), (2, 3, "kill"))),
    "a whole replica": Case({"tp": 2}, 6, ((2, 3, "kill"), (3, 3, "kill"))),
    "one after the other": Case({}, 4, ((1, 2, "kill"), (2, 4, "kill"))),
    "all but one": Case({}, 4, ((0, 3, "kill"), (1, 3, "kill"), (3, 3, "kill"))),
    "while ranks check in": Case({}, 4, ((1, 2, "kill"),), point="decide", at_point=3),
    "while groups are created": Case({}, 4, ((1, 2, "kill"),), point="create", at_point=2),
    "while the state is sent": Case({"tp": 2}, 6, ((0, 2, "kill"),), point="restore", at_point=4),
    "a spare in place": Case({"tp": 2}, 5, ((1, 3, "kill"),), mesh_ranks=4),
    "a spare dies first": Case({"tp": 2}, 6, ((5, 0, "kill"), (1, 3, "kill")), mesh_ranks=4),
}


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def expected_weight(tp: int) -> float:
    """Return the weight of a tp coordinate: each sample is added once, times tp + 1."""
    return float(sum(range(STEPS * GLOBAL_BATCH)) * (tp + 1))


def kill_at(point: str, strike: Strike, patch: pytest.MonkeyPatch) -> None:
    """Kill this rank at a point of its recovery."""

    def struck(*args: Any, **options: Any) -> Any:
        strike.kill()

    if point == "decide":
        patch.setattr(recover.MembershipRound, "decide", struck, raising=True)
    elif point == "create":
        patch.setattr(recover, "rejoin", struck, raising=True)
    elif point == "restore":
        from meshkit.live.recovery import recovery

        patch.setattr(recovery, "restore_state", struck, raising=True)


def add_samples(mesh: meshkit.Mesh, state: dict[str, Any]) -> None:
    """Run one step: every data coordinate adds its samples, and all tp ranks take part."""
    plan = mesh.batch(global_batch=GLOBAL_BATCH, micro_batch=1, uneven=True)
    batches = list(plan.micro_batches(state["steps"]))
    own = [float(m.samples.sum()) for m in batches if not m.is_filler]
    total = torch.tensor([sum(own)], dtype=torch.float64)
    dist.all_reduce(total, group=mesh.group("dp"))
    dist.all_reduce(torch.ones(1), group=mesh.group())
    state["weight"] += total * (mesh.coordinate.get("tp", 0) + 1)
    state["steps"] += 1


def run_job(strike: Strike, case: Case, method: str | None) -> Any:
    """Run the small job on one rank; return what it has seen."""
    wait = 10 if case.point == "create" else 60  # also how long groups may take to connect
    meshkit.init(arrival_timeout=wait, **({"init_method": method} if method else {}))
    ranks = None if case.mesh_ranks is None else range(case.mesh_ranks)
    mesh, patch = meshkit.build_mesh(dp=-1, **case.sizes, ranks=ranks), pytest.MonkeyPatch()
    first = mesh.rank
    faults = {step: how for rank, step, how in case.faults if rank == first}
    state: dict[str, Any] = {"weight": torch.zeros(1, dtype=torch.float64), "steps": 0}
    restored, lost, seconds = mesh, [], []
    if first == case.at_point:
        kill_at(case.point, strike, patch)
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
        except meshkit.CollectiveError:
            began = time.monotonic()
            mesh = mesh.recover(step=state["steps"])
            seconds.append(time.monotonic() - began)
            lost.append([*mesh.recovery.lost_ranks])
    inside = mesh.inside
    result = {
        "rank": mesh.rank,
        "inside": inside,
        "tp": mesh.coordinate.get("tp", 0) if inside else None,
        "weight": float(state["weight"]),
        "sizes": mesh.layout.sizes,
        "lost": lost,
        "seconds": seconds,
    }
    mesh.close()
    meshkit.shutdown()
    return result


def run(case: Case) -> Played:
    method = free_address() if case.store == "tcp" else None
    return play(run_job, case.ranks, (case, method), timeout=120)


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
    """A random loss in the tutorial's trainer.

    Attributes:
        number: the seed of the moment, the rank and the fault.
        sizes: those of the mesh.
        store: ``"file"`` or ``"tcp"``, which rank 0 hosts.
    """

    number: int
    sizes: Mapping[str, int]
    store: str

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
SEEDS = [Seed(n, {"dp": 2, "tp": 2}, ("file", "tcp")[n % 2]) for n in range(4)]


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
    **{f"test_the_others_go_on[{name}]": partial(run, case) for name, case in CASES.items()},
    **{
        f"test_the_losses_are_those_of_a_run_without_a_loss[{seed.number}]": partial(run_seed, seed)
        for seed in SEEDS
    },
    "test_a_rank_that_wakes_up_late_raises": lambda: play(wake_late, 3, timeout=120),
    "test_without_the_store_all_raise": lambda: play(
        lose_the_store, 3, (free_address(),), timeout=120
    ),
}


def results_of(played: Played, lost: Sequence[int]) -> dict[int, Any]:
    """Return what each rank that lives has returned, once it is clear that none else did."""
    returned = {rank for rank, outcome in played.outcomes.items() if outcome.kind == "returned"}
    assert returned == {*played.ends} - {*lost}, (played.ends, played.outcomes)
    return {rank: ast.literal_eval(played.outcomes[rank].text) for rank in sorted(returned)}


@pytest.mark.parametrize("name", CASES)
def test_the_others_go_on(name: str, played: Played) -> None:
    case = CASES[name]
    assert played.fired in case.lost
    results = results_of(played, sorted(case.lost))
    model = case.sizes.get("tp", 1)
    replicas = min(len(results) // model, (case.mesh_ranks or case.ranks) // model)
    inside = {rank: r for rank, r in results.items() if r["inside"]}
    assert len(inside) == replicas * model
    assert sorted(r["rank"] for r in results.values()) == [*range(len(results))]
    for result in inside.values():
        assert result["sizes"]["dp"] == replicas
        assert result["weight"] == expected_weight(result["tp"])
    if not case.point and case.mesh_ranks is None:
        for result in results.values():
            assert all(seconds < GUARD + 1 + BUSY for seconds in result["seconds"])


@pytest.mark.parametrize("seed", SEEDS, ids=[str(seed.number) for seed in SEEDS])
def test_the_losses_are_those_of_a_run_without_a_loss(
    seed: Seed, played: Played, alone: list[float]
) -> None:
    check_seed(seed, played, alone)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return losses_alone()


def losses_alone() -> list[float]:
    """Return the losses of a run on one rank."""
    return meshkit.spawn(survive.main, 1, ([*SMALL, "--dp=1"],), timeout=300)[0]


def check_seed(seed: Seed, played: Played, alone: list[float]) -> None:
    rank = seed.fault[0]
    assert played.fired == rank
    results = results_of(played, [rank])
    assert any(inside for inside, _, _ in results.values())
    for inside, losses, _ in results.values():
        assert len(losses) == len(alone) if inside else len(losses) <= len(alone)
        assert all(abs(a - b) < 1e-9 for a, b in zip(losses, alone, strict=False))


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
        assert 'init_method="file:///shared/store"' in outcome.text
        assert played.seconds(rank) < ROLL_CALL + 5 + BUSY


def main(count: int, first: int = 0) -> None:
    """Play random losses on 8 ranks, and print the outcome of each."""
    alone, failures = losses_alone(), 0
    shapes = [{"dp": 4, "tp": 2}, {"dp": 2, "sp": 2, "tp": 2}]
    for number in range(first, first + count):
        seed = Seed(number, shapes[number % 2], ("file", "tcp")[number // 2 % 2])
        began = time.monotonic()
        played = run_seed(seed)
        try:
            check_seed(seed, played, alone)
            verdict = "good"
        except AssertionError as error:
            failures += 1
            verdict = f"FAILED {error}"
        print(
            number, seed.sizes, seed.store, seed.fault, round(time.monotonic() - began, 1), verdict
        )
        sys.stdout.flush()
    print(f"{count - failures} of {count} good")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
