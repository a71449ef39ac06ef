"""Ranks that were lost are started anew, and the job admits them between its steps.

The small job is that of ``test_recovery.py``, whose result is known without a second run. Before
it admits, its first rank waits until as many newcomers wait as the test wants. No result therefore
depends on the time that a process takes to start.
"""

from __future__ import annotations

import ast
import os
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
from meshkit.launch.current_job import require_job
from meshkit.launch.recovery import newcomer
from meshkit.launch.recovery.rejoin import origin_of
from meshkit.launch.recovery.waiting import find_newcomers
from meshkit.live.recovery import admit as admission
from meshkit.testing.faults import Played, Strike, play
from tests.scenarios.test_recovery import (
    GUARD,
    SMALL,
    STEPS,
    add_samples,
    expected_weight,
    losses_alone,
)

WAIT = 60.0  # seconds for a process to start on a busy machine


@dataclass(frozen=True)
class Case:
    """A job, its losses, and what its newcomers do.

    Attributes:
        sizes: those of the mesh; dp takes the rest.
        ranks: the number of processes.
        losses: step to the ranks that are killed at its begin.
        waits: for each admission the numbers of newcomers for which the first rank waits in turn;
            -1 is one that has raised.
        at_end: the sizes of the last mesh.
        admitted: the numbers of ranks that each new mesh has admitted.
        newcomer: how a newcomer fails: it dies ``"waiting"``, ``"admitted"`` or ``"joined"``, or
            calls ``"init"`` or ``"build_mesh"`` with other arguments; empty if it joins.
        absent: the killed ranks that do not come back.
        struck: a rank that is killed while the job admits others; -1 for none.
    """

    sizes: Mapping[str, int]
    ranks: int
    losses: Mapping[int, tuple[int, ...]]
    waits: tuple[tuple[int, ...], ...]
    at_end: Mapping[str, int]
    admitted: tuple[int, ...] = ()
    newcomer: str = ""
    absent: tuple[int, ...] = ()
    struck: int = -1

    @property
    def wait(self) -> float:
        """How long ranks wait for each other: also how long groups may take to connect."""
        return 10.0 if self.newcomer in ("admitted", "joined") else WAIT


TP, DP_2, LOST_1 = {"tp": 2}, {"dp": 2}, {2: (1,)}
CASES = {
    "with a spare": Case(TP, 6, {3: (1,)}, ((1,),), {"dp": 3, "tp": 2}, (1,)),
    "rank 0": Case({}, 2, {2: (0,)}, ((1,),), DP_2, (1,)),
    "two at once": Case(TP, 6, {3: (1, 4)}, ((2,),), {"dp": 3, "tp": 2}, (2,)),
    "one after the other": Case({}, 3, {2: (0,), 4: (1,)}, ((1,), (1,)), {"dp": 3}, (1, 1)),
    "as a spare": Case(
        TP, 6, {2: (2, 3), 4: (1,)}, ((1,),), {"dp": 2, "tp": 2}, (1,), absent=(1, 3)
    ),
    "another is lost meanwhile": Case(
        {}, 4, LOST_1, ((1,),), {"dp": 3}, (1,), absent=(2,), struck=2
    ),
    "dies while it waits": Case({}, 3, LOST_1, ((1, 0),), DP_2, (), "waiting"),
    "dies while it is admitted": Case({}, 3, LOST_1, ((1,),), DP_2, (0,), "admitted"),
    "dies before it builds the mesh": Case({}, 3, LOST_1, ((1,),), DP_2, (0,), "joined"),
    "calls init otherwise": Case({}, 3, LOST_1, ((-1,),), DP_2, (), "init"),
    "builds another mesh": Case({}, 3, LOST_1, ((1,),), DP_2, (0,), "build_mesh"),
}
QUICK = ("with a spare", "dies while it waits")


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
        pytest.MonkeyPatch().setattr(newcomer, "rejoin", lambda *_: strike.kill(), raising=True)
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
    if not mesh.group_rank() and waits and origin_of(require_job()).lost:
        wait_for_newcomers(strike.folder, waits.pop(0))
    return mesh.admit(step=step)


def run_job(strike: Strike, case: Case) -> Any:
    """Run the small job on one rank; return what it has seen."""
    if strike.start and strike.rank in case.absent:
        return None
    if strike.rank == case.struck:
        pytest.MonkeyPatch().setattr(admission, "Failure", lambda **_: strike.kill(), raising=True)
    if strike.start and case.newcomer:
        mesh = start_anew(strike, case)
    else:
        meshkit.init(arrival_timeout=case.wait)
        mesh = meshkit.build_mesh(dp=-1, **case.sizes)
    state: dict[str, Any] = {"weight": torch.zeros(1, dtype=torch.float64), "steps": 0}
    restored, waits, admitted = None, [*case.waits], []
    while state["steps"] < STEPS and not mesh.recovery.is_over:
        try:
            if not mesh.inside:
                mesh.recovery.restore(state)
                mesh = mesh.recover(step=state["steps"])
                continue
            with mesh.guard(timeout=GUARD):
                if restored is not mesh:
                    mesh.recovery.restore(state)
                    restored = mesh
                if not strike.start and strike.rank in case.losses.get(state["steps"], ()):
                    strike.kill()
                add_samples(mesh, state)
            if state["steps"] < STEPS:
                mesh = admit(mesh, state["steps"], strike, waits)
                admitted += [] if mesh is restored else [len(mesh.recovery.new_ranks)]
        except meshkit.CollectiveError:
            mesh = mesh.recover(step=state["steps"])
    result = {
        "rank": mesh.rank,
        "tp": mesh.coordinate["tp"] if mesh.inside else None,
        "weight": float(state["weight"]),
        "sizes": mesh.layout.sizes,
        "admitted": admitted,
        "start": strike.start,
    }
    mesh.close()
    meshkit.shutdown()
    return result


def claim_ranks(strike: Strike) -> Any:
    """After a loss, start processes with the rank of one that lives, and of one that is lost."""
    meshkit.init(arrival_timeout=WAIT)
    mesh = meshkit.build_mesh(dp=-1)
    try:
        with mesh.guard(timeout=GUARD):
            if mesh.rank == 1:
                strike.kill()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    errors = [run_as(rank) for rank in (0, 1)] if mesh.rank == 0 else []
    total = torch.ones(1)
    with mesh.guard(timeout=2 * WAIT):
        dist.all_reduce(total, group=mesh.group())
    return float(total), errors


def run_as(rank: int) -> str:
    """Start a process that joins the job as a rank; return what it writes to stderr."""
    environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    command = [sys.executable, "-c", "import meshkit; meshkit.init(arrival_timeout=2)"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT)
    return done.stderr


def return_to_training(strike: Strike) -> Any:
    """Run the tutorial's trainer on one rank, kill rank 3, and let it come back."""
    args = survive.parse([*SMALL, "--dp=2", "--tp=2", "--timeout=60"])
    meshkit.init(seed=0, arrival_timeout=WAIT)
    mesh = meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp)
    waits = [1]

    def begin_step(done: int) -> None:
        if done == 2 and strike.rank == 3 and not strike.start:
            strike.kill()
        if done == 4 and not dist.get_rank() and waits and origin_of(require_job()).lost:
            wait_for_newcomers(strike.folder, [waits.pop()])

    mesh, losses = survive.train_on(mesh, args, begin_step)
    sizes = mesh.layout.sizes
    mesh.close()
    meshkit.shutdown()
    return sizes, losses


AT_ONCE = 2
# The job of each test by the name of the test.
JOBS: dict[str, Callable[[], Played]] = {
    **{
        f"test_ranks_come_back[{name}]": partial(
            play, run_job, case.ranks, (case,), timeout=150, restarts=1
        )
        for name, case in CASES.items()
    },
    "test_a_rank_that_lives_is_not_replaced": lambda: play(claim_ranks, 3, timeout=150),
    "test_the_losses_are_those_of_a_run_without_a_loss": lambda: play(
        return_to_training, 4, timeout=150, restarts=1
    ),
}


def returned(played: Played) -> dict[int, Any]:
    """Return what each rank has returned."""
    texts = {
        r: outcome.text for r, outcome in played.outcomes.items() if outcome.kind == "returned"
    }
    return {rank: ast.literal_eval(text) for rank, text in texts.items() if text != "None"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK), id=n) for n in CASES]
)
def test_ranks_come_back(name: str, played: Played) -> None:
    case = CASES[name]
    lost = {rank for ranks in case.losses.values() for rank in ranks} | {case.struck} - {-1}
    assert played.fired in lost
    results = returned(played)
    gone = lost if case.newcomer else {*case.absent}
    assert {*results} == {*range(case.ranks)} - gone, (played.ends, played.outcomes)
    assert {rank for rank, result in results.items() if result["start"]} == lost - gone
    assert sorted(result["rank"] for result in results.values()) == [*range(len(results))]
    for result in results.values():
        assert result["sizes"] == {**result["sizes"], **case.at_end}
        assert result["tp"] is not None, "a spare at the end"
        assert result["weight"] == expected_weight(result["tp"])
    assert max(tuple(result["admitted"]) for result in results.values()) == case.admitted
    check_newcomer(case, played)


def check_newcomer(case: Case, played: Played) -> None:
    if case.newcomer == "init":
        assert played.outcomes[1].kind == "DisagreementError", played.outcomes[1]
        assert "disagrees with the job that runs" in played.outcomes[1].text
        assert "timeout" in played.outcomes[1].text
    elif case.newcomer == "build_mesh":
        assert played.outcomes[1].kind == "SpecError", played.outcomes[1]
        assert "the job that runs began with another mesh: dp=3" in played.outcomes[1].text
    elif case.newcomer:
        assert played.ends[1] == "SIGKILL"
        assert 1 not in played.outcomes


@pytest.mark.slow
def test_a_rank_that_lives_is_not_replaced(played: Played) -> None:
    assert played.fired == 1
    results = returned(played)
    assert [results[rank][0] for rank in (0, 2)] == [2, 2]
    of_living, of_lost = results[0][1]
    assert "two processes claim rank 0" in of_living
    assert "has joined already, and runs" in of_living
    assert "RankTimeoutError" in of_lost
    assert "It admits a new process by mesh.admit()." in of_lost


@pytest.mark.slow
def test_the_losses_are_those_of_a_run_without_a_loss(played: Played) -> None:
    alone = losses_alone()
    assert played.fired == 3
    results = returned(played)
    assert {*results} == {0, 1, 2, 3}, (played.ends, played.outcomes)
    for sizes, losses in results.values():
        assert sizes == {"dp": 2, "sp": 1, "tp": 2}
        assert losses == pytest.approx(alone, rel=0, abs=1e-9)
