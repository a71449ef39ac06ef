"""A rank or the store that fails during an exchange between two jobs: errors in time, old weights.

``python -m tests.transfer.test_bridge_faults 60`` plays random faults, one after the other; with a
second number, only those from that one on.
"""

from __future__ import annotations

import ast
import gc
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import meshkit
from meshkit.testing.faults import Played, Strike
from meshkit.transfer.exchange import BridgeChannel
from tests.transfer.two_jobs import digest, start_store

LIMIT = 4.0  # seconds of a message, and of ranks that wait for each other
BUSY = 12.0  # more seconds on a machine that is loaded
TENSORS, ROWS, COLUMNS = 9, 8, 2**15  # a tensor is a batch of its own
CHUNK = ROWS // 2 * COLUMNS * 4
RANKS = {"trainer": 2, "sampler": 2}
PATTERN = {"*": "o/dp i -> o/tp i"}
VOTE = -1  # the moment after the last message and before the vote
KINDS = {"CollectiveError", "RankTimeoutError"}
STORE_FAULTS = {"store": signal.SIGKILL, "stopped store": signal.SIGSTOP}
FIRST, MIDDLE, LAST = 0, TENSORS // 3, TENSORS - 1
FAULTS = [  # the side, the rank, the fault and its moment
    ("trainer", 1, "kill", FIRST),
    ("sampler", 1, "kill", LAST),
    ("trainer", 1, "kill", VOTE),
    ("sampler", 1, "kill", VOTE),
    ("trainer", 1, "store", FIRST),
    ("sampler", 1, "store", VOTE),
    ("sampler", 1, "stopped store", MIDDLE),
    ("sampler", 1, "stopped store", VOTE),
]
SLOW_FAULTS = [
    ("trainer", 1, "stop", MIDDLE),
    ("sampler", 1, "stop", VOTE),
    ("trainer", 0, "cut", VOTE),
    ("sampler", 0, "cut", MIDDLE),
]


def state_of(rank: int, version: int) -> dict[str, Tensor]:
    """Return the state of a rank of the trainer."""
    return {
        f"w{n}": torch.full((ROWS // 2, COLUMNS), float(100 * version + 10 * n + rank))
        for n in range(TENSORS)
    }


def exchange(
    strike: Strike, url: str, side: str, odd: tuple[str, int], fault: str, at: int, server: int
) -> Any:
    """Exchange one version, and a second one in which a rank strikes; return what is left."""
    meshkit.init(device="cpu", arrival_timeout=LIMIT + BUSY)
    torch.set_num_threads(1)
    axis = "dp" if side == "trainer" else "tp"
    mesh = meshkit.build_mesh({axis: RANKS[side]}, timeout=LIMIT)
    weights = state_of(mesh.rank, side == "trainer")
    sync = mesh.bridge(url, side=side).transfer(PATTERN, like=weights, chunk=CHUNK)
    call = sync.push if side == "trainer" else sync.pull
    sockets = count_sockets()
    call()
    before = digest(weights)
    if (side, mesh.rank) == odd:
        strike_at(strike, fault, at, server)
    if side == "trainer":
        for name, tensor in state_of(mesh.rank, 2).items():
            weights[name].copy_(tensor)
        before = ""
    text = ""
    try:  # a side that has lost the store finds the other one no more
        call(timeout=2 * LIMIT if fault == "stopped store" else None)
    except meshkit.MeshkitError as error:
        text = f"{type(error).__name__}: {error}"
    end, intact = time.monotonic(), not before or digest(weights) == before
    gc.collect()
    return [text, end, intact, count_sockets() - sockets]


def strike_at(strike: Strike, fault: str, at: int, server: int) -> None:
    """Let this rank, or the store, fail at a message, or before the vote."""
    patch, count = pytest.MonkeyPatch(), 0
    wait, meet = BridgeChannel.wait, BridgeChannel.meet

    def fail() -> None:
        if fault in STORE_FAULTS:
            strike.note()
            os.kill(server, STORE_FAULTS[fault])
        else:
            {"kill": strike.kill, "stop": strike.stop, "cut": strike.cut}[fault]()

    def struck(channel: Any, works: Any) -> None:
        nonlocal count
        if count == at:
            fail()
        count += 1
        wait(channel, works)

    def struck_at_the_end(channel: Any) -> None:
        meet(channel)
        if at == VOTE:
            fail()

    patch.setattr(BridgeChannel, "wait", struck)
    patch.setattr(BridgeChannel, "meet", struck_at_the_end)


def count_sockets() -> int:
    """Return how many sockets this process has open."""
    folder, count = Path("/proc/self/fd"), 0
    for path in folder.iterdir():
        with suppress(OSError):
            count += os.readlink(path).startswith("socket:")
    return count


def play_fault(side: str, rank: int, fault: str, at: int) -> dict[str, Played]:
    """Return the outcomes of both jobs."""
    with start_store() as jobs:
        args = (side, rank), fault, at, jobs.process.pid
        played = {
            name: jobs.start(exchange, ranks, name, *args, timeout=3 * (LIMIT + BUSY))
            for name, ranks in RANKS.items()
        }
        return {name: future.result() for name, future in played.items()}


def check_fault(side: str, rank: int, fault: str, at: int) -> None:
    """Play a fault; check who raises what, by when, and that the old weights are intact."""
    played = play_fault(side, rank, fault, at)
    assert played[side].fired == rank, "the fault did not fire"
    for name, job in played.items():
        for other in range(RANKS[name]):
            if (name, other) == (side, rank) and fault in ("kill", "stop", "cut"):
                continue
            assert other in job.outcomes, f"{name} rank {other} hangs: {job}"
            outcome = job.outcomes[other]
            assert outcome.kind == "returned", f"{name} rank {other}: {outcome}"
            text, end, intact, sockets = ast.literal_eval(outcome.text)
            assert text.partition(":")[0] in KINDS, f"{name} rank {other}: {text}"
            assert end - played[side].at < LIMIT + 5 + BUSY, text
            assert intact, f"{name} rank {other} has lost its weights"
            if fault in ("kill", "stop"):
                ended = "has ended" if fault == "kill" else "is stopped"
                assert f"{side} rank {rank}" in text, text
                assert ended in text, text
                assert sockets <= 0, f"{name} rank {other} has left {sockets} sockets open"


@pytest.mark.parametrize(
    ("side", "rank", "fault", "at"),
    [*FAULTS, *(pytest.param(*fault, marks=pytest.mark.slow) for fault in SLOW_FAULTS)],
)
def test_a_fault_in_an_exchange_is_an_error_on_both_sides(
    side: str, rank: int, fault: str, at: int
) -> None:
    check_fault(side, rank, fault, at)


if __name__ == "__main__":
    generator = random.Random(5)
    for number in range(int(sys.argv[1])):
        case = (
            generator.choice([*RANKS]),
            generator.randrange(2),
            generator.choice(["kill", "stop", "cut", *STORE_FAULTS]),
            generator.randrange(VOTE, TENSORS),
        )
        if number < int([*sys.argv, "0"][2]):
            continue
        began = time.monotonic()
        check_fault(*case)
        print(number, *case, f"{time.monotonic() - began:.1f} s", flush=True)
