"""Two jobs of local processes that meet at a store of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from meshkit.launch.spawn import context_for, start_process
from meshkit.launch.store import serve_store
from meshkit.testing.faults import Played, play


@dataclass
class Jobs:
    """A store, and the jobs that meet there."""

    url: str
    process: Any  # of the store
    executor: ThreadPoolExecutor

    def at(self, name: str) -> Jobs:
        """Return the same store with another name for the bridge."""
        return replace(self, url=f"{self.url}/{name}")

    def start(
        self, fn: Callable[..., object], ranks: int, *args: object, timeout: float = 90
    ) -> Future[Played]:
        """Start a job: ``fn(strike, url, *args)`` on some ranks."""
        return self.executor.submit(play, fn, ranks, (self.url, *args), timeout=timeout)


def _serve(pipe: Any, token: str) -> None:
    serve_store(0, pipe.send, token)


@contextmanager
def start_store(token: str = "") -> Iterator[Jobs]:
    """Start a store for two jobs, and end it."""
    context = context_for(_serve)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, token))
    start_process(process)
    try:
        assert receiver.poll(60)
        port = receiver.recv().rpartition(":")[2]
        with ThreadPoolExecutor(4) as executor:
            yield Jobs(f"store://127.0.0.1:{port}/weights", process, executor)
    finally:
        process.kill()
        process.join()


def digest(state: dict[str, Tensor]) -> str:
    """Return a hash of the values of a state."""
    parts = b"".join(name.encode() + state[name].numpy().tobytes() for name in sorted(state))
    return hashlib.sha256(parts).hexdigest()


def results(played: Played) -> list[str]:
    """Return what each rank returned, as text."""
    assert {*played.ends.values()} == {"ended"}, played
    for rank, outcome in played.outcomes.items():
        assert outcome.kind == "returned", f"rank {rank}: {outcome.kind}: {outcome.text}"
    return [played.outcomes[rank].text for rank in sorted(played.outcomes)]


def leave() -> None:
    """Wait for the ranks of this job, so that the host of its store leaves last."""
    dist.barrier()
