"""``meshkit hello``: every rank reports itself, and one all-reduce checks that all took part."""

from __future__ import annotations

import json
import os
import socket
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ...core.draw.table import wrap_lines
from ...core.text import count_noun, format_ranks
from ..command import Command, Result
from ..local_ranks import (
    ENDING,
    add_ranks,
    choose_shared_device,
    rank_0_progress,
    spawn_ranks,
    torch_errors,
)

ROW = 1024  # bytes of one greeting: a host name has 253 at most


@dataclass(frozen=True)
class Greeting:
    """The report of one rank."""

    rank: int
    world_size: int
    local_rank: int
    host: str  # name of its machine
    device: str
    backend: str
    launcher: str
    pid: int
    ok: bool  # whether its all-reduce was correct


def run(args: Namespace) -> Result:
    """Greet from ``n`` processes started here, or from this rank of its launcher. Collective."""
    if args.n is not None:
        return _result(_greet_locally(args))
    from ...launch.join import shutdown

    try:
        with rank_0_progress("meshkit hello"):
            greeting = greet(args.device, args.timeout)
            result = _result(_gather(greeting))
    finally:
        shutdown()
    return result if greeting.rank == 0 else Result(ok=result.ok)


def _greet_locally(args: Namespace) -> list[Greeting]:
    """Return the greetings of ``n`` ranks started here."""
    return spawn_ranks(
        greet_on_shared_device,
        args.n,
        (args.device, args.timeout),
        device=args.device,
        timeout=args.timeout + ENDING,
        title="meshkit hello",
    )


def greet(device: str | None, timeout: float) -> Greeting:
    """Join the job, check one all-reduce, and return the report of this rank. Collective."""
    from ...launch.join import init

    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    with torch_errors(f"the all-reduce of rank {world.rank} of {world.world_size}"):
        ok = _check_all_reduce(world.rank, world.world_size, str(world.device))
    return Greeting(
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        host=socket.gethostname(),
        device=str(world.device),
        backend=str(world.backend),
        launcher=world.launcher,
        pid=os.getpid(),
        ok=ok,
    )


def greet_on_shared_device(device: str | None, timeout: float) -> Greeting:
    """Greet from one of several ranks on this machine: on the cpu if there are too few devices."""
    return greet(choose_shared_device(device), timeout)


def _check_all_reduce(rank: int, world_size: int, device: str) -> bool:
    """Return whether the 1 of every rank arrives at its position. Collective."""
    import torch
    import torch.distributed as dist

    ones = torch.zeros(world_size, dtype=torch.int64, device=device)
    ones[rank] = 1
    dist.all_reduce(ones)
    return bool((ones == 1).all())


def _gather(greeting: Greeting) -> list[Greeting]:
    """Return the greetings of all ranks as JSON: no data of a peer is unpickled. Collective."""
    import torch

    from ...live.groups import all_gather

    text = json.dumps(asdict(greeting)).encode()
    row = torch.zeros(ROW, dtype=torch.uint8)
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with torch_errors(f"sending the greeting of rank {greeting.rank}"):
        rows = all_gather(row.to(greeting.device))
    return [Greeting(**json.loads(bytes(row.tolist()).rstrip(b"\0"))) for row in rows]


def _result(greetings: Sequence[Greeting]) -> Result:
    ok, ranks = all(greeting.ok for greeting in greetings), [asdict(each) for each in greetings]
    return Result(
        lambda: {"ok": ok, "world_size": len(greetings), "ranks": ranks},
        partial(as_text, greetings),
        ok,
    )


def as_text(greetings: Sequence[Greeting], *, width: int, ascii: bool = True) -> str:
    """Return greetings as text, one line each, with the outcome of the all-reduce."""
    lines = [
        f"rank {greeting.rank} of {greeting.world_size} says hello from host {greeting.host}, "
        f"device {greeting.device}, pid {greeting.pid}"
        for greeting in greetings
    ]
    wrong = [greeting.rank for greeting in greetings if not greeting.ok]
    summary = f"the all-reduce over {count_noun(len(greetings), 'rank')} on {greetings[0].backend}"
    last = f"FAILED: {summary} was wrong on {format_ranks(wrong)}." if wrong else f"OK: {summary}."
    return "\n".join(part for line in [*lines, last] for part in wrap_lines(line, width))


HELLO = Command(
    "hello",
    "greet from every rank, and check one all-reduce",
    add_ranks,
    run,
    ("-n 4 --device cpu", "-n 2 --device cpu --json"),
)
