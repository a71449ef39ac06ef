"""``meshkit hello``: every rank greets, and one all-reduce shows that they hear each other."""

from __future__ import annotations

import json
import os
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ...core.errors import SpawnError
from ...core.text import count_noun, format_ranks
from ..command import Command, Result, seconds
from ..local_ranks import ENDING, failed, in_words, shared_device
from ..options.grid import number

ROW = 1024  # bytes of a greeting: a host name has 253 at most


@dataclass(frozen=True)
class Greeting:
    """What one rank says of itself.

    Attributes:
        rank: its global rank.
        world_size: how many ranks there are.
        local_rank: its index on its node.
        host: the name of its machine.
        device: what it computes on.
        backend: what its collectives run on.
        launcher: who started it.
        pid: its process.
        ok: whether the all-reduce gave what it should.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    device: str
    backend: str
    launcher: str
    pid: int
    ok: bool


def run(asked: Namespace) -> Result:
    """Greet from ``n`` processes started here, or from this one under its launcher. Collective.

    Args:
        asked: ``n``, how many processes to start, or None; ``device``, ``timeout`` and ``json``.

    Returns:
        What all ranks said; nothing to print on ranks other than 0.

    Raises:
        LaunchError: where a rank could not join, or the all-reduce broke.
        RankTimeoutError: where ranks did not arrive in time.
        SpawnError: where one of the processes started here failed.
    """
    if asked.n is not None:
        greetings = _started(asked.n, asked.device, asked.timeout)
        return _answer(greetings, as_json=asked.json)
    from ...launch.job import shutdown

    try:
        mine = greet(asked.device, asked.timeout)
        answer = _answer(_gathered(mine), as_json=asked.json)
    finally:
        shutdown()
    return Result(answer.text if mine.rank == 0 else "", answer.ok)


def greet(device: str | None, timeout: float) -> Greeting:
    """Join the job, check one all-reduce, and say who this is. Collective.

    Args:
        device: where to compute; None takes the accelerator, else the cpu.
        timeout: seconds that ranks wait for each other, and that the all-reduce may take.

    Raises:
        LaunchError: where this process cannot join, or the all-reduce breaks.
        RankTimeoutError: where ranks do not arrive.
    """
    from ...launch.job import init

    with in_words("joining the job"):
        world = init(device=device, timeout=timeout)
    with in_words(f"the all-reduce of rank {world.rank} of {world.world_size}"):
        heard = _hears_all(world.rank, world.world_size, str(world.device))
    return Greeting(
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        host=socket.gethostname(),
        device=str(world.device),
        backend=str(world.backend),
        launcher=world.launcher,
        pid=os.getpid(),
        ok=heard,
    )


def greet_beside(device: str | None, timeout: float) -> Greeting:
    """:func:`greet` for ranks that share a machine: on the cpu where it has too few devices.

    Args:
        device: where to compute, or None.
        timeout: as for :func:`greet`.
    """
    return greet(shared_device(device), timeout)


def _hears_all(rank: int, world_size: int, device: str) -> bool:
    """Whether a one from every rank arrives in its own place."""
    import torch
    import torch.distributed as dist

    seen = torch.zeros(world_size, dtype=torch.int64, device=device)
    seen[rank] = 1
    dist.all_reduce(seen)
    return bool((seen == 1).all())


def _gathered(mine: Greeting) -> list[Greeting]:
    """The greetings of all ranks, by rank. Collective.

    They go as JSON in rows of bytes: what a peer sends is never unpickled.
    """
    import torch

    from ...live.groups.all_gather import all_gather

    text = json.dumps(asdict(mine)).encode()
    row = torch.zeros(ROW, dtype=torch.uint8)
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with in_words(f"telling rank {mine.rank}'s greeting"):
        rows = all_gather(row.to(mine.device))
    return [Greeting(**json.loads(bytes(one.tolist()).rstrip(b"\0"))) for one in rows]


def _started(n: int, device: str | None, timeout: float) -> list[Greeting]:
    """The greetings of ``n`` processes started here.

    Raises:
        SpawnError: with the words of the rank that failed first, and no traceback.
    """
    from ...launch.spawn.spawn import spawn
    from ...live.preload import preload_mesh

    preload_mesh()
    try:
        return spawn(greet_beside, n, (device, timeout), timeout=timeout + ENDING)
    except SpawnError as error:
        raise failed(n, error, device) from error


def _answer(greetings: Sequence[Greeting], *, as_json: bool) -> Result:
    """What all ranks said, as text or as one JSON object."""
    ok = all(greeting.ok for greeting in greetings)
    if not as_json:
        return Result(as_text(greetings), ok)
    said = {"ok": ok, "world_size": len(greetings), "ranks": [asdict(g) for g in greetings]}
    return Result(json.dumps(said), ok)


def as_text(greetings: Sequence[Greeting]) -> str:
    """Greetings as a person reads them, a line each, and what became of the all-reduce.

    Example:
        >>> print(as_text([Greeting(0, 1, 0, "a", "cpu", "gloo", "single", 311, True)]))
        rank 0 of 1 says hello from host a, device cpu, pid 311
        OK: the all-reduce over 1 rank on gloo.
    """
    lines = [
        f"rank {one.rank} of {one.world_size} says hello from host {one.host}, "
        f"device {one.device}, pid {one.pid}"
        for one in greetings
    ]
    wrong = [greeting.rank for greeting in greetings if not greeting.ok]
    last = f"the all-reduce over {count_noun(len(greetings), 'rank')} on {greetings[0].backend}"
    end = f"LOOK HERE: {last} was wrong on {format_ranks(wrong)}." if wrong else f"OK: {last}."
    return "\n".join([*lines, end])


def _add(parser: ArgumentParser) -> None:
    start = "start this many local processes; without it, this one greets under its launcher"
    parser.add_argument("-n", type=number, metavar="N", help=start)
    where = "cpu, cuda, ... (default: the accelerator; the cpu with fewer of them than -n)"
    parser.add_argument("--device", help=where)
    wait = "how long ranks wait for each other (default 60)"
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS", help=wait)


HELLO = Command("hello", "let every rank greet, and check one all-reduce", _add, run)
