"""A rank dies or stops at each point of a job: the other ranks raise in time and name it.

Every test asserts that its fault fired. The jobs mostly wait, so six of them run at the same time:
``JOBS`` holds the job of each test by the name of the test.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import job
from meshkit.launch.agreement.consensus import MIN_TIMEOUT, REPORT_GRACE, commit
from meshkit.launch.store.deadline import STORE_GRACE
from meshkit.live import groups as create
from meshkit.live.guard import guard, roll_call
from meshkit.live.setup import proposal
from meshkit.testing.faults import Played, Strike, play
from tests.promises import BUSY

LIMIT = 4.0  # arrival_timeout of build_mesh
START = 8.0  # arrival_timeout of init, if the fault is injected there


POINTS = ("before init", "init, agreed", "before build", "agreed", "creating", "made", "collective")


GUARD = 3.0  # seconds of a collective inside the guard


@dataclass(frozen=True)
class Case:
    """A fault of one rank: killed or stopped, at one point of a job."""

    ranks: int
    point: str
    how: str
    odd: int
    store: str

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.store}: {self.how} {self.odd} {self.point}"

    @property
    def store_goes_too(self) -> bool:
        return self.store == "tcp" and self.odd == 0

    @property
    def promised(self) -> float:
        """The most seconds from the fault to the last error; see meshkit/live/README.md."""
        shortest = max(self.limit, MIN_TIMEOUT.total_seconds())
        creation = shortest + REPORT_GRACE.total_seconds() + STORE_GRACE
        if self.point == "collective":
            return 1.0 + (GUARD + 4.0 if self.how == "stop" else 0.0)
        waits = self.point in ("before init", "before build")
        return self.limit + STORE_GRACE if waits else creation

    @property
    def limit(self) -> float:
        """The arrival_timeout of the call with the fault; 64 ranks need longer to start."""
        limit = START if "init" in self.point else LIMIT
        return 3 * limit if self.ranks == 64 else limit


def cases() -> Iterator[Case]:
    for point in POINTS:
        yield Case(4, point, "kill", 2, "file")
        yield Case(4, point, "stop", 0, "tcp")  # with the store
    yield Case(4, "agreed", "kill", 3, "tcp")
    yield Case(2, "creating", "stop", 1, "file")
    yield Case(2, "agreed", "kill", 0, "file")
    yield Case(8, "made", "stop", 5, "tcp")
    yield Case(8, "collective", "kill", 7, "tcp")
    yield Case(8, "creating", "kill", 0, "file")
    yield Case(16, "before build", "kill", 9, "file")
    yield Case(16, "collective", "kill", 15, "file")


CASES = list(cases())


LARGE = [
    Case(64, "init, agreed", "stop", 40, "file"),
    Case(64, "creating", "kill", 40, "file"),
    Case(64, "collective", "stop", 40, "file"),
]
REMAINING = [
    *(Case(8, point, how, 5, "file") for point in POINTS for how in ("kill", "stop")),
    *(Case(4, point, "stop", 2, "file") for point in POINTS),
    *(Case(4, point, "kill", 0, "tcp") for point in POINTS),
]


BARRIERS = [("kill", "file"), ("stop", "tcp"), ("kill", "tcp")]


READERS = {"watched": 2.0, "not watched": None}


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def strike_before(fault: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        fault()
        return call(*args, **options)

    return changed


def strike_after(fault: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        made = call(*args, **options)
        fault()
        return made

    return changed


def strike_after_creation(fault: Callable[[], None]) -> Callable[..., Any]:
    """Return a commit that strikes as soon as this rank has created its groups."""

    def changed(round: Any, ranks: Any, wait: Any, make: Any, undo: Any, *, connects: bool) -> Any:
        return commit(round, ranks, wait, strike_after(fault, make), undo, connects=connects)

    return changed


def strike_in_new_group(strike: Strike, fault: Callable[[], None], odd: int, count: int) -> None:
    """Strike the odd rank inside new_group, while it waits for a rank that arrives late."""
    real, late = dist.new_group, (odd + 1) % count

    def changed(*args: Any, **options: Any) -> Any:
        rank = dist.get_rank()
        if rank == late:
            time.sleep(1)
        elif rank == odd:
            strike.later(0.4, fault)
        return real(*args, **options)

    pytest.MonkeyPatch().setattr(create.dist, "new_group", changed)


def run_and_strike(
    strike: Strike, point: str, how: str, odd: int, limit: float, method: str | None
) -> Any:
    """Run a job from init to a collective, and strike one rank at a point of it."""
    world = meshkit.detect()
    hit: Callable[[], None] = {"kill": strike.kill, "stop": strike.stop}[how]
    is_odd, patch = world.rank == odd, pytest.MonkeyPatch()
    if is_odd and point == "before init":
        hit()
    if is_odd and point == "init, agreed":
        patch.setattr(job, "commit", strike_before(hit, job.commit))  # type: ignore[attr-defined]
    wait = limit if point in ("before init", "init, agreed") else 60
    meshkit.init(arrival_timeout=wait, **({"init_method": method} if method else {}))
    if is_odd and point == "before build":
        time.sleep(1)  # the others have left init
        hit()
    if is_odd and point == "agreed":
        patch.setattr(proposal, "commit", strike_before(hit, commit))
    if is_odd and point == "made":
        patch.setattr(proposal, "commit", strike_after_creation(hit))
    if point == "creating":
        strike_in_new_group(strike, hit, odd, world.world_size)
    # with another timeout than the default group, so that two groups are created
    mesh = meshkit.build_mesh(dp=-1, sp=2, timeout=600, arrival_timeout=limit)
    with mesh, mesh.guard(timeout=GUARD):
        for step in range(3):
            if is_odd and step == 2:
                hit()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    return "through"


def run(case: Case) -> Played:
    method = free_address() if case.store == "tcp" else None
    args = case.point, case.how, case.odd, case.limit, method
    return play(run_and_strike, case.ranks, args, timeout=120)


def strike_before_barrier(strike: Strike, how: str, limit: float, method: str | None) -> Any:
    """Strike rank 0 before a barrier; it hosts the store if this is a TCPStore."""
    meshkit.init(arrival_timeout=30, **({"init_method": method} if method else {}))
    mesh = meshkit.build_mesh(dp=-1)
    mesh.barrier()
    if mesh.rank == 0:
        {"kill": strike.kill, "stop": strike.stop}[how]()
    time.sleep(0.5)
    mesh.barrier("dp", timeout=limit)


def barriers(how: str, store: str) -> Played:
    method = free_address() if store == "tcp" else None
    return play(strike_before_barrier, 3, (how, 2.0, method), timeout=120)


def wait_until_store_is_gone(context: roll_call.GuardContext) -> None:
    """Wait until the host of the store has ended."""
    with contextlib.suppress(RuntimeError):
        while True:
            roll_call.num_calls(context.keys)
            time.sleep(0.05)


def read_report_late(strike: Strike, method: str, limit: float | None) -> Any:
    """Kill rank 2, and let rank 1 raise its error late.

    With a limit, the guard of rank 1 reports only when rank 0, which hosts the store, has ended.
    Without one, rank 1 reads the report a second after rank 0.
    """
    meshkit.init(init_method=method, arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3, timeout=60 if limit else 1)
    patch = pytest.MonkeyPatch()

    def report_late(context: roll_call.GuardContext, *more: Any) -> Any:
        wait_until_store_is_gone(context)
        return roll_call.report_failure(context, *more)

    if mesh.rank == 1 and limit:
        patch.setattr(guard, "report_failure", report_late)
    elif mesh.rank == 1:
        patch.setattr(
            roll_call, "_read_report", strike_before(lambda: time.sleep(1), roll_call._read_report)
        )
    with mesh, mesh.guard(timeout=limit):
        if mesh.rank == 2:
            strike.kill()
        dist.all_reduce(torch.ones(1), group=mesh.group())


def read_late(limit: float | None) -> Played:
    return play(read_report_late, 3, (free_address(), limit), timeout=120)


def kill_the_collector(strike: Strike) -> Any:
    """Kill the first rank that collects the answers, before it writes the report; rank 0 sleeps."""
    mesh = meshkit.build_mesh(dp=-1)
    gather = roll_call._gather_report

    def kill_the_first(context: roll_call.GuardContext, keys: Any, *more: Any) -> Any:
        own = str(context.rank)
        if keys.compare_set("first", "", own) == own.encode():
            strike.kill()
        return gather(context, keys, *more)

    if mesh.rank:
        pytest.MonkeyPatch().setattr(roll_call, "_gather_report", kill_the_first)
    with mesh.guard(timeout=2):
        if mesh.rank == 0:
            time.sleep(12)
        dist.all_reduce(torch.ones(1), group=mesh.group())


def stop_in_own_group(strike: Strike) -> Any:
    """Stop rank 1 while rank 0 is in a collective of a group of the user."""
    mesh = meshkit.build_mesh(dp=-1)
    own = dist.new_group([0, 1])
    printed: list[float] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(builtins, "print", lambda text, **_: printed.append(time.monotonic()))
    if mesh.rank == 1:
        strike.later(0.5, strike.stop)
    with contextlib.suppress(RuntimeError), mesh.guard(timeout=1):
        if mesh.rank == 1:
            time.sleep(60)
        work = dist.all_reduce(torch.ones(1), group=own, async_op=True)
        work.wait(timedelta(seconds=11))
    return printed


AT_ONCE = 6
# The job of each test by the name of the test; the longest jobs start first.
JOBS: dict[str, Callable[[], Played]] = {
    "test_the_rank_that_collects_the_answers_dies": lambda: play(
        kill_the_collector, 4, timeout=120
    ),
    "test_a_stopped_rank_in_a_group_of_the_user": lambda: play(stop_in_own_group, 2, timeout=120),
    **{
        f"test_the_other_ranks_raise_in_time_and_name_it[{case}]": partial(run, case)
        for case in CASES
    },
    **{f"test_the_remaining_cases[{case}]": partial(run, case) for case in REMAINING},
    **{
        f"test_a_barrier_whose_rank_0_is_gone[{how}-{store}]": partial(barriers, how, store)
        for how, store in BARRIERS
    },
    **{
        f"test_the_host_of_the_store_leaves_after_all_ranks_have_read[{name}]": partial(
            read_late, limit
        )
        for name, limit in READERS.items()
    },
}


def check(case: Case, played: Played) -> None:
    assert played.fired == case.odd
    assert played.ends[case.odd] == {"kill": "SIGKILL", "stop": "stopped"}[case.how]
    survivors = [rank for rank in range(case.ranks) if rank != case.odd]
    assert sorted(played.outcomes) == survivors
    kind = "CollectiveError" if case.point == "collective" else "RankTimeoutError"
    for rank in survivors:
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == (kind, (case.odd,)), outcome
        busy = BUSY * (3 if case.ranks == 64 else 1)  # 64 processes on a few cores
        assert played.seconds(rank) < case.promised + busy, (rank, outcome)
    if not case.store_goes_too:
        assert len({played.outcomes[rank].text for rank in survivors}) == 1
        evidence = f"{case.odd} on host {socket.gethostname()}, pid "
        if case.point == "collective":
            evidence = f"Silent: rank {case.odd} ("
        assert case.point == "before init" or evidence in played.outcomes[survivors[0]].text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_other_ranks_raise_in_time_and_name_it(case: Case, played: Played) -> None:
    check(case, played)


@pytest.mark.parametrize(("how", "store"), BARRIERS)
def test_a_barrier_whose_rank_0_is_gone(how: str, store: str, played: Played) -> None:
    assert played.fired == 0
    assert sorted(played.outcomes) == [1, 2]
    for rank, outcome in played.outcomes.items():
        assert outcome.kind in ("CollectiveError", "RankTimeoutError"), outcome
        assert store == "tcp" or outcome.missing_ranks == (0,), outcome
        assert played.seconds(rank) < 0.5 + 2 + STORE_GRACE + BUSY


def test_the_rank_that_collects_the_answers_dies(played: Played) -> None:
    """Another rank collects: torch's error after 2 s, 5 s for the report, 4 s for the answers."""
    assert played.fired in (1, 2, 3)
    assert played.ends[played.fired] == "SIGKILL"
    survivors = {1, 2, 3} - {played.fired}
    for rank in survivors:
        outcome = played.outcomes[rank]
        assert outcome.kind == "CollectiveError", outcome
        assert "Behind: rank 0 (dp=0) has begun" in outcome.text
        assert played.seconds(rank) < 9 + BUSY  # torch's error comes at the strike, or before


@pytest.mark.parametrize("limit", READERS.values(), ids=READERS)
def test_the_host_of_the_store_leaves_after_all_ranks_have_read(
    limit: float | None, played: Played
) -> None:
    assert (played.fired, sorted(played.outcomes)) == (2, [0, 1])
    kinds = {(outcome.kind, outcome.missing_ranks) for outcome in played.outcomes.values()}
    assert kinds == {("CollectiveError", (2,))}, played
    assert len({outcome.text for outcome in played.outcomes.values()}) == 1
    assert played.seconds(0) < (limit or 1) + 4 + 4 + BUSY
    assert limit is None or played.outcomes[0].at < played.outcomes[1].at


def test_a_stopped_rank_in_a_group_of_the_user(played: Played) -> None:
    assert (played.fired, played.ends[1]) == (1, "stopped")
    (printed,) = json.loads(played.outcomes[0].text)
    assert 1 < printed - played.at < 1 + 9 + BUSY


@pytest.mark.slow
@pytest.mark.parametrize("case", REMAINING, ids=str)
def test_the_remaining_cases(case: Case, played: Played) -> None:
    check(case, played)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_sixty_four_ranks(case: Case) -> None:
    check(case, run(case))
