"""Ranks or the store that fail during a move to another mesh: the others raise in time."""

from __future__ import annotations

import ast
import hashlib
import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import meshkit
from meshkit.redistribute.mover import Channel
from meshkit.testing.faults import Played, Strike, play
from tests.stores import start_store

LIMIT = 4.0  # seconds of the guards
WIDTH = 2**20  # more elements than a socket holds
BUSY = 10.0  # more seconds on a machine that is loaded


def move_with(strike: Strike, odd: int, fault: str, guarded: bool) -> None:
    """Move a tensor twice; before the second move one rank fails."""
    meshkit.init()
    source = meshkit.build_mesh(ranks=[0, 1], dp=2, timeout=LIMIT)
    target = meshkit.build_mesh(ranks=[2, 3], tp=2, timeout=LIMIT)
    own = source if source.inside else target
    x: Any = torch.ones(4, WIDTH) if source.inside else None

    def move() -> None:
        source.redistribute(x, "o/dp i -> o i/tp", to=target)

    move()
    dist.barrier()
    if own.rank == odd:
        if fault == "shape":
            strike.note()
            x = torch.ones(5, WIDTH)
        else:
            {"kill": strike.kill, "stop": strike.stop}[fault]()
    elif fault == "kill":
        time.sleep(0.5)  # the connections of the killed rank are closed
    if guarded:
        with own.guard(timeout=LIMIT):
            move()
    else:
        move()


def run(odd: int, fault: str, guarded: bool) -> Played:
    """Return the outcome of the four ranks."""
    return play(move_with, 4, (odd, fault, guarded), timeout=90)


@pytest.mark.parametrize(
    ("odd", "fault", "guarded"),
    [
        (1, "kill", False),
        (3, "kill", True),
        pytest.param(1, "stop", True, marks=pytest.mark.slow),
        pytest.param(3, "stop", False, marks=pytest.mark.slow),
    ],
)
def test_the_peers_of_a_rank_that_is_gone_name_it(odd: int, fault: str, guarded: bool) -> None:
    played = run(odd, fault, guarded)
    assert played.fired == odd
    for rank in (2, 3) if odd == 1 else (0, 1):
        outcome = played.outcomes[rank]
        assert outcome.kind == ("CollectiveError" if guarded else "RuntimeError"), outcome
        assert f"to or from rank {odd}." in outcome.text, outcome
        assert played.seconds(rank) < LIMIT + BUSY


def test_a_sender_with_another_shape_raises_before_it_sends() -> None:
    played = run(1, "shape", True)
    assert played.fired == 1
    assert played.outcomes[1].kind == "SpecError"
    assert f"x has sizes i={WIDTH} o=10, not i={WIDTH} o=8" in played.outcomes[1].text
    for rank in (0, 2, 3):
        outcome = played.outcomes[rank]
        assert outcome.kind == "DisagreementError", outcome
        assert f"gave up: SpecError: x has sizes i={WIDTH} o=10" in outcome.text
        assert played.seconds(rank) < BUSY


# ------------------------------------------------------------------ a whole side, or the store

SIDES = {"trainer": [0, 1], "sampler": [2, 3]}
TENSORS, ROWS, COLUMNS = 9, 8, 2**15  # a tensor is a batch of its own
ERRORS = {"CollectiveError", "DisagreementError", "RankTimeoutError"}


def digest(state: dict[str, Tensor]) -> str:
    """Return a hash of the values of a state."""
    parts = b"".join(name.encode() + state[name].numpy().tobytes() for name in sorted(state))
    return hashlib.sha256(parts).hexdigest()


def transfer_with(strike: Strike, url: str, side: str, fault: str, at: int, server: int) -> Any:
    """Move two staged states; in the second move ranks strike. Return what is left, and recover."""
    meshkit.init(device="cpu", init_method=url, arrival_timeout=60)
    torch.set_num_threads(1)
    trainer = meshkit.build_mesh(ranks=SIDES["trainer"], dp=2, timeout=LIMIT)
    sampler = meshkit.build_mesh(ranks=SIDES["sampler"], tp=2, timeout=LIMIT)
    own = trainer if trainer.inside else sampler
    held = {f"w{n}": torch.full((ROWS // 2, COLUMNS), n + own.rank / 2) for n in range(TENSORS)}
    wanted = {name: torch.zeros_like(tensor) for name, tensor in held.items()}
    state, out = (held, None) if trainer.inside else (None, wanted)
    sync = trainer.transfer(
        {"*": "o/dp i -> o/tp i"}, to=sampler, like=state or out, chunk=2**19, staged=True
    )
    sync(state, out=out)
    before, wait, count = digest(wanted), Channel.wait, 0

    def struck(channel: Any, works: Any) -> None:
        nonlocal count
        if count == at:
            if fault == "store":
                strike.note()
                os.kill(server, signal.SIGKILL)
            else:
                strike.kill()
        count += 1
        wait(channel, works)

    is_odd = own.rank in SIDES[side] if fault == "side" else own.rank == SIDES[side][1]
    patch = pytest.MonkeyPatch()
    if is_odd:
        patch.setattr(Channel, "wait", struck)
    for tensor in held.values():
        tensor.add_(1)
    text = ""
    try:
        sync(state, out=out)
    except meshkit.MeshkitError as error:
        text = f"{type(error).__name__}: {error}"
    end, intact, patch = time.monotonic(), digest(wanted) == before, patch.undo()
    if fault != "store":
        mesh = own.recover()
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group())
        assert total.item() == mesh.layout.num_ranks
    return [text, end, intact]


@pytest.mark.parametrize(
    ("side", "fault", "at"),  # the last is the number of the message
    [
        ("trainer", "side", 0),
        ("sampler", "side", TENSORS - 1),
        ("sampler", "store", TENSORS // 3),
    ],
)
def test_a_whole_side_or_the_store_that_is_killed_leaves_the_old_weights(
    side: str, fault: str, at: int
) -> None:
    with start_store() as (url, server):
        args = url, side, fault, at, server.pid
        played = play(transfer_with, 4, args, timeout=90)
    assert played.fired is not None, "the fault did not fire"
    gone = SIDES[side] if fault == "side" else []
    for rank in (rank for rank in range(4) if rank not in gone):
        outcome = played.outcomes[rank]
        assert outcome.kind == "returned", f"rank {rank}: {outcome}"
        text, end, intact = ast.literal_eval(outcome.text)
        assert text.partition(":")[0] in ERRORS, f"rank {rank}: {text}"
        assert fault == "store" or any(f"{other}" in text for other in gone), text
        assert end - played.at < LIMIT + 5 + BUSY, text
        assert intact, f"rank {rank} has lost its weights"
