"""A rank dies or stops at every point of a job: the others raise in time, and name it.

All jobs run beside each other, as each mostly waits; every test asserts that its fault fired.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from meshkit.launch.meet import SILENCE
from meshkit.launch.together import LEAST, REST
from meshkit.testing.faults import Played, play
from tests.live import fault_jobs as jobs
from tests.promises import BUSY

LIMIT = 4.0  # arrival_timeout of build_mesh
START = 8.0  # arrival_timeout of init, where the fault comes there
POINTS = ("before init", "init, agreed", "before build", "agreed", "creating", "made", "collective")


@dataclass(frozen=True)
class Case:
    """A rank is struck."""

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
        """Seconds from the fault to the last survivor's error; see meshkit/live/README.md."""
        creation = LEAST.total_seconds() + REST.total_seconds() + SILENCE
        if self.point == "collective":
            return 1.0 + (jobs.GUARD + 4.0 if self.how == "stop" else 0.0)
        meetings = {"before init": START + SILENCE, "before build": LIMIT + SILENCE}
        return meetings.get(self.point, creation)


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
    yield Case(32, "before build", "kill", 17, "file")
    yield Case(32, "collective", "kill", 31, "file")


CASES = list(cases())
SLOW = [
    *(Case(64, point, how, 40, "file") for point in POINTS for how in ("kill", "stop")),
    *(Case(4, point, "stop", 2, "file") for point in POINTS),
    *(Case(4, point, "kill", 0, "tcp") for point in POINTS),
]


BARRIERS = [("kill", "file"), ("stop", "tcp"), ("kill", "tcp")]
ASKS = {"watched": 2.0, "not watched": None}


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def run(case: Case) -> Played:
    method = free_address() if case.store == "tcp" else None
    limit = START if "init" in case.point else LIMIT
    args = case.point, case.how, case.odd, limit, method
    return play(jobs.struck, case.ranks, args, timeout=120)


def barriers(how: str, store: str) -> Played:
    method = free_address() if store == "tcp" else None
    return play(jobs.barriers, 3, (how, 2.0, method), timeout=120)


def slow_to_ask(limit: float | None) -> Played:
    return play(jobs.slow_to_ask, 3, (free_address(), limit), timeout=120)


# The job of each test, by its name; those that last begin first.
JOBS: dict[str, Callable[[], Played]] = {
    "test_the_rank_that_calls_the_roll_dies": lambda: play(jobs.caller_dies, 4, timeout=120),
    "test_a_stopped_rank_in_a_group_of_ones_own": lambda: play(
        jobs.hangs_elsewhere, 2, timeout=120
    ),
    **{
        f"test_the_survivors_raise_in_time_and_name_it[{case}]": partial(run, case)
        for case in CASES
    },
    **{
        f"test_a_barrier_whose_rank_0_is_gone[{how}-{store}]": partial(barriers, how, store)
        for how, store in BARRIERS
    },
    **{
        f"test_the_host_of_the_store_leaves_when_all_who_answered_have_read[{name}]": partial(
            slow_to_ask, limit
        )
        for name, limit in ASKS.items()
    },
}


@pytest.fixture(scope="module")
def faults(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Played]]]:
    """Every job that is asked for, six at a time: half of the machine is another worker's."""
    asked = {item.name for item in request.session.items if item.path == request.path}
    play(jobs.through, 1, timeout=120)  # the forkserver has imported torch then
    with ThreadPoolExecutor(6) as pool:
        yield {name: pool.submit(job) for name, job in JOBS.items() if name in asked}


@pytest.fixture
def played(request: pytest.FixtureRequest, faults: dict[str, Future[Played]]) -> Played:
    """What became of the job of this test."""
    return faults[request.node.name].result()


def check(case: Case, played: Played) -> None:
    assert played.fired == case.odd
    assert played.ends[case.odd] == {"kill": "SIGKILL", "stop": "stopped"}[case.how]
    survivors = [rank for rank in range(case.ranks) if rank != case.odd]
    assert sorted(played.outcomes) == survivors
    kind = "CollectiveError" if case.point == "collective" else "RankTimeoutError"
    for rank in survivors:
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == (kind, (case.odd,)), outcome
        assert played.seconds(rank) < case.promised + BUSY, (rank, outcome)
    if not case.store_goes_too:
        assert len({played.outcomes[rank].text for rank in survivors}) == 1
        where = f"{case.odd} on host {socket.gethostname()}, pid "
        if case.point == "collective":
            where = f"Silent: rank {case.odd} ("
        assert case.point == "before init" or where in played.outcomes[survivors[0]].text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_survivors_raise_in_time_and_name_it(case: Case, played: Played) -> None:
    check(case, played)


@pytest.mark.parametrize(("how", "store"), BARRIERS)
def test_a_barrier_whose_rank_0_is_gone(how: str, store: str, played: Played) -> None:
    assert played.fired == 0
    assert sorted(played.outcomes) == [1, 2]
    for rank, outcome in played.outcomes.items():
        assert outcome.kind in ("CollectiveError", "RankTimeoutError"), outcome
        assert store == "tcp" or outcome.missing_ranks == (0,), outcome
        assert played.seconds(rank) < 0.5 + 2 + SILENCE + BUSY


def test_the_rank_that_calls_the_roll_dies(played: Played) -> None:
    """Another one does it: torch's own error after 2 s, 5 s for the report, 4 s for the answers."""
    assert played.fired in (1, 2, 3)
    assert played.ends[played.fired] == "SIGKILL"
    survivors = {1, 2, 3} - {played.fired}
    for rank in survivors:
        outcome = played.outcomes[rank]
        assert outcome.kind == "CollectiveError", outcome
        assert "Behind: rank 0 (dp=0) has begun" in outcome.text
        assert played.seconds(rank) < 9 + BUSY  # torch's error comes at the strike, or before


@pytest.mark.parametrize("limit", ASKS.values(), ids=ASKS)
def test_the_host_of_the_store_leaves_when_all_who_answered_have_read(
    limit: float | None, played: Played
) -> None:
    assert (played.fired, sorted(played.outcomes)) == (2, [0, 1])
    kinds = {(one.kind, one.missing_ranks) for one in played.outcomes.values()}
    assert kinds == {("CollectiveError", (2,))}, played
    assert len({one.text for one in played.outcomes.values()}) == 1
    assert played.seconds(0) < (limit or 1) + 4 + 4 + BUSY
    assert limit is None or played.outcomes[0].at < played.outcomes[1].at


def test_a_stopped_rank_in_a_group_of_ones_own(played: Played) -> None:
    assert (played.fired, played.ends[1]) == (1, "stopped")
    (told,) = json.loads(played.outcomes[0].text)
    assert 1 < told - played.at < 1 + 9 + BUSY


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_sixty_four_ranks_and_the_rest_of_the_table(case: Case) -> None:
    check(case, run(case))
