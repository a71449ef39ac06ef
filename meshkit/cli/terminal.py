"""The abilities of the terminal: its columns, its characters, its streams."""

from __future__ import annotations

import os
import re
import shutil
import sys

from ..launch.output.console import shows_colors

LINES = "┌─┐│└┘"  # all characters of pictures that are not ASCII
BOLD, RESET = "\x1b[1m", "\x1b[0m"
FIX = re.compile(r"^(  Fix:)", re.MULTILINE)


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


def paint(text: str, name: str) -> str:
    """Return a text with ``Fix:`` in bold, if the stream shows colors."""
    return FIX.sub(rf"{BOLD}\1{RESET}", text) if shows_colors(getattr(sys, name)) else text


def write_stream(text: str, name: str) -> bool:
    """Write to a stream and flush it. Return False, and close the stream, if that fails."""
    stream = getattr(sys, name)
    if stream is None:  # closed when this process began
        return False
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a closed pipe or a full disk; Python would report it again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
