"""The abilities of the terminal: its columns, its line-drawing characters, its open streams.

Output has no colors, so ``NO_COLOR`` needs no handling.
"""

from __future__ import annotations

import os
import shutil
import sys

LINES = "┌─┐│└┘"  # all characters of pictures that are not ASCII


def get_width() -> int:
    """Return the columns of the terminal, or of ``COLUMNS`` if set; 80 if unknown."""
    return shutil.get_terminal_size((80, 24)).columns


def get_line_characters() -> str:
    """Return the line-drawing characters that stdout can encode: all of them, or none."""
    try:
        LINES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return ""
    return LINES


def open_stream(name: str) -> bool:
    """Return whether a stream of this process is open, and replace a closed one by the null device.

    Python sets a stream to None that was closed at its start. Text for stderr would then go to
    stdout, and the next opened file or socket would get the number of the stream.
    """
    if getattr(sys, name) is not None:
        return True
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(null, null <= 2)  # child processes inherit it as their stream
    setattr(sys, name, os.fdopen(null, "w", closefd=False))
    return False


def write_stream(text: str, name: str) -> bool:
    """Write to a stream and flush it. Return False, and close the stream, if that fails."""
    stream = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a closed pipe or a full disk; Python would report it again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
