"""A warning while torch's store looks up names that no name server answers."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...core.errors import format_error
from ..launchers.world import World
from ..store.client import address
from ..store.deadline import DeadlineExceededError, run_with_deadline

PATIENCE = 4.0  # seconds of a start after which rank 0 asks the name server
ANSWER_TIME = 1.0  # seconds that a name server may take


@contextmanager
def warning_of_slow_names(world: World) -> Iterator[None]:
    """Warn on rank 0 if the block takes more than 4 s and no name server answers. Local.

    torch's TCPStore looks up the name of each client for its log, and stalls 5 s or 10 s at a time.
    """
    host, _ = address(world)
    if world.rank or world.world_size == 1 or host is None:
        yield
        return
    timer = threading.Timer(PATIENCE, _warn_if_silent, (host,))
    timer.name, timer.daemon = "meshkit-names", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join(ANSWER_TIME / 10)


def _warn_if_silent(host: str) -> None:
    try:
        run_with_deadline(ANSWER_TIME, lambda: look_up(host))
    except DeadlineExceededError:
        text = format_error(
            f"the start takes more than {PATIENCE:g} s, and no name server answers.",
            "torch looks up the name of each client of its store for the log, and stalls.",
            fix="export RES_OPTIONS=attempts:0 on all ranks (names come from /etc/hosts alone), or "
            "a name server that answers.",
        )
        with suppress(RuntimeWarning):  # python -W error: no caller waits for this thread
            warnings.warn(text, RuntimeWarning, stacklevel=1)


def look_up(host: str) -> None:
    """Look up the name of the address of a host, in the form in which torch's sockets have it."""
    with suppress(OSError):  # an error is an answer
        mapped = f"::ffff:{socket.gethostbyname(host)}"
        socket.getnameinfo((mapped, 0, 0, 0), 0)
