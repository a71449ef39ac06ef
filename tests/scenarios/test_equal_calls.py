"""Calls that must be equal are compared with the semantics of NCCL, where no rank waits for it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.groups import status
from meshkit.launch.job import require_job
from meshkit.testing.faults import Played, Strike, play
from tests import nccl_like
from tests.promises import BUSY
from tests.redistribute.test_equal_calls import moves_of
from tests.scenarios.test_nccl_like import ANSWER, LIMIT, join

ODD = 2  # the rank that makes another call
LATE = 2.0  # seconds by which a rank is late


def disagree(strike: Strike, kind: str, reading: str) -> Any:
    """Make another call on rank 2; return the error of each rank, and whether it was the call."""
    join()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    move = moves_of(mesh, odd=mesh.rank == ODD)[kind]
    text, is_first = "through", reading == "first"
    try:
        if is_first:
            move()
        else:
            with mesh.guard(timeout=20):
                strike.note()
                move()
                if reading == "next":
                    while not status.pending()[0].is_done():
                        time.sleep(0.01)
                    mesh.redistribute(torch.ones(2), "a/tp -> a")
                if reading == "commit":
                    mesh.commit()
    except meshkit.DisagreementError as error:
        text = str(error)
    meshkit.shutdown()
    return text


READINGS = ["first", "next", "commit", "end"]
KINDS = ["shape", "dtype", "pattern", "op", "shift", "exchange", "begin"]
CASES = [(kind, "next") for kind in KINDS] + [("shape", reading) for reading in READINGS[::2]]
CASES += [("exchange", "first"), ("shift", "commit"), ("dtype", "end")]


@pytest.mark.parametrize(("kind", "reading"), CASES)
def test_another_call_on_one_rank_is_named_before_the_step(
    kind: str, reading: str, played: Played
) -> None:
    texts = {rank: eval(outcome.text) for rank, outcome in played.outcomes.items()}
    for rank in (2, 3):
        assert "\n  rank 2:  " in texts[rank], played
        assert "\n  rank 3:  " in texts[rank], played
    for rank in (0, 1):  # a commit is a vote of all ranks of the mesh
        assert (texts[rank] == "through") == (reading != "commit"), played


def hang(strike: Strike) -> Any:
    """Wait for a move of another kind than that of the peer, on ranks 2 and 3."""
    join()
    mesh, x = meshkit.build_mesh(dp=2, tp=2), torch.ones(2, 2)
    try:
        with mesh.guard(timeout=LIMIT):
            strike.note()
            y = (
                mesh.shift(x, "tp", 1)
                if mesh.rank == ODD
                else mesh.redistribute(x, "a/tp b -> a b")
            )
            y.sum().item()  # the thread makes no other call
    except meshkit.DisagreementError as error:
        meshkit.shutdown()
        return str(error), sorted(error.requests)
    return "through"


def test_different_calls_that_hang_are_reported_by_the_guard(played: Played) -> None:
    for rank in (2, 3):
        text, ranks = eval(played.outcomes[rank].text)
        assert "make different calls over one group" in text
        assert "rank 2:  shape=[2, 2], call=shift over tp by 1" in text
        assert ranks == [2, 3]
        assert played.seconds(rank) < LIMIT + ANSWER + BUSY


def wait_at_the_end(strike: Strike) -> Any:
    """Leave the guard while rank 3 sleeps before its call; rank 2 reads no result."""
    join()
    mesh, text = meshkit.build_mesh(dp=2, tp=2), "through"
    try:
        with mesh.guard(timeout=LIMIT):
            if mesh.rank == 3:
                strike.note()
                time.sleep(3 * LIMIT + ANSWER)
            mesh.begin(torch.ones(2, 2), "a/tp b -> a b")
    except meshkit.CollectiveError as error:
        text = str(error)
    meshkit.shutdown()
    return text


def test_a_rank_that_waits_at_the_end_of_a_guard_says_for_which_group(played: Played) -> None:
    text = eval(played.outcomes[2].text)
    assert "look at rank 3 first" in text
    assert re.search(r"Rank 2: waits [\d.]+ s in \w+ over tp, ", text)
    assert played.seconds(2) < LIMIT + ANSWER + BUSY


def skip_in_a_pipeline(strike: Strike, fault: str) -> Any:
    """Send along a pipeline in a guard; with a fault, rank 0 also skips a collective there."""
    join()
    mesh = meshkit.build_mesh(pp=2, dp=2)
    group, x, text = mesh.group("pp"), torch.ones(2), "through"
    try:
        with mesh.guard(timeout=20):
            strike.note()
            stage = mesh.coordinate["pp"]
            for _ in range(3):
                way = {"group_src": 0} if stage else {"group_dst": 1}
                (dist.irecv if stage else dist.isend)(x, group=group, **way).wait()
            if mesh.rank or fault == "none":
                dist.all_reduce(torch.ones(2), group=group)
            mesh.commit() if fault == "none" else None
    except meshkit.CollectiveError as error:
        text = str(error)
    store: Any = require_job().store
    store.add("left", 1)
    while store.add("left", 0) < mesh.layout.num_ranks:  # the process of no peer ends before
        time.sleep(0.05)
    return text


@pytest.mark.parametrize("fault", ["skip", "none"])
def test_collectives_along_a_pipeline_are_counted(fault: str, played: Played) -> None:
    texts = [eval(outcome.text) for outcome in played.outcomes.values()]
    reports = [text for text in texts if text != "through"]
    assert len(reports) == (fault == "skip"), played  # the last rank that leaves the guard raises
    for text in reports:
        assert "ranks have begun different numbers of collectives" in text
        assert "Behind: rank 0 (pp=0 dp=0) has begun 0 of 1 collectives over pp" in text
        assert "Sends and receives" not in text


def record(calls: list[tuple[str, str]], group: Any, name: str, *args: Any, **more: Any) -> Any:
    calls.append((group.group_desc.split()[-1], name))
    return COLLECTIVE(group, name, *args, **more)


COLLECTIVE = nccl_like.Group.collective


def move_in_order(strike: Strike) -> Any:
    """Return the collectives of equal calls, and the seconds of a move to which a peer is late."""
    join()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    calls: list[tuple[str, str]] = []
    x = torch.ones(2, 2)
    patch = pytest.MonkeyPatch()
    with mesh.guard(timeout=20):
        patch.setattr(nccl_like.Group, "collective", lambda *a, **k: record(calls, *a, **k))
        if mesh.rank == ODD:
            time.sleep(LATE)
        began = time.monotonic()
        y = mesh.begin(x, "a/tp b -> a b")
        z = mesh.begin(x, "a b +dp -> a b =dp")
        took = time.monotonic() - began
        total = y.wait().sum().item() + z.wait().sum().item()
        mesh.commit()
        patch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
        mesh.redistribute(x, "a/tp b -> a b")
        patch.undo()
    mesh.close()
    meshkit.shutdown()
    return calls, took < LATE / 2, total


def test_the_comparison_comes_before_the_move_and_nobody_waits_for_it(played: Played) -> None:
    expected = [
        *(("tp", "allreduce"), ("tp", "_allgather_base")),
        *(("dp", "allreduce"), ("dp", "allreduce")),
        ("tp", "_allgather_base"),  # captured in a graph: not compared
    ]
    for rank in range(4):
        calls, is_early, total = eval(played.outcomes[rank].text)
        assert calls == expected, rank
        assert is_early or rank == ODD
        assert total == 16


def job(fn: Callable[..., Any], *args: Any) -> Callable[[], Played]:
    return partial(play, fn, 4, args, timeout=90)


AT_ONCE = 3
JOBS: dict[str, Callable[[], Played]] = {
    **{
        f"test_collectives_along_a_pipeline_are_counted[{fault}]": job(skip_in_a_pipeline, fault)
        for fault in ("skip", "none")
    },
    "test_a_rank_that_waits_at_the_end_of_a_guard_says_for_which_group": job(wait_at_the_end),
    "test_different_calls_that_hang_are_reported_by_the_guard": job(hang),
    "test_the_comparison_comes_before_the_move_and_nobody_waits_for_it": job(move_in_order),
    **{
        f"test_another_call_on_one_rank_is_named_before_the_step[{kind}-{reading}]": job(
            disagree, kind, reading
        )
        for kind, reading in CASES
    },
}
