"""The jobs that benchmarks start on this machine: their mesh, their store, and how many ranks."""

from __future__ import annotations

import argparse
import socket
from contextlib import closing

STORES = ("file", "tcp")


def sizes_of(ranks: int) -> dict[str, int]:
    """The sizes of the mesh on an even number of ranks.

    Example:
        >>> sizes_of(32), sizes_of(2)
        ({'dp': 8, 'tp': 4}, {'dp': 1, 'tp': 2})
    """
    tp = 4 if ranks % 4 == 0 else 2
    return {"dp": ranks // tp, "tp": tp}


def where(store: str) -> str | None:
    """The ``init_method`` of a job: a free port of this machine; None is the file of spawn."""
    if store == "file":
        return None
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def positive(text: str) -> int:
    """An option's value as a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def even(text: str) -> int:
    """A number of ranks on which tp fits."""
    ranks = positive(text)
    if ranks % 2:
        raise argparse.ArgumentTypeError(f"{ranks} is odd, but the mesh has tp=2 at least")
    return ranks
