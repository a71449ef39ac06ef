"""What the terminal can show: how many columns, and whether lines can be drawn in it.

Nothing is coloured, so ``NO_COLOR`` is honoured whatever it says.
"""

from __future__ import annotations

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
