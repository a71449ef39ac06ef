"""Two real jobs move states over a bridge."""

from __future__ import annotations

import ast
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import meshkit
from meshkit.launch.round import Round
from meshkit.launch.times import TIMES
from meshkit.testing.faults import Strike
from meshkit.transfer import bridge as bridge_module
from meshkit.transfer.exchange import BridgeChannel
from tests.transfer.two_jobs import Jobs, leave, results, start_store

PATTERNS = {"*.q.weight": "o/dp/tp i -> o/tp i", "*norm*": "d/dp -> d", "*": "v/tp d -> v/tp d"}
ARRIVAL = 30.0
BUSY = 10.0  # more seconds on a machine that is loaded


def whole_state(version: int) -> dict[str, Tensor]:
    """Return the state of one process, the same on every rank."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"a.q.weight": (12, 6), "b.q.weight": (24, 6), "a.norm": (12,), "embed": (8, 3)}
    return {n: torch.randn(s, generator=generator) * version for n, s in shapes.items()}


def own_part(mesh: meshkit.Mesh, version: int, side: str) -> dict[str, Tensor]:
    """Return the parts of a rank of a side."""
    column = 0 if side == "trainer" else 1
    layout = {glob: text.split(" -> ")[column] for glob, text in PATTERNS.items()}
    return mesh.local_state(whole_state(version), layout)


def build(sizes: dict[str, int], **options: Any) -> meshkit.Mesh:
    meshkit.init(device="cpu", arrival_timeout=ARRIVAL)
    torch.set_num_threads(1)
    return meshkit.build_mesh(sizes, **options)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with start_store() as jobs:
        yield jobs


def train(_: Strike, url: str, name: str, sizes: dict[str, int], versions: list[int]) -> Any:
    mesh = build(sizes)
    state = own_part(mesh, 1, "trainer")
    with mesh.bridge(url + name, side="trainer") as bridge:
        sync = bridge.transfer(PATTERNS, like=state)
        arrived = [sync.push(own_part(mesh, version, "trainer")) for version in versions]
        assert sync.version == arrived[-1]
    leave()
    return arrived


def sample(_: Strike, url: str, name: str, sizes: dict[str, int], versions: list[int]) -> Any:
    mesh = build(sizes)
    weights = own_part(mesh, 0, "sampler")
    with mesh.bridge(url + name, side="sampler") as bridge:
        sync = bridge.transfer(PATTERNS, like=weights)
        assert sync.version == 0
        arrived = []
        for version in versions:
            arrived.append(sync.pull())
            for key, part in own_part(mesh, version, "sampler").items():
                torch.testing.assert_close(weights[key], part, rtol=0, atol=0)
    leave()
    return arrived


def test_a_state_moves_between_two_jobs(jobs: Jobs) -> None:
    trainer = jobs.start(train, 4, "/moved", {"dp": 2, "tp": 2}, [1, 2, 3])
    sampler = jobs.start(sample, 2, "/moved", {"dp": 1, "tp": 2}, [1, 2, 3])
    assert results(trainer.result()) == ["[1, 2, 3]"] * 4
    assert results(sampler.result()) == ["[1, 2, 3]"] * 2


# ------------------------------------------------------------------ failed exchanges


def fail_sometimes(_: Strike, url: str, side: str, failures: list[bool]) -> Any:
    """Exchange versions, some of which a rank of the trainer breaks; count the keys after each."""
    mesh = build({"tp": 2})
    like = {"w": torch.ones(4, 3)}
    sync = mesh.bridge(url, side=side).transfer(W, like=like)
    root = sync._side.store.root
    patch, counts = pytest.MonkeyPatch(), []

    def fail(_: BridgeChannel) -> None:
        raise RuntimeError("broken by the test")

    for fails in failures:
        call = sync.push if side == "trainer" else sync.pull
        with patch.context() as inside, suppress(meshkit.CollectiveError):
            if fails and side == "trainer" and mesh.rank == 1:
                inside.setattr(BridgeChannel, "meet", fail)
            call()
            assert not fails
        dist.barrier()
        if side == "trainer":  # its rank 0 deletes keys
            counts.append(root.num_keys())
    leave()
    return counts


def test_failed_exchanges_leave_no_keys_at_the_store(jobs: Jobs) -> None:
    jobs = jobs.at("keys")
    failures = [False, False, True, False, False, True, True, True, False, False]
    sides = [jobs.start(fail_sometimes, 2, side, failures) for side in ("trainer", "sampler")]
    counts = ast.literal_eval(results(sides[0].result())[0])
    results(sides[1].result())
    assert counts[7] > counts[1] + 8  # keys of failed exchanges stay until the next one
    assert abs(counts[9] - counts[1]) < 4  # the sides may be a step apart


def lose_the_store_at_the_vote(_: Strike, url: str, side: str) -> Any:
    """Rank 1 of the sampler loses the store at the vote; the rounds of its job go on together."""
    mesh = build({"tp": 2})
    sync = mesh.bridge(url, side=side).transfer(W, like={"w": torch.ones(4, 3)})
    call = sync.push if side == "trainer" else sync.pull
    arrive, patch = Round.arrive, pytest.MonkeyPatch()

    def lose(round: Round, *args: Any, **options: Any) -> None:
        if round.name == "end":
            round.is_over = True  # nothing can be announced at a store that is lost
            raise meshkit.RankTimeoutError("lost by the test.")
        arrive(round, *args, **options)

    if side == "sampler" and mesh.rank == 1:
        patch.setattr(Round, "arrive", lose)
    with pytest.raises(meshkit.RankTimeoutError) as error:
        call()
    patch.undo()
    mesh.agree("what comes next", 1)
    call()
    leave()
    return str(error.value)


def test_a_rank_that_loses_the_store_at_the_vote_takes_part_in_later_rounds(jobs: Jobs) -> None:
    jobs = jobs.at("vote")
    sides = [
        jobs.start(lose_the_store_at_the_vote, 2, side, timeout=90)
        for side in ("trainer", "sampler")
    ]
    trainer, sampler = (results(job.result()) for job in sides)
    assert "lost by the test" in sampler[1]
    assert all("sampler rank 1" in text for text in (*trainer, sampler[0]))


# ------------------------------------------------------------------ agreement


W = {"w": "o/tp i -> o/tp i"}
CASES: dict[str, tuple[dict[str, str], dict[str, Any], list[str]]] = {
    # the patterns and other arguments of the sampler, and words of the error
    "pattern": (
        {"w": "o/tp i -> o i/tp"},
        {},
        ["'w': 'o/tp i -> o/tp i' on the trainer, 'o/tp i -> o i/tp' on the sampler."],
    ),
    "version": (W, {"version": "9.9"}, ["meshkit: 0.1.0 on the trainer, 9.9 on the"]),
    "options": (W, {"dtype": torch.bfloat16, "chunk": 7}, ["dtype: ", "chunk: "]),
    "shape": (W, {"rows": 5}, ["w: o=8 i=3 on the trainer,", "and has [5, 3]."]),
    "names": (W | {"*": "d -> d"}, {"more": ["b"]}, ["b: on the sampler alone."]),
    "dtype": (W, {"like": torch.float64}, ["w: float32 on the trainer, float64 "]),
}


def attempt(
    mesh: meshkit.Mesh, url: str, side: str, patterns: dict[str, str], changes: dict[str, Any]
) -> Any:
    """Make a transfer; some arguments may not be those of the other side. Return its error."""
    changes = dict(changes)
    like = {"w": torch.zeros(changes.pop("rows", 4), 3, dtype=changes.pop("like", torch.float32))}
    like |= {name: torch.zeros(1) for name in changes.pop("more", [])}
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge_module, "VERSION", changes.pop("version", meshkit.__version__))
        try:
            mesh.bridge(url, side=side).transfer(patterns, like=like, **changes)
        except meshkit.MeshkitError as error:
            return [type(error).__name__, str(error), time.monotonic() - began]
    return None


def agree(
    _: Strike, url: str, side: str, patterns: dict[str, str] | None = None, rows: int = 4
) -> Any:
    mesh = build({"dp": 1, "tp": -1})
    outcome = attempt(mesh, url, side, patterns or W, {"rows": rows})
    leave()
    return outcome


def differ(_: Strike, url: str, side: str) -> list[Any]:
    """Return the error of this rank for each case, over a bridge of its own."""
    mesh = build({"tp": 2})
    errors = []
    for name, (patterns, changes, _words) in CASES.items():
        given = (patterns, changes) if side == "sampler" else (W, {})
        errors.append(attempt(mesh, f"{url}/{name}", side, *given))
    leave()
    return errors


def test_both_sides_raise_the_same_error(jobs: Jobs) -> None:
    sides = [jobs.at("differ").start(differ, 2, side) for side in ("trainer", "sampler")]
    by_rank = [ast.literal_eval(text) for job in sides for text in results(job.result())]
    for (_, _, words), outcomes in zip(CASES.values(), zip(*by_rank, strict=True), strict=True):
        assert {name for name, _, _ in outcomes} == {"DisagreementError"}
        (text,) = {text for _, text, _ in outcomes}
        for word in words:
            assert word in text


def test_two_jobs_of_one_side_are_told_so_at_once(jobs: Jobs) -> None:
    jobs = jobs.at("two trainers")
    both = [jobs.start(agree, 1, "trainer") for _ in range(2)]
    for text in [text for job in both for text in results(job.result())]:
        kind, words, seconds = ast.literal_eval(text)
        assert kind == "LaunchError"
        assert f"two jobs have joined {jobs.url} as trainer, and none as sampler." in words
        assert seconds < BUSY < ARRIVAL


def fail_and_try_again(_: Strike, url: str, side: str, mistakes: list[str]) -> list[Any]:
    """Make transfers that fail on the sampler, or come too early on the trainer; repeat each."""
    meshkit.init(device="cpu", arrival_timeout=3.0 if "late" in mistakes else ARRIVAL)
    mesh = meshkit.build_mesh(tp=1)
    wrong = {"no pattern": {"v": "o -> o"}, "pattern": {"w": "o i -> o i"}}
    errors = []
    for mistake in mistakes:
        like = {"w": torch.full((4, 3), 7.0 if side == "trainer" else 0.0)}
        bridge, began = mesh.bridge(f"{url}/{mistake[:2]}", side=side), time.monotonic()
        if side == "sampler":  # the trainer waits already
            time.sleep({"no pattern": 1, "pattern": 0, "late": 4}[mistake])
        if side == "trainer" or mistake != "late":
            with pytest.raises(meshkit.MeshkitError) as error:
                bridge.transfer(wrong[mistake] if side == "sampler" else W, like=like)
            errors.append([str(error.value), time.monotonic() - began])
            # a trainer that has not seen the mistake yet would agree with its correction at once
            time.sleep(2 if side == "sampler" else 0)
        sync = bridge.transfer(W, like=like)
        (sync.push if side == "trainer" else sync.pull)()
        assert like["w"].tolist() == [[7.0] * 3] * 4
    return errors


@pytest.mark.parametrize(
    "words",
    [
        {
            "no pattern": "the sampler failed in bridge.transfer(): SpecError: ",
            "pattern": "'w': 'o/tp i -> o/tp i' on the trainer, 'o i -> o i' on the sampler.",
        },
        {"late": "the sampler did not call bridge.transfer() within 3 s."},
    ],
    ids=["mistakes", "late"],
)
def test_a_transfer_that_failed_can_be_made_again(words: dict[str, str], jobs: Jobs) -> None:
    jobs, mistakes = jobs.at("repeated"), [*words]
    trainer, sampler = (
        jobs.start(fail_and_try_again, 1, side, mistakes) for side in ("trainer", "sampler")
    )
    errors = ast.literal_eval(results(trainer.result())[0])
    for (mistake, part), (error, seconds) in zip(words.items(), errors, strict=True):
        assert part in error
        assert ("Fix: bridge.transfer() in the sampler" in error) == (mistake == "late")
        assert seconds < 3 + BUSY < ARRIVAL
    assert len(results(sampler.result())) == 1


def convert(_: Strike, url: str, side: str) -> list[float]:
    """Return a number that has moved as it is, and one in bfloat16."""
    mesh = build({"tp": 1})
    patterns, moved = {"w": "o i -> o i", "*": "d -> d"}, []
    for asked in (None, torch.bfloat16):
        dtype = torch.float32 if side == "trainer" or asked is None else asked
        like = {"w": torch.full((2, 3), 1 / 3, dtype=dtype), "step": torch.tensor([257])}
        if side == "sampler":
            like = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        sync = mesh.bridge(f"{url}/{asked}", side=side).transfer(patterns, like=like, dtype=asked)
        (sync.push if side == "trainer" else sync.pull)()
        assert like["step"].tolist() == [257]
        moved.append(like["w"][0, 0].item())
    return moved


def test_numbers_are_converted_on_the_way_if_that_is_asked_for(jobs: Jobs) -> None:
    sides = [jobs.at("convert").start(convert, 1, side) for side in ("trainer", "sampler")]
    third = torch.tensor(1 / 3)
    assert results(sides[1].result()) == [str([third.item(), third.bfloat16().item()])]
    assert results(sides[0].result())


def miss(_: Strike, url: str) -> list[Any]:
    """Return the error of each side that is alone at its bridge."""
    meshkit.init(device="cpu", arrival_timeout=3.0)
    mesh = meshkit.build_mesh(tp=1)
    return [attempt(mesh, f"{url}/{side}", side, W, {}) for side in ("trainer", "sampler")]


def test_a_missing_side_is_named_in_time(jobs: Jobs) -> None:
    jobs = jobs.at("missing")
    errors = ast.literal_eval(results(jobs.start(miss, 1).result())[0])
    for side, other, (kind, words, seconds) in zip(
        ("trainer", "sampler"), ("sampler", "trainer"), errors, strict=True
    ):
        assert kind == "RankTimeoutError"
        assert f"the {other} did not call bridge.transfer() within 3 s." in words
        assert f"mesh.bridge('{jobs.url}/{side}', side={other!r}) in the other job." in words
        assert seconds < 3 + BUSY


# ------------------------------------------------------------------ one side starts again


def train_on(_: Strike, url: str, versions: int) -> Any:
    mesh = build({"dp": 2, "tp": 1})
    arrived, failures = [], []
    with mesh.bridge(url, side="trainer") as bridge:
        sync = bridge.transfer(PATTERNS, like=own_part(mesh, 1, "trainer"))
        for version in range(1, versions + 1):
            while True:
                try:
                    arrived.append(sync.push(own_part(mesh, version, "trainer")))
                    break
                except (meshkit.CollectiveError, meshkit.RankTimeoutError) as error:
                    failures.append(type(error).__name__)
    leave()
    return [arrived, failures]


def sample_once(strike: Strike, url: str, sizes: dict[str, int], value: int, end: str) -> Any:
    mesh = build(sizes)
    weights = own_part(mesh, 0, "sampler")
    bridge = mesh.bridge(url, side="sampler")
    sync = bridge.transfer(PATTERNS, like=weights)
    version = sync.pull()
    for key, part in own_part(mesh, value, "sampler").items():
        torch.testing.assert_close(weights[key], part, rtol=0, atol=0)
    if end == "kill":
        leave()
        strike.kill()
    bridge.close()
    leave()
    return version


def test_a_sampler_that_is_killed_starts_again_with_another_size(jobs: Jobs) -> None:
    jobs = jobs.at("again")
    trainer = jobs.start(train_on, 2, 3)
    killed = jobs.start(sample_once, 2, {"dp": 1, "tp": 2}, 1, "kill").result()
    assert killed.fired is not None
    assert not killed.outcomes
    second = jobs.start(sample_once, 1, {"dp": 1, "tp": 1}, 2, "close").result()
    third = jobs.start(sample_once, 4, {"dp": 2, "tp": 2}, 3, "close").result()
    versions = [int(results(played)[0]) for played in (second, third)]
    assert 1 < versions[0] < versions[1]
    for text in results(trainer.result()):
        assert ast.literal_eval(text)[0] == [1, *versions]


def recover(strike: Strike, url: str) -> Any:
    mesh = build({"dp": 3, "tp": 1}, timeout=10)
    sync = mesh.bridge(url, side="trainer").transfer(PATTERNS, like=own_part(mesh, 1, "trainer"))
    first = sync.push()
    try:
        with mesh.guard(timeout=3):
            if mesh.rank == 1:
                strike.kill()
            torch.distributed.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    state = own_part(mesh, 2, "trainer")
    sync = mesh.bridge(url, side="trainer").transfer(PATTERNS, like=state)
    second = sync.push()
    leave()
    return [first, second]


def test_the_recovery_of_the_trainer_keeps_the_sampler(jobs: Jobs) -> None:
    jobs = jobs.at("recover")
    trainer = jobs.start(recover, 3)
    sampler = jobs.start(sample, 2, "", {"dp": 1, "tp": 2}, [1, 2])
    played = trainer.result()
    assert played.fired == 1
    versions = ast.literal_eval(played.outcomes[0].text)
    assert played.outcomes[2].text == played.outcomes[0].text
    assert results(sampler.result()) == [str(versions)] * 2


# ------------------------------------------------------------------ out of step


def push_late(_: Strike, url: str) -> Any:
    mesh = build({"dp": 2, "tp": 1})
    state = own_part(mesh, 1, "trainer")
    with mesh.bridge(url, side="trainer") as bridge:
        sync = bridge.transfer(PATTERNS, like=state)
        errors = []
        for call in (
            lambda: sync.pull(),
            lambda: sync.push({**state, "embed": torch.zeros(9, 9)}),
            lambda: sync.push(timeout=0.2),
        ):
            try:
                call()
            except meshkit.MeshkitError as error:
                errors.append(f"{type(error).__name__}: {error}")
        time.sleep(1.5)  # the pull of the sampler ends meanwhile
        version = sync.push()
    leave()
    return [errors, version]


def pull_early(_: Strike, url: str) -> Any:
    mesh = build({"dp": 1, "tp": 2})
    weights = own_part(mesh, 0, "sampler")
    errors = []
    with mesh.bridge(url, side="sampler") as bridge:
        sync = bridge.transfer(PATTERNS, like=weights)
        time.sleep(0.7)  # the push of the trainer has ended
        try:
            sync.pull(timeout=0.2)
        except meshkit.RankTimeoutError as error:
            errors.append(str(error))
        version = sync.pull()
        torch.testing.assert_close(weights, own_part(mesh, 1, "sampler"), rtol=0, atol=0)
    leave()
    return [errors, version]


def test_a_call_that_ends_early_leaves_nothing_behind(jobs: Jobs) -> None:
    jobs = jobs.at("late")
    trainer, sampler = jobs.start(push_late, 2), jobs.start(pull_early, 2)
    for text in results(sampler.result()):
        (error,), version = ast.literal_eval(text)
        assert "the trainer did not push within 0.2 s." in error
        assert version >= 1
    for text in results(trainer.result()):
        (other, shape, late), pushed = ast.literal_eval(text)
        assert "SpecError: sync.pull(): the trainer cannot pull" in other
        assert "embed has [9, 9] in float32" in shape
        assert "the sampler did not pull within 0.2 s." in late
        assert pushed == version


def push_without_a_rank(_: Strike, url: str) -> Any:
    mesh = build({"dp": 2, "tp": 1})
    sync = mesh.bridge(url, side="trainer").transfer(PATTERNS, like=own_part(mesh, 1, "trainer"))
    if mesh.rank == 1:
        time.sleep(1 + TIMES.store)
        return None
    began = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError, match="did not arrive") as error:
        sync.push(timeout=1)
    assert error.value.missing_ranks == (1,)
    return time.monotonic() - began


def test_a_side_waits_for_its_own_ranks_no_longer_than_the_call_says(jobs: Jobs) -> None:
    jobs = jobs.at("absent")
    trainer, sampler = jobs.start(push_without_a_rank, 2), jobs.start(join_as_sampler, 1)
    seconds, absent = results(trainer.result())
    assert float(seconds) < 1 + TIMES.store + BUSY < ARRIVAL
    assert absent == "None"
    assert results(sampler.result()) == ["None"]


def join_as_sampler(_: Strike, url: str) -> None:
    mesh = build({"dp": 1, "tp": 1})
    mesh.bridge(url, side="sampler").transfer(PATTERNS, like=own_part(mesh, 0, "sampler"))


def push_to_a_half_dead_sampler(_: Strike, url: str) -> Any:
    mesh = build({"dp": 1, "tp": 1})
    sync = mesh.bridge(url, side="trainer").transfer(PATTERNS, like=own_part(mesh, 1, "trainer"))
    sync.push()
    time.sleep(2.5)
    began = time.monotonic()
    with pytest.raises(meshkit.MeshkitError, match="sampler rank 1"):
        sync.push(timeout=1)
    seconds = time.monotonic() - began
    leave()
    return seconds


def die_while_it_pulls(strike: Strike, url: str) -> Any:
    mesh = build({"dp": 2, "tp": 1})
    sync = mesh.bridge(url, side="sampler").transfer(PATTERNS, like=own_part(mesh, 0, "sampler"))
    sync.pull()
    if mesh.rank == 1:
        strike.later(1.0, strike.kill)
    with pytest.raises(meshkit.MeshkitError):
        sync.pull()
    leave()


def test_a_rank_that_dies_while_its_side_waits_costs_the_other_side_no_more_than_its_timeout(
    jobs: Jobs,
) -> None:
    jobs = jobs.at("half dead")
    sampler = jobs.start(die_while_it_pulls, 2)
    (seconds,) = results(jobs.start(push_to_a_half_dead_sampler, 1).result())
    assert float(seconds) < 1 + TIMES.store + BUSY
    assert sampler.result().fired == 1


def pull_at_a_stopped_store(_: Strike, url: str, server: int) -> Any:
    mesh = build({"dp": 2, "tp": 1})
    sync = mesh.bridge(url, side="sampler").transfer(PATTERNS, like=own_part(mesh, 0, "sampler"))
    if mesh.rank == 0:
        threading.Timer(0.5, lambda: os.kill(server, signal.SIGSTOP)).start()
    began = time.monotonic()
    try:
        sync.pull(timeout=2)
    except meshkit.RankTimeoutError as error:
        seconds = time.monotonic() - began
        leave()
        return [str(error), seconds]


def join_only(_: Strike, url: str) -> None:
    mesh = build({"dp": 1, "tp": 1})
    mesh.bridge(url, side="trainer").transfer(PATTERNS, like=own_part(mesh, 1, "trainer"))


def test_a_store_that_is_stopped_while_a_side_waits_is_named_in_time() -> None:
    with start_store() as jobs:
        trainer = jobs.start(join_only, 1)
        sampler = jobs.start(pull_at_a_stopped_store, 2, jobs.process.pid)
        for text in results(sampler.result()):
            error, seconds = ast.literal_eval(text)
            assert "lost the store of the job" in error
            assert "is stopped, or the network to it is cut" in error
            assert 2 < seconds < 2 + TIMES.store + BUSY / 2
        assert results(trainer.result()) == ["None"]


def start_and_die(strike: Strike, url: str, side: str) -> None:
    meshkit.init(device="cpu", arrival_timeout=ARRIVAL)
    mesh = meshkit.build_mesh(tp=1)
    mesh.bridge(url, side=side).transfer(W, like={"w": torch.zeros(8, 3)})
    time.sleep(0.5)  # the other side has seen it
    strike.kill()


def test_a_statement_of_a_start_that_has_ended_does_not_count(jobs: Jobs) -> None:
    jobs = jobs.at("stale")
    dying = [jobs.start(start_and_die, 1, side) for side in ("trainer", "sampler")]
    assert [job.result().fired for job in dying] == [0, 0]
    other = {"w": "o/tp i -> o i =tp"}
    second = jobs.start(agree, 2, "sampler", other, 8)
    time.sleep(3)  # it sees the trainer that has ended first
    first = jobs.start(agree, 2, "trainer", other)
    assert results(first.result()) + results(second.result()) == ["None"] * 4


def take_the_side(_: Strike, url: str) -> Any:
    meshkit.init(device="cpu", arrival_timeout=5)
    mesh = meshkit.build_mesh(tp=1)
    sync = mesh.bridge(url, side="trainer").transfer(W, like={"w": torch.zeros(8, 3)})
    mesh.bridge(url, side="trainer")
    try:
        sync.push()
    except meshkit.LaunchError as error:
        return str(error)


def test_the_last_job_that_joins_as_a_side_counts(jobs: Jobs) -> None:
    jobs = jobs.at("newer")
    sampler = jobs.start(agree, 2, "sampler")
    (text,) = results(jobs.start(take_the_side, 1).result())
    assert f"another job has joined {jobs.url} as trainer since." in text
    assert results(sampler.result()) == ["None"] * 2


def meet_a_stranger(_: Strike, url: str) -> Any:
    world = meshkit.init(device="cpu", arrival_timeout=5)
    mesh = meshkit.build_mesh(tp=1)
    bridge = mesh.bridge(url, side="trainer")
    store = bridge.side.store.part("transfers/1")
    store.set("sampler/newest", "1.1")
    store.set("sampler/1.1", '{"whoever": "I am"}')
    assert world.world_size == 1
    try:
        bridge.transfer(W, like={"w": torch.zeros(8, 3)})
    except meshkit.LaunchError as error:
        return str(error)


def test_a_value_of_a_stranger_is_refused(jobs: Jobs) -> None:
    (text,) = results(jobs.at("stranger").start(meet_a_stranger, 1).result())
    words = "the key 'sampler/1.1' of the job's store has a value that no rank wrote."
    assert words in ast.literal_eval(text)


def join_wrongly() -> list[str]:
    mesh, errors = meshkit.build_mesh(tp=1), []
    for url, side in (
        ("tcp://localhost:1/x", "trainer"),
        ("store://localhost/x", "trainer"),
        ("store://localhost:1/x", "actor"),
    ):
        with pytest.raises(meshkit.SpecError) as error:
            mesh.bridge(url, side=side)
        errors.append(error.value.summary)
    return errors


def test_wrong_arguments_are_refused() -> None:
    ((scheme, port, side),) = meshkit.spawn(join_wrongly, 1)
    for summary in (scheme, port):
        assert "not the address of a store that `meshkit store` hosts" in summary
    assert side == "side is 'actor'."
