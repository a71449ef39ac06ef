"""stdout and stderr as they may be: closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import os
import sys


def opened(name: str) -> bool:
    """Whether a stream of this process was open; one that was not leads nowhere from now on.

    Python has None for a stream that was closed when it started: what is meant for that stderr
    would go to stdout. And the next file to be opened, or socket, would take its number.

    Args:
        name: ``"stdout"`` or ``"stderr"``.
    """
    if getattr(sys, name) is not None:
        return True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(nowhere, nowhere <= 2)  # processes started here have it in that place too
    setattr(sys, name, os.fdopen(nowhere, "w", closefd=False))
    return False


def written(text: str, name: str) -> bool:
    """Write to a stream; False where it takes nothing more, which leads nowhere from then on.

    Args:
        text: what to write; "" only sees off what was written before.
        name: as for :func:`opened`.
    """
    stream = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a closed pipe, a full disk; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
