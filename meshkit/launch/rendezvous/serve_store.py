"""Host a store in a process of its own, so that it outlives every rank."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

import torch.distributed as dist

from ...core.errors import LaunchError

SIGNALS = signal.SIGINT, signal.SIGTERM
POLL = 0.5  # seconds between two looks for a signal


def serve_store(port: int, announce: Callable[[str], None]) -> None:
    """Host a TCP store until SIGINT or SIGTERM. Local."""
    ended = threading.Event()
    for number in SIGNALS:
        signal.signal(number, lambda *_: ended.set())
    try:
        host = socket.gethostname()
        store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:  # DistNetworkError is one
        raise LaunchError(
            f"port {port} of this host cannot be used.",
            str(error).partition("\n")[0],
            fix="python -m meshkit store --port <a free port>.",
        ) from error
    announce(f"store://{host}:{store.port}")
    while not ended.wait(POLL):  # a thread of torch may get the signal, which wakes no other
        pass
