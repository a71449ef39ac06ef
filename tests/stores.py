"""A store in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshkit.launch.open_store import serve_store
from meshkit.launch.worker import context_for, start_process


def _serve(pipe: Any, token: str) -> None:
    serve_store(0, pipe.send, token)


@contextmanager
def start_store(token: str = "") -> Iterator[tuple[str, Any]]:
    """Start a store, and end it; yield its URL and its process."""
    context = context_for(_serve)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, token))
    start_process(process)
    try:
        assert receiver.poll(60)
        yield f"store://127.0.0.1:{receiver.recv().rpartition(':')[2]}/job", process
    finally:
        process.kill()
        process.join()
