"""A pool of ranks: one job of local processes that runs the bodies of many tests.

A fresh job costs a second or more, and most tests need none. After each body every rank checks that
no process group was left open but torch's default one.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import meshkit
from tests.promises import BUSY


@dataclass(frozen=True)
class Outcome:
    """The result of a body on one rank, or the traceback of its error."""

    result: Any
    failure: str | None = None


class Pool:
    """Ranks that wait for functions to run. All of them belong to one job."""

    def __init__(self, num_ranks: int) -> None:
        self._listener = Listener(family="AF_UNIX")
        args = serve, num_ranks, (self._listener.address,)
        self._thread = threading.Thread(target=_spawn, args=args, daemon=True)
        self._thread.start()
        accepted = [self._listener.accept() for _ in range(num_ranks)]
        by_rank = {pipe.recv(): pipe for pipe in accepted}
        self._pipes = [by_rank[rank] for rank in range(num_ranks)]

    def run(self, body: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
        """Return the results of a function at the top level of a module, in rank order.

        Raises:
            AssertionError: if a rank raised, with the traceback of each, or did not answer in time.
        """
        for pipe in self._pipes:
            pipe.send((body, args))
        deadline = time.monotonic() + timeout
        outcomes = [_receive(pipe, deadline) for pipe in self._pipes]
        failures = [
            f"rank {rank}: {outcome.failure}"
            for rank, outcome in enumerate(outcomes)
            if outcome.failure
        ]
        assert not failures, "\n".join(failures)
        return [outcome.result for outcome in outcomes]

    def close(self) -> None:
        """End the ranks."""
        for pipe in self._pipes:
            pipe.close()
        self._listener.close()
        self._thread.join(15)


def _spawn(*args: Any) -> None:
    try:
        meshkit.spawn(*args)
    except meshkit.SpawnError:  # of a rank that did not answer: the test that waited has failed
        traceback.print_exc()


def _receive(pipe: Connection, deadline: float) -> Outcome:
    if not pipe.poll(max(deadline - time.monotonic(), 0)):
        pipe.close()  # the rank hangs, and meshkit.spawn ends it after the others
        return Outcome(None, "no answer in time")
    outcome: Outcome = pipe.recv()
    return outcome


def serve(address: str) -> None:
    """Run the functions that the pool sends to this rank, until it closes the pipe."""
    torch.set_num_threads(1)
    meshkit.init()
    with Client(address, family="AF_UNIX") as pipe:
        pipe.send(dist.get_rank())
        while True:
            try:
                body, args = pipe.recv()
            except EOFError:
                return
            pipe.send(run_body(body, args))


def run_body(body: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Return the outcome of a function, an error if it left groups open.

    A creation that was given up closes its groups in its own thread, a moment later.
    """
    try:
        result = body(*args)
    except BaseException:
        return Outcome(None, traceback.format_exc())
    until = time.monotonic() + BUSY
    while (groups := len(distributed_c10d._world.pg_map)) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    return Outcome(result, f"{groups - 1} groups were left open" if groups > 1 else None)


@contextmanager
def start_pool(num_ranks: int) -> Iterator[Pool]:
    """Start a pool for a fixture of a module, and end it."""
    pool = Pool(num_ranks)
    try:
        yield pool
    finally:
        pool.close()
