"""mesh.first_on_node and mesh.first: who runs the block first, and what the others see."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import DTensor, Shard

import meshkit
from meshkit.testing.faults import Strike, play
from tests.faults import error_of
from tests.groups.test_hosts import take_host
from tests.pool import Pool, start_pool
from tests.promises import BUSY

RANKS = 4


def read_or_write(path: Path, is_first: bool) -> str:
    """Return the content of a file, which the first one writes after a while."""
    if path.exists():
        return path.read_text()
    assert is_first, "the block of the first rank must be over"
    time.sleep(0.3)
    path.write_text(text := f"rank {dist.get_rank()}")
    return text


def run_on_hosts(hosts: list[str], sizes: dict[str, Any], folder: str) -> Any:
    """Run a block first on each node, twice, and then first in the mesh."""
    take_host(hosts)
    with meshkit.build_mesh(**sizes) as mesh:
        if not mesh.inside:
            return [
                error_of(lambda: mesh.first_on_node().__enter__()),
                error_of(lambda: mesh.first().__enter__()),
            ]
        results = []
        for number in range(2):
            with mesh.first_on_node() as is_first:
                path = Path(folder) / f"{hosts[mesh.rank]} {number}"
                results.append((is_first, read_or_write(path, is_first)))
        with mesh.first() as is_first:
            results.append((is_first, read_or_write(Path(folder) / "all", is_first)))
        mesh.agree("done", 1)
        return results


@pytest.mark.parametrize("hosts", [["a", "a", "b", "b"], ["a", "b", "a", "b"], ["a"] * 4])
def test_the_first_rank_of_each_host_runs_the_block_first(hosts: list[str], tmp_path: Path) -> None:
    results = meshkit.spawn(run_on_hosts, RANKS, (hosts, {"dp": 4}, str(tmp_path)), timeout=60)
    for rank, (*on_node, in_mesh) in enumerate(results):
        first = hosts.index(hosts[rank])
        assert on_node == [(rank == first, f"rank {first}")] * 2
        assert in_mesh == (rank == 0, "rank 0")


def test_the_first_rank_is_one_of_the_mesh(tmp_path: Path) -> None:
    sizes = {"dp": 2, "ranks": [1, 3]}
    results = meshkit.spawn(run_on_hosts, RANKS, (["a"] * 4, sizes, str(tmp_path)), timeout=60)
    assert results[1] == [(True, "rank 1")] * 3
    assert results[3] == [(False, "rank 1")] * 3
    for rank in (0, 2):
        assert [kind for kind, _ in results[rank]] == ["CoordinateError"] * 2


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(RANKS) as started:
        yield started


def fail_in_block(failing: int) -> Any:
    """Let one rank raise in the block; return the error, the ranks that ran it, and a sum after."""
    with meshkit.build_mesh(dp=RANKS) as mesh:
        has_run = False

        def run() -> None:
            nonlocal has_run
            with mesh.first_on_node():
                has_run = True
                if mesh.rank == failing:
                    raise ValueError("no space left")

        began = time.monotonic()
        try:
            error = error_of(run)
        except ValueError as own:
            error = "ValueError", str(own)
        seconds = time.monotonic() - began
        dist.all_reduce(total := torch.ones(()), group=mesh.group())
        with mesh.first() as is_first:
            pass
        return error, has_run, int(total), is_first, seconds


def test_an_error_of_the_first_rank_is_raised_by_all(pool: Pool) -> None:
    outcomes = pool.run(fail_in_block, 0)
    assert [row[1:4] for row in outcomes] == [(rank == 0, 4, rank == 0) for rank in range(RANKS)]
    (own, *others), slowest = [row[0] for row in outcomes], max(row[4] for row in outcomes)
    assert own == ("ValueError", "no space left")
    assert others == [others[0]] * 3
    kind, text = others[0]
    assert kind == "DisagreementError"
    assert text.startswith("the block of mesh.first_on_node() has not run on all ranks.")
    assert "rank 0 (" in text
    assert "ValueError: no space left" in text
    assert slowest < 5 + BUSY


def test_an_error_of_a_later_rank_is_its_own(pool: Pool) -> None:
    outcomes = pool.run(fail_in_block, 2)
    errors = [row[0] for row in outcomes]
    assert errors == [("ValueError", "no space left") if r == 2 else None for r in range(RANKS)]
    assert all(row[1:3] == (True, 4) for row in outcomes)


def wait_too_long() -> Any:
    """Let the first rank take longer than the others wait."""
    with meshkit.build_mesh(dp=RANKS) as mesh:

        def run() -> None:
            with mesh.first(arrival_timeout=1) as is_first:
                time.sleep(3 if is_first else 0)

        error = error_of(run)
        mesh.barrier()
        return error


def test_a_first_rank_that_is_late_is_named(pool: Pool) -> None:
    errors = pool.run(wait_too_long)
    assert {kind for kind, _ in errors} == {"RankTimeoutError"}
    assert all("mesh.first(" in text and "rank 0" in text for _, text in errors)


def lose_a_rank(strike: Strike, lost: int, on_node: bool, machines: str) -> None:
    """Kill one rank: the first one in its block, another one before it arrives."""
    os.environ["MESHKIT_MACHINE"] = machines[int(os.environ["RANK"])]
    meshkit.init(arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3)
    if mesh.rank == lost != 0:
        strike.kill()
    with mesh.first_on_node() if on_node else mesh.first():
        if mesh.rank == lost:
            strike.kill()


@pytest.mark.parametrize(
    ("lost", "on_node", "machines"),
    [(0, True, "aaa"), (0, False, "aaa"), (2, False, "aaa"), (2, True, "aba"), (1, True, "abb")],
)
def test_a_rank_that_is_killed_is_named_at_once(lost: int, on_node: bool, machines: str) -> None:
    """A rank on its machine names it, also one whose own first rank is done."""
    played = play(lose_a_rank, 3, (lost, on_node, machines), timeout=100)
    assert played.fired == lost
    for rank in {*range(3)} - {lost}:
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("RankTimeoutError", (lost,)), outcome
        assert f"Missing: {lost} (dp={lost}) has ended." in outcome.text
        assert played.seconds(rank) < 3 + BUSY


def lose_the_last_rank(strike: Strike) -> None:
    """Kill the last rank before it arrives, and after the only one on its machine has looked."""
    os.environ["MESHKIT_MACHINE"] = "aaaabb"[int(os.environ["RANK"])]
    meshkit.init(arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=6)
    time.sleep({4: 0.5, 5: 3}.get(mesh.rank, 0))
    if mesh.rank == 5:
        strike.kill()
    with mesh.first():
        pass


def test_a_rank_that_arrives_fifth_looks_again_and_again() -> None:
    """The first four are on another machine."""
    played = play(lose_the_last_rank, 6, timeout=100)
    for rank in range(5):
        assert played.outcomes[rank].missing_ranks == (5,), played.outcomes[rank]
        assert played.seconds(rank) < 3 + BUSY


def lose_a_lone_rank(strike: Strike) -> None:
    """Kill the only rank of a machine in its block; its launcher starts it anew."""
    os.environ["MESHKIT_MACHINE"] = os.environ["RANK"]
    meshkit.init(arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3)
    with mesh.first_on_node():
        if mesh.rank == 1:
            strike.kill()


def test_a_rank_that_is_started_anew_has_ended() -> None:
    """No other rank on its machine sees its end, so the number of its new process tells."""
    played = play(lose_a_lone_rank, 3, timeout=100, restarts=1)
    for rank in (0, 2):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("RankTimeoutError", (1,)), outcome
        assert "1 (dp=1) has ended" in outcome.text
        assert played.seconds(rank) < 5 + BUSY


OWN = "a group of the first ranks"
CALLS: dict[str, Callable[[Any, dist.ProcessGroup], object]] = {
    "all_reduce": lambda mesh, _: dist.all_reduce(torch.ones(()), group=mesh.group()),
    "an async one": lambda *_: dist.all_reduce(torch.ones(()), async_op=True),
    "objects": lambda *_: dist.broadcast_object_list([1]),
    "torch's barrier": lambda *_: dist.barrier(),
    "functional": lambda mesh, _: functional.all_reduce(torch.ones(()), "sum", mesh.group()),
    "compiled": lambda mesh, _: torch.compile(
        lambda x: functional.all_reduce(x, "sum", mesh.group()), backend="aot_eager"
    )(torch.ones(())),
    "mesh.agree": lambda mesh, _: mesh.agree("step", 1),
    "mesh.barrier": lambda mesh, _: mesh.barrier("dp"),
    "mesh.redistribute": lambda mesh, _: mesh.redistribute(torch.ones(2), "+dp i -> *dp i"),
    "another first": lambda mesh, _: mesh.first().__enter__(),
    "build_mesh": lambda *_: meshkit.build_mesh(dp=RANKS),
    OWN: lambda _, own: dist.all_reduce(torch.ones(()), group=own),
    "a computation": lambda *_: torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)),
    "a condition": lambda *_: torch.cond(
        torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),)
    ),
    "a DTensor": lambda mesh, _: DTensor.from_local(
        torch.ones(1), mesh.device_mesh("dp"), [Shard(0)]
    ).softmax(0),
}
QUIET = OWN, "a computation", "a condition"  # they wait for no rank that waits


def call_in_block(on_node: bool) -> Any:
    """Let the first ranks make each call in the block; return the errors and a sum after each."""
    take_host(["a", "a", "b", "b"])
    meshkit.init()
    own = dist.new_group([0, 2])
    with meshkit.build_mesh(dp=RANKS) as mesh:
        results = {}
        for name, call in CALLS.items():

            def run(call: Any = call) -> None:
                with (mesh.first_on_node if on_node else mesh.first)() as is_first:
                    if is_first and (on_node or call is not CALLS[OWN]):
                        call(mesh, own)

            began = time.monotonic()
            error = error_of(run)
            seconds = time.monotonic() - began
            dist.all_reduce(total := torch.ones(()), group=mesh.group())
            results[name] = error, int(total), seconds
        return results


@pytest.mark.parametrize("on_node", [False, True])
def test_a_call_that_waits_for_the_waiting_ranks_is_refused(on_node: bool) -> None:
    """No group breaks, and all ranks raise at once."""
    outcomes = meshkit.spawn(call_in_block, RANKS, (on_node,), timeout=100)
    for name in CALLS:
        (errors, totals, seconds) = zip(*(row[name] for row in outcomes), strict=True)
        assert totals == (RANKS,) * RANKS, name
        if name in QUIET:
            assert errors == (None,) * RANKS, name
            continue
        assert max(seconds) < 5 + BUSY, name
        call = "mesh.first_on_node" if on_node else "mesh.first"
        kinds = [kind for kind, _ in errors]
        firsts = [0, 2] if on_node else [0]
        assert kinds[0] == "MeshkitError", name
        assert {kinds[r] for r in range(RANKS) if r not in firsts} == {"DisagreementError"}
        waiting = "1, 3" if on_node else "1-3"
        text = f"the block of {call}() waits for ranks {waiting}, which wait for the end of that"
        assert all(text in error for _, error in errors), (name, errors)
        assert "Fix: move it behind the block" in errors[0][1]


def make_different_calls() -> Any:
    with meshkit.build_mesh(dp=RANKS) as mesh:
        if mesh.rank == 3:
            return error_of(lambda: mesh.agree("x", 1))
        return error_of(lambda: mesh.first().__enter__())


def test_ranks_that_make_other_calls_disagree(pool: Pool) -> None:
    kinds = [error and error[0] for error in pool.run(make_different_calls)]
    assert kinds == [None, *["DisagreementError"] * 3]  # the block of rank 0 is still open


def enter_in_one_rank() -> Any:
    with meshkit.build_mesh(dp=1) as mesh:
        with mesh.first_on_node() as on_node, mesh.first() as first:
            pass
        errors = [error_of(lambda: mesh.first(arrival_timeout="soon").__enter__())]
    errors.append(error_of(lambda: mesh.first_on_node().__enter__()))
    return on_node, first, errors


def test_one_rank_is_the_first_and_a_closed_mesh_has_none() -> None:
    ((on_node, first, errors),) = meshkit.spawn(enter_in_one_rank, 1, timeout=60)
    assert (on_node, first) == (True, True)
    assert [kind for kind, _ in errors] == ["SpecError", "MeshkitError"]
    assert [text.split("(")[0] for _, text in errors] == ["mesh.first", "mesh.first_on_node"]
