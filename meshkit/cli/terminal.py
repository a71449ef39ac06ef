"""What the terminal can show: how many columns, and whether lines can be drawn in it.

Nothing is coloured, so ``NO_COLOR`` is honoured whatever it says.
"""

from __future__ import annotations

import os
import shutil
import sys

LINES = "┌─┐│└┘"  # all that is not ASCII in pictures


def width() -> int:
    """Columns of the terminal, or ``COLUMNS`` where that is set; 80 where there is neither."""
    return shutil.get_terminal_size((80, 24)).columns


def lines() -> str:
    """The characters of line drawing that stdout can take: all of them, or none."""
    try:
        LINES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return ""
    return LINES


def open_stream(name: str) -> bool:
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


def write_stream(text: str, name: str) -> bool:
    """Write to a stream; False where it takes nothing more, which leads nowhere from then on.

    Args:
        text: what to write; "" only sees off what was written before.
        name: as for :func:`open_stream`.
    """
    stream = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a closed pipe, a full disk; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
