"""A rank dies, stops, fails or leaves at each point of a job: the others raise in time.

One table has all cases, and one job runs them. Every test asserts that its fault fired. The jobs
mostly wait, so six of them run at the same time: ``JOBS`` holds the job of each test by its name.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
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
from meshkit.groups import groups, open_mesh
from meshkit.groups.close_mesh import CALLS
from meshkit.guard import guard, roll_call, watch
from meshkit.guard.state import Guard
from meshkit.launch import join
from meshkit.launch.creation import create_on_all
from meshkit.launch.times import TIMES
from meshkit.testing.faults import Played, Strike, play
from tests.faults import free_address
from tests.promises import BUSY

LIMIT = 4.0  # arrival_timeout of build_mesh
AGES = 60.0  # the same if a rank ends that others see, so that none waits for it
SEEN = 1.0  # seconds until they have seen that
START = 8.0  # arrival_timeout of init, if the fault is injected there
GUARD = 3.0  # seconds of a collective inside the guard
ANSWERS = 4.0  # seconds until the guard reports
LIVES_ON = 6.0  # seconds for which a rank that fails or leaves goes on
POINTS = ("before init", "init, agreed", "before build", "agreed", "creating", "made", "collective")
LEAVES = {  # how a rank leaves a guard by itself -> what the report says of it
    "raise": "left with ZeroDivisionError: ",
    "exit": "left with SystemExit: 3",
    "close": "has called mesh.close()",
    "shutdown": "has called meshkit.shutdown()",
}


@dataclass(frozen=True)
class Case:
    """A fault of one rank at one point of a job: kill, stop, or a key of ``LEAVES``."""

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
    def is_seen(self) -> bool:
        """Whether the others see that the rank has ended, before they have waited for it."""
        return self.how == "kill" and self.point not in ("before init", "collective")

    @property
    def limit(self) -> float:
        """The arrival_timeout of the call with the fault; 64 ranks need longer to start."""
        if self.is_seen:
            return AGES
        limit = START if "init" in self.point else LIMIT
        return 3 * limit if self.ranks == 64 else limit

    @property
    def promised(self) -> float:
        """The most seconds from the fault to the last error; see promises.md."""
        if self.point == "collective":
            return GUARD + (1.0 if self.how in LEAVES else ANSWERS)
        if self.is_seen:
            return SEEN
        if self.point in ("before init", "before build"):
            return self.limit + TIMES.store
        return max(self.limit, TIMES.create) + TIMES.create_report + TIMES.store

    @property
    def kind(self) -> str:
        return "CollectiveError" if self.point == "collective" else "RankTimeoutError"

    @property
    def missing(self) -> tuple[int, ...]:
        return () if self.how in LEAVES else (self.odd,)

    @property
    def evidence(self) -> str:
        """The words of all errors about the odd rank."""
        if self.how in LEAVES:
            return LEAVES[self.how]
        if self.point == "collective":
            return f"Silent: rank {self.odd} ("
        on_host = f"{self.odd} on host {socket.gethostname()}, pid "
        return "" if self.point == "before init" else on_host


def cases() -> Iterator[Case]:
    for point in POINTS:
        yield Case(4, point, "kill", 2, "file")
        yield Case(4, point, "stop", 0, "tcp")  # with the store
    yield Case(4, "agreed", "kill", 3, "tcp")
    yield Case(2, "creating", "stop", 1, "file")
    yield Case(2, "agreed", "kill", 0, "file")
    yield Case(8, "collective", "kill", 7, "tcp")
    for how, store in zip(LEAVES, ("file", "tcp", "file", "tcp"), strict=True):
        yield Case(4, "collective", how, 1, store)


CASES = list(cases())
LARGE = [
    Case(64, "init, agreed", "stop", 40, "file"),
    Case(64, "creating", "kill", 40, "file"),
    Case(64, "collective", "stop", 40, "file"),
]
REMAINING = [
    *(Case(8, point, "stop", 5, "file") for point in POINTS),
    *(Case(4, point, "kill", 0, "tcp") for point in POINTS),
]
OF_MORE_RANKS = [Case(8, point, "kill", 5, "file") for point in POINTS]
BARRIERS = [("kill", "file"), ("stop", "tcp"), ("kill", "tcp")]
READERS = {"watched": 2.0, "not watched": None}


def init(store: str, address: str, limit: float) -> None:
    """Join the job at a store of its own, or at the file of ``play``."""
    meshkit.init(arrival_timeout=limit, **({"init_method": address} if store == "tcp" else {}))


def strike_before(fault: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        fault()
        return call(*args, **options)

    return changed


def strike_after_creation(fault: Callable[[], None]) -> Callable[..., Any]:
    """Return a create_on_all that strikes as soon as this rank has created its groups."""

    def changed(*args: Any, **options: Any) -> Any:
        *first, create, undo = args

        def create_and_strike(limit: Any) -> Any:
            created = create(limit)
            fault()
            return created

        return create_on_all(*first, create_and_strike, undo, **options)

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

    pytest.MonkeyPatch().setattr(groups.dist, "new_group", changed)


def leave(strike: Strike, how: str, mesh: meshkit.Mesh) -> None:
    """Leave the guard by an error, or the mesh or the job by a call, without ending the process."""
    strike.note()
    if how == "raise":
        print(1 // 0)
    elif how == "exit":
        raise SystemExit(3)
    {"close": mesh.close, "shutdown": meshkit.shutdown}[how]()


def run_and_strike(strike: Strike, case: Case, address: str) -> Any:
    """Run a job from init to a collective, and strike one rank at a point of it."""
    world, patch = meshkit.detect(), pytest.MonkeyPatch()
    is_odd, hit = world.rank == case.odd, getattr(strike, case.how, strike.note)
    if is_odd and case.point == "before init":
        hit()
    if is_odd and case.point == "init, agreed":
        patch.setattr(join, "create_on_all", strike_before(hit, create_on_all))
    init(case.store, address, case.limit if "init" in case.point else 60)
    if is_odd and case.point == "before build":
        time.sleep(1)  # the others have left init
        hit()
    if is_odd and case.point == "agreed":
        patch.setattr(open_mesh, "create_on_all", strike_before(hit, create_on_all))
    if is_odd and case.point == "made":
        patch.setattr(open_mesh, "create_on_all", strike_after_creation(hit))
    if case.point == "creating":
        strike_in_new_group(strike, hit, case.odd, world.world_size)
    # with another timeout than the default group, so that two groups are created
    mesh = meshkit.build_mesh(dp=-1, sp=2, timeout=600, arrival_timeout=case.limit)
    closing = contextlib.nullcontext() if is_odd and case.how in LEAVES else mesh
    try:
        with closing, mesh.guard(timeout=GUARD):
            for step in range(3):
                if is_odd and step == 2 and case.how in LEAVES:
                    return leave(strike, case.how, mesh)
                if is_odd and step == 2:
                    hit()
                dist.all_reduce(torch.ones(1), group=mesh.group())
    finally:
        time.sleep(LIVES_ON if is_odd else 0)
    return "through"


def strike_before_barrier(strike: Strike, how: str, store: str, address: str) -> Any:
    """Strike rank 0 before a barrier; it hosts the store if this is a TCPStore."""
    init(store, address, 30)
    mesh = meshkit.build_mesh(dp=-1)
    mesh.barrier()
    if mesh.rank == 0:
        getattr(strike, how)()
    time.sleep(0.5)
    mesh.barrier("dp", timeout=2.0)


def read_report_late(strike: Strike, limit: float | None, address: str) -> Any:
    """Kill rank 2, and let rank 1 raise its error late.

    With a limit, the guard of rank 1 reports only when rank 0, which hosts the store, has ended.
    Without one, rank 1 reads the report a second after rank 0.
    """
    init("tcp", address, 60)
    mesh = meshkit.build_mesh(dp=3, timeout=60 if limit else 1)
    patch, report = pytest.MonkeyPatch(), guard.report_failure

    def report_late(site: Guard, store: Any, *more: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            while True:
                store.add(CALLS, 0)
                time.sleep(0.05)
        return report(site, store, *more)

    if mesh.rank == 1 and limit:
        for module in (guard, watch):
            patch.setattr(module, "report_failure", report_late)
    elif mesh.rank == 1:
        keep = strike_before(partial(time.sleep, 1), Guard.keep)
        patch.setattr(Guard, "keep", keep)
    with mesh, mesh.guard(timeout=limit):
        if mesh.rank == 2:
            strike.kill()
        dist.all_reduce(torch.ones(1), group=mesh.group())


def answer_late(strike: Strike, address: str) -> Any:
    """Leave the guard with an error on rank 2; rank 1 answers late, and rank 0 hosts the store."""
    init("tcp", address, 60)
    mesh, patch = meshkit.build_mesh(dp=3), pytest.MonkeyPatch()
    for module, name in ((watch, "respond"), (watch, "report_failure"), (guard, "report_failure")):
        if mesh.rank == 1:
            late = strike_before(partial(time.sleep, 2), getattr(module, name))
            patch.setattr(module, name, late, raising=True)
    with mesh.guard(timeout=60):
        if mesh.rank == 2:
            strike.note()
            raise SystemExit(3)
        dist.recv(torch.ones(1), src=2, group=mesh.group("dp"))


def wait_beside(strike: Strike, how: str, where: str, address: str) -> Any:
    """Lose a rank that some ranks do not touch; return when this one got its report, and which.

    No process ends before all have a report, since that would end waits too. Without a kill rank 0
    begins its wait late, so that its own collective could take almost as long again.
    """
    late, stay = (0.0, 10.0) if how == "kill" else (0.9 * BESIDE_LIMIT, 1.8 * BESIDE_LIMIT)
    init("file", address, 60)
    mesh = meshkit.build_mesh(dp=-1, tp=2, timeout=90)
    odd, began = mesh.layout.num_ranks - 2, time.monotonic()
    own = chain_of_groups(odd, mesh.layout.num_ranks)
    try:
        with mesh.guard(timeout=None if where == "own unlimited" else BESIDE_LIMIT):
            total = torch.ones(1)
            dist.all_reduce(total, group=mesh.group())
            if mesh.rank == odd:
                leave(strike, how, mesh) if how in LEAVES else getattr(strike, how)()
            time.sleep(late if mesh.rank == 0 else 0)
            if where == "ring":
                mesh.shift(total, "dp", 1)
            elif where == "work":
                dist.all_reduce(total, group=mesh.group(), async_op=True).wait()
            elif where == "groups":
                dist.all_reduce(total, group=mesh.group("dp" if mesh.rank % 2 == 0 else "tp"))
                dist.all_reduce(total, group=mesh.group("tp"))
            elif where in OWN:
                OWN[where](total, *own[mesh.rank])
            dist.all_reduce(total, group=mesh.group())
    except meshkit.CollectiveError as error:
        at = time.monotonic()
        time.sleep(max(0, began + stay - at))
        return error.missing_ranks, at
    finally:
        time.sleep(stay if mesh.rank == odd else 0)
    return "through"


def chain_of_groups(odd: int, count: int) -> dict[int, tuple[int, dist.ProcessGroup]]:
    """Create groups of the user, of pairs; return for whom each rank waits, and over which one.

    The chain begins with the odd rank, so only one rank has a group with it.
    """
    chain = [odd, *(rank for rank in reversed(range(count)) if rank != odd)]
    groups = [dist.new_group(sorted(pair)) for pair in itertools.pairwise(chain)]
    before = zip(chain, groups, strict=False)
    return {odd: (chain[1], groups[0]), **dict(zip(chain[1:], before, strict=True))}  # type: ignore[dict-item]


def sum_backwards(total: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    """Wait in the hook of a gradient."""
    weight = torch.zeros(1, requires_grad=True)
    weight.register_hook(lambda _: dist.all_reduce(total, group=group))
    weight.sum().backward()  # type: ignore[no-untyped-call]


OWN: dict[str, Callable[[torch.Tensor, int, dist.ProcessGroup], Any]] = {  # ways to wait for a peer
    **dict.fromkeys(
        ("own", "own unlimited"), lambda total, peer, group: dist.all_reduce(total, group=group)
    ),
    "own work": lambda total, peer, group: dist.all_reduce(
        total, group=group, async_op=True
    ).wait(),
    "own message": lambda total, peer, group: dist.recv(total, peer, group),
    "own backward": sum_backwards,
}
BESIDE_LIMIT = 12.0  # seconds of a collective
BESIDE = [
    *(("kill", "whole", 4), ("kill", "groups", 4), ("kill", "ring", 8), ("raise", "groups", 4)),
    *(("kill", "own work", 4), ("kill", "own message", 8)),
]
BESIDE_SLOW = [
    *(("kill", "own", 8), ("kill", "own unlimited", 4), ("kill", "own backward", 8)),
    *(("stop", "own work", 4), ("raise", "own", 4), ("kill", "whole", 8), ("kill", "groups", 8)),
    *(("kill", "work", 4), ("raise", "whole", 8), ("stop", "groups", 4), ("stop", "ring", 8)),
]
BESIDE_OTHER_SIZES = [
    *(("kill", "own", 4), ("kill", "own unlimited", 8), ("kill", "own backward", 4)),
    *(("kill", "own work", 8), ("kill", "own message", 4), ("kill", "ring", 4)),
]


def wait_for_an_outsider(strike: Strike, address: str) -> Any:
    """Kill rank 2 while rank 0 waits for a rank outside the mesh, which goes on."""
    init("file", address, 60)
    mesh = meshkit.build_mesh(dp=3, ranks=range(3))
    own = dist.new_group([0, 3])
    if mesh.rank == 3:
        time.sleep(8)
        return "through"
    with mesh.guard(timeout=60):
        if mesh.rank == 2:
            strike.kill()
        if mesh.rank == 0:
            dist.recv(torch.ones(1), 3, own)
        dist.all_reduce(torch.ones(1), group=mesh.group())


HANGS = ("send", "receive", "work", "own send", "own")  # ways to wait for a stopped rank


def wait_for_a_stopped_rank(strike: Strike, how: str, address: str) -> Any:
    """Wait on rank 0 for rank 1, which is stopped; the others wait for rank 0."""
    init("file", address, 60)
    mesh = meshkit.build_mesh(dp=4, timeout=90)
    own, large = dist.new_group([0, 1]), torch.ones(1 << 25)  # more than a connection buffers
    with mesh.guard(timeout=60):  # a loaded machine takes its time until all ranks are here
        dist.all_reduce(torch.ones(1), group=mesh.group())
    mesh.barrier()
    with mesh.guard(timeout=GUARD):
        if mesh.rank == 1:
            strike.stop()
        if mesh.rank == 0 and how == "work":
            dist.isend(large, 1, mesh.group()).wait()  # type: ignore[union-attr]
        elif mesh.rank == 0 and how.endswith("send"):
            dist.send(large, 1, own if how == "own send" else mesh.group())
        elif mesh.rank == 0 and how == "own":
            dist.all_reduce(large, group=own)
        dist.recv(large, 1 if mesh.rank == 0 else 0, mesh.group())


def kill_the_judge(strike: Strike, address: str) -> Any:
    """Kill the first rank that judges, before it writes the report; rank 0 sleeps."""
    mesh = meshkit.build_mesh(dp=-1)
    judge = roll_call._judge

    def kill_the_first(site: Guard, store: Any, summary: str, **more: Any) -> Any:
        if store.claim("first", str(site.rank)) == str(site.rank).encode():
            strike.kill()
        return judge(site, store, summary, **more)

    if mesh.rank:
        pytest.MonkeyPatch().setattr(roll_call, "_judge", kill_the_first)
    with mesh.guard(timeout=2):
        if mesh.rank == 0:
            time.sleep(12)
        dist.all_reduce(torch.ones(1), group=mesh.group())


def stop_in_own_group(strike: Strike, address: str) -> Any:
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


def stop_the_host(strike: Strike, address: str) -> float:
    """Stop rank 0, which hosts the store; return the seconds from torch's error to the report."""
    init("tcp", address, 60)
    mesh, failed_at = meshkit.build_mesh(dp=-1), 0.0
    with contextlib.suppress(meshkit.CollectiveError), mesh.guard(timeout=GUARD):
        dist.all_reduce(torch.ones(1), group=mesh.group())  # every rank is in its guard
        if mesh.rank == 0:
            strike.stop()
        try:
            dist.all_reduce(torch.ones(1), group=mesh.group())
        except RuntimeError:
            failed_at = time.monotonic()
            raise
    return time.monotonic() - failed_at


def job(fn: Callable[..., Any], ranks: int, *args: Any) -> Callable[[], Played]:
    """Return a job of the table: its function, its ranks and its arguments."""
    return lambda: play(fn, ranks, (*args, free_address()), timeout=120)


def run(case: Case) -> Callable[[], Played]:
    return job(run_and_strike, case.ranks, case)


AT_ONCE = 6
# The job of each test by the name of the test; the longest jobs start first.
JOBS: dict[str, Callable[[], Played]] = {
    "test_the_rank_that_judges_dies": job(kill_the_judge, 4),
    **{
        f"test_a_wait_for_a_stopped_rank_ends[{how}]": job(wait_for_a_stopped_rank, 4, how)
        for how in HANGS
    },
    "test_a_wait_for_a_rank_outside_the_mesh_ends": job(wait_for_an_outsider, 4),
    "test_a_stopped_rank_in_a_group_of_the_user": job(stop_in_own_group, 2),
    "test_without_an_answer_of_the_store_the_report_comes_in_time": job(stop_the_host, 4),
    "test_the_host_of_the_store_stays_for_a_rank_that_answers_late": job(answer_late, 3),
    **{f"test_the_other_ranks_raise_in_time_and_name_it[{case}]": run(case) for case in CASES},
    **{f"test_the_remaining_cases[{case}]": run(case) for case in (*REMAINING, *OF_MORE_RANKS)},
    **{
        f"test_{name}[{how}-{where}-{ranks}]": job(wait_beside, ranks, how, where)
        for name, rows in (
            ("each_survivor_raises", BESIDE),
            ("other_survivors_raise", BESIDE_SLOW + BESIDE_OTHER_SIZES),
        )
        for how, where, ranks in rows
    },
    **{
        f"test_a_barrier_whose_rank_0_is_gone[{how}-{store}]": job(
            strike_before_barrier, 3, how, store
        )
        for how, store in BARRIERS
    },
    **{
        f"test_the_host_of_the_store_leaves_after_all_ranks_have_read[{name}]": job(
            read_report_late, 3, limit
        )
        for name, limit in READERS.items()
    },
}


def check(case: Case, played: Played) -> None:
    assert played.fired == case.odd
    if case.how not in LEAVES:
        assert played.ends[case.odd] == {"kill": "SIGKILL", "stop": "stopped"}[case.how]
    survivors = [rank for rank in range(case.ranks) if rank != case.odd]
    assert {*survivors} <= {*played.outcomes}
    for rank in survivors:
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == (case.kind, case.missing), outcome
        busy = BUSY * (3 if case.ranks == 64 else 1)  # 64 processes on a few cores
        assert played.seconds(rank) < case.promised + busy, (rank, outcome)
    if not case.store_goes_too:
        assert len({played.outcomes[rank].text for rank in survivors}) == 1
        assert case.evidence in played.outcomes[survivors[0]].text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_other_ranks_raise_in_time_and_name_it(case: Case, played: Played) -> None:
    check(case, played)


def check_beside(how: str, where: str, ranks: int, played: Played) -> None:
    """Check that all survivors raise within a second after the report, or the time to answer."""
    odd, times = ranks - 2, {}
    assert played.fired == odd
    for rank in {*range(ranks)} - {odd}:
        missing, times[rank] = eval(played.outcomes[rank].text)
        assert missing == (() if how in LEAVES else (odd,)), played
    first = 0 if how == "kill" else BESIDE_LIMIT
    # no thread answers without a timeout, and a group of the user keeps its own one
    is_late = how == "stop" or where == "own unlimited" or (how in LEAVES and where in OWN)
    answers = TIMES.answer + 1 if is_late else TIMES.watch
    assert max(times.values()) - played.at < first + answers + 1 + BUSY, times


@pytest.mark.parametrize(("how", "where", "ranks"), BESIDE)
def test_each_survivor_raises(how: str, where: str, ranks: int, played: Played) -> None:
    """Whichever rank it waits for: torch's error comes to the neighbours of the lost one only."""
    check_beside(how, where, ranks, played)


@pytest.mark.parametrize(
    ("how", "where", "ranks"),
    [
        *(pytest.param(*row, marks=pytest.mark.slow) for row in BESIDE_SLOW),
        *(pytest.param(*row, marks=pytest.mark.nightly) for row in BESIDE_OTHER_SIZES),
    ],
)
def test_other_survivors_raise(how: str, where: str, ranks: int, played: Played) -> None:
    check_beside(how, where, ranks, played)


@pytest.mark.parametrize("how", HANGS)
def test_a_wait_for_a_stopped_rank_ends(how: str, played: Played) -> None:
    """gloo keeps the time of a message, and a group of the user its own: the report ends both."""
    assert (played.fired, played.ends[1]) == (1, "stopped")
    for rank in (0, 2, 3):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("CollectiveError", (1,)), (rank, played)
        assert played.seconds(rank) < GUARD + 2 * ANSWERS + 2 + BUSY, (rank, outcome)


def test_a_wait_for_a_rank_outside_the_mesh_ends(played: Played) -> None:
    assert (played.fired, played.outcomes[3].kind) == (2, "returned")
    for rank in (0, 1):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("CollectiveError", (2,)), (rank, played)
        assert played.seconds(rank) < TIMES.watch + 2 + BUSY < 8 + BUSY, (rank, outcome)


@pytest.mark.parametrize(("how", "store"), BARRIERS)
def test_a_barrier_whose_rank_0_is_gone(how: str, store: str, played: Played) -> None:
    assert played.fired == 0
    assert sorted(played.outcomes) == [1, 2]
    for rank, outcome in played.outcomes.items():
        assert outcome.kind in ("CollectiveError", "RankTimeoutError"), outcome
        assert store == "tcp" or outcome.missing_ranks == (0,), outcome
        assert played.seconds(rank) < 0.5 + 2 + TIMES.store + BUSY


def test_the_rank_that_judges_dies(played: Played) -> None:
    """Another rank judges: torch's error after 2 s, and then 4 s for the answers."""
    assert played.fired in (1, 2, 3)
    assert played.ends[played.fired] == "SIGKILL"
    for rank in {1, 2, 3} - {played.fired}:
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


def test_the_host_of_the_store_stays_for_a_rank_that_answers_late(played: Played) -> None:
    assert played.fired == 2
    for rank in (0, 1):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("CollectiveError", ()), outcome
        assert "left with SystemExit: 3" in outcome.text, outcome
    assert played.outcomes[0].text == played.outcomes[1].text
    assert played.seconds(0) < ANSWERS + BUSY


def test_a_stopped_rank_in_a_group_of_the_user(played: Played) -> None:
    assert (played.fired, played.ends[1]) == (1, "stopped")
    (printed,) = json.loads(played.outcomes[0].text)
    assert 1 < printed - played.at < 1 + 9 + BUSY


def test_without_an_answer_of_the_store_the_report_comes_in_time(played: Played) -> None:
    """No rank waits for its watching thread, which the store blocks too."""
    assert (played.fired, played.ends[0]) == (0, "stopped")
    seconds = [float(played.outcomes[rank].text) for rank in (1, 2, 3)]
    assert TIMES.answer <= min(seconds) < ANSWERS, seconds  # of the rank that waits least
    assert max(seconds) < ANSWERS + BUSY, seconds


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, marks=pytest.mark.slow) for case in REMAINING),
        *(pytest.param(case, marks=pytest.mark.nightly) for case in OF_MORE_RANKS),
    ],
    ids=str,
)
def test_the_remaining_cases(case: Case, played: Played) -> None:
    check(case, played)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case is LARGE[-1] else pytest.mark.nightly)
        for case in LARGE
    ],
    ids=str,
)
def test_sixty_four_ranks(case: Case) -> None:
    check(case, run(case)())
